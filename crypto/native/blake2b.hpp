// BLAKE2b (RFC 7693) without key, with personalisation: what hashlib.blake2b(data, digest_size=n, person=p) gives.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fedsim {

class Blake2b {
 public:
  /// `person` is at most 16 characters, zero-padded; `digest_bytes` lies in [1, 64].
  Blake2b(std::size_t digest_bytes, const char* person);

  void update(const std::uint8_t* data, std::size_t size);

  /// Writes `digest_bytes` bytes; the object must not be used afterwards.
  void finish(std::uint8_t* digest);

 private:
  void compress(bool last);

  std::uint64_t state_[8];
  std::uint8_t buffer_[128];
  std::size_t used_ = 0;
  std::uint64_t total_ = 0;
  std::size_t digest_bytes_;
};

}  // namespace fedsim

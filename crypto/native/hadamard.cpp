#include "hadamard.hpp"

#include <cmath>

namespace fedsim {
namespace {

constexpr std::size_t kCacheBytes = 16384;  // half of a usual first-level cache

// Two levels at once, over four runs of `quarter` values: half the loads and stores of one level at a time.
template <class T>
void combine(T* values, std::size_t quarter) {
  T* __restrict a = values;
  T* __restrict b = values + quarter;
  T* __restrict c = values + 2 * quarter;
  T* __restrict d = values + 3 * quarter;
  for (std::size_t i = 0; i < quarter; ++i) {
    const T ab = a[i] + b[i], a_b = a[i] - b[i], cd = c[i] + d[i], c_d = c[i] - d[i];
    a[i] = ab + cd;
    b[i] = a_b + c_d;
    c[i] = ab - cd;
    d[i] = a_b - c_d;
  }
}

template <class T>
void combine_pair(T* values, std::size_t half) {
  for (std::size_t i = 0; i < half; ++i) {
    const T a = values[i], b = values[i + half];
    values[i] = a + b;
    values[i + half] = a - b;
  }
}

// Unscaled; larger sizes by four parts first, so that each part's levels run in the cache.
template <class T>
void transform(T* values, std::size_t size) {
  if (size * sizeof(T) > kCacheBytes) {
    const std::size_t quarter = size / 4;
    for (std::size_t part = 0; part < 4; ++part) transform(values + part * quarter, quarter);
    combine(values, quarter);
    return;
  }
  std::size_t run = 1;
  for (; 4 * run <= size; run *= 4) {
    for (std::size_t at = 0; at < size; at += 4 * run) combine(values + at, run);
  }
  if (run < size) combine_pair(values, run);
}

template <class T>
void orthonormal(T* values, std::size_t size) {
  transform(values, size);
  const T scale = static_cast<T>(1.0 / std::sqrt(static_cast<double>(size)));
  for (std::size_t i = 0; i < size; ++i) values[i] *= scale;
}

}  // namespace

void hadamard(float* values, std::size_t size) { orthonormal(values, size); }
void hadamard(double* values, std::size_t size) { orthonormal(values, size); }

}  // namespace fedsim

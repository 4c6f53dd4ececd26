"""The helper's key pair of PREAMBLE: made once, pinned in the folders of the server and of every client."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from crypto import wire
from crypto.keys import CLIENTS, HELPER, SERVER, KeyBundle, key_id, load_key

SCHEME = "preamble"
#: Keys depend on the sealing suite alone, so one key pair serves any run.
KEY_PARAMS = wire.params_hash(SCHEME, "X25519, HKDF-SHA256, ChaCha20-Poly1305", 1)


def make_keys() -> tuple[KeyBundle, ...]:
    """Make the helper's key pair: public bundles for server and clients, the private one for the helper alone."""
    private = X25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    identity = key_id(SCHEME, KEY_PARAMS, public)

    def bundle(role: str, secret: bytes = b"") -> KeyBundle:
        return KeyBundle(
            role=role, scheme=SCHEME, params_hash=KEY_PARAMS, key_id=identity, public=public, secret=secret
        )

    return bundle(SERVER), bundle(CLIENTS), bundle(HELPER, private.private_bytes_raw())


def helper_key(root: Path, role: str) -> bytes:
    """Return the helper's public key, 32 bytes, as this role's folder of keys pins it.

    Raises:
        FileNotFoundError, WireError: see :func:`crypto.keys.load_key`.
        KeyMismatch: the key is not one of this scheme.
    """
    bundle = load_key(root, role, SCHEME)
    bundle.require(SCHEME, KEY_PARAMS)
    return bundle.public


__all__ = ["KEY_PARAMS", "SCHEME", "helper_key", "make_keys"]

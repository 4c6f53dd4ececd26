"""Runs OpenFHE for another process (or inside one): the only file that imports the library.

Standalone on purpose: CPython 3.10 or later, numpy, openfhe, nothing else. As a program it reads requests from standard
input and writes replies to standard output until the input ends or its parent is gone::

    u32 length of the JSON head | u32 number of buffers | u64 length of each buffer | JSON head | buffers

A request's head is ``{"op": ..., "spec": {...}, ...}``; a reply's is ``{"ok": true, ...}`` or
``{"error": class, "message": text}``. Buffers are little-endian uint64 residues, int64 or float64 values. No pickle.

Polynomials cross as bare residues. The library's serialised form of one is a fixed surrounding with the residues as
64-bit words inside; a :class:`Template` learns where from objects made here, so the library never parses bytes of
others.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import threading
import time
from typing import IO, Any

# Small rings gain nothing from OpenMP, and on busy cores its barriers cost 10-100 times the work. Before the import.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import openfhe  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

#: Shape (polynomials, limbs, ring), or a stack of such.
Residues = NDArray[np.uint64]

HEAD = struct.Struct("<II")
MAX_MESSAGE_BYTES = 1 << 31
#: Objects that are serialised to learn a template; two show what varies, more make chance agreement negligible.
SAMPLES = 3


class WorkerError(Exception):
    """The library does not behave as this file needs, or was asked for nonsense."""


class Template:
    """Surroundings of a serialised polynomial object: where its residues stand.

    The same kind of object may serialise to several lengths, as the library writes what two polynomials share once only
    if they still share it in memory; each length is one layout.

    Args:
        groups: objects of one kind, serialised; those of a group were made in the same way. The first group's
            surroundings are what :meth:`build` uses.
        moduli: limb moduli, as the library orders them.
        polynomials: number of ring elements in the object.
        ring: coefficients of one limb.
        spread: residues may come as far as this many moduli; :meth:`extract` reduces them.
    """

    def __init__(
        self, groups: list[list[bytes]], moduli: list[int], polynomials: int, ring: int, spread: int = 1
    ) -> None:
        self._spread = np.uint64(spread)
        self._shape = (polynomials, len(moduli), ring)
        self._moduli = np.array(moduli, np.uint64)
        self._layouts: dict[int, list[int]] = {}
        for blobs in groups:
            if len({len(blob) for blob in blobs}) != 1:
                raise WorkerError("objects of one kind serialise to different lengths in this version of OpenFHE")
            offsets = self._find(blobs)
            if len(offsets) != polynomials * len(moduli):
                raise WorkerError(f"found {len(offsets)} of {polynomials * len(moduli)} polynomials in an object")
            if self._layouts.setdefault(len(blobs[0]), offsets) != offsets:
                raise WorkerError("objects of one length are laid out differently in this version of OpenFHE")
        base = bytearray(groups[0][0])
        for at in self._layouts[len(base)]:
            base[at : at + 8 * ring] = bytes(8 * ring)
        self._base = bytes(base)

    def _find(self, blobs: list[bytes]) -> list[int]:
        ring, marker, at = self._shape[2], struct.pack("<Q", self._shape[2]), 0
        offsets: list[int] = []
        while (at := blobs[0].find(marker, at)) >= 0:
            start = at + 8
            limb = len(offsets) % len(self._moduli)
            if self._is_limb(blobs, start, ring, self._moduli[limb] * self._spread):
                offsets.append(start)
                at = start + 8 * ring
            else:
                at += 1
        return offsets

    @staticmethod
    def _is_limb(blobs: list[bytes], start: int, ring: int, limit: np.uint64) -> bool:
        if start + 8 * ring > len(blobs[0]):
            return False
        words = [np.frombuffer(blob, "<u8", ring, start) for blob in blobs]
        if any(w.max() >= limit for w in words):
            return False
        changed = words[0] != words[1]
        return bool(changed.mean() > 0.99 and words[0].max() > limit >> np.uint64(3))

    def extract(self, blob: bytes, out: Residues) -> None:
        """Copy the residues of `blob` into `out`, shape (polynomials, limbs, ring), uint64."""
        if len(blob) not in self._layouts:
            raise WorkerError(f"object of {len(blob)} bytes where {sorted(self._layouts)} were learnt")
        for row, at in zip(out.reshape(-1, self._shape[2]), self._layouts[len(blob)]):  # noqa: B905 - equal by __init__
            row[:] = np.frombuffer(blob, "<u8", self._shape[2], at)
        if self._spread > 1:
            out %= self._moduli[:, None]

    def build(self, residues: Residues) -> bytes:
        """Return the serialised object that holds `residues`, shape (polynomials, limbs, ring)."""
        if residues.shape != self._shape or np.any(residues >= self._moduli[None, :, None]):
            raise WorkerError(f"residues of shape {residues.shape}: must be {self._shape} and below the moduli")
        blob = bytearray(self._base)
        for row, at in zip(residues.reshape(-1, self._shape[2]), self._layouts[len(blob)]):  # noqa: B905
            blob[at : at + 8 * self._shape[2]] = row.astype("<u8").tobytes()
        return bytes(blob)


class Context:
    """One crypto context with its templates; see :meth:`Engine.call` for the operations."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.bgv = spec["kind"] == "bgv"
        self.ring = int(spec["ring"])
        self.moduli = [int(q) for q in spec["moduli"]]
        self.cc = _context(spec, self.bgv)
        if self.cc.GetRingDimension() != self.ring:
            raise WorkerError(f"OpenFHE chose ring {self.cc.GetRingDimension()} where {self.ring} was asked")
        self.slots = self.ring if self.bgv else self.ring // 2
        self._piece: Template | None = None
        self._learn()
        self._check()

    def _learn(self) -> None:
        pairs = [self.cc.KeyGen() for _ in range(SAMPLES)]
        self._learn_keys([pairs])
        loaded = [(self._load_public(public), self._load_secret(secret)) for public, secret in map(self._pair, pairs)]
        self._learn_keys([pairs, [self.cc.MultipartyKeyGen(public) for public, _ in loaded]])
        plain = self._encode(np.zeros(self.slots))
        sealed = [[self.cc.Encrypt(key, plain) for _ in range(SAMPLES)] for key in loaded[0]]
        if not all(struct.pack("<Q", modulus) in _dump(sealed[0][0]) for modulus in self.moduli):
            raise WorkerError(f"this version of OpenFHE does not choose the moduli {self.moduli}")
        self._cipher = self._template(sealed, 2)
        parts = [self._load_cipher(self._row(c)) for c in sealed[0]]
        steps = (self.cc.MultipartyDecryptLead, self.cc.MultipartyDecryptMain)
        self._partial = self._template([[step([c], loaded[0][1])[0] for c in parts] for step in steps], 1)

    def _learn_keys(self, groups: list[list[Any]]) -> None:
        self._public = self._template([[pair.publicKey for pair in pairs] for pairs in groups], 2)
        self._secret = self._template([[pair.secretKey for pair in pairs] for pairs in groups], 1)

    def _template(self, groups: list[list[Any]], polynomials: int) -> Template:
        blobs = [[_dump(item) for item in group] for group in groups]
        return Template(blobs, self.moduli, polynomials, self.ring)

    def _row(self, cipher: Any) -> Residues:
        out = np.empty((2, len(self.moduli), self.ring), np.uint64)
        self._cipher.extract(_dump(cipher), out)
        return out

    def _check(self) -> None:
        """Prove the templates and the bare addition of residues against the library's own."""
        public, secret = self.keygen()
        values = np.arange(self.slots) % 97 - 48
        a, b = self.seal(public, values), self.seal(public, values[::-1].copy())
        bare = (a + b) % np.array(self.moduli, np.uint64)[:, None]
        theirs = self.cc.EvalAdd(self._load_cipher(a[0]), self._load_cipher(b[0]))
        if _dump(theirs) != _dump(self._load_cipher(bare[0])):
            raise WorkerError("adding residues differs from EvalAdd in this version of OpenFHE")
        error = np.abs(self.decrypt(secret, bare) - values - values[::-1]).max()
        if error > (0 if self.bgv else 0.1):
            raise WorkerError(f"a sum opened with error {error} in this version of OpenFHE")

    def _encode(self, values: NDArray[Any]) -> Any:
        if self.bgv:
            return self.cc.MakePackedPlaintext(values.astype(np.int64))
        return self.cc.MakeCKKSPackedPlaintext(values.astype(np.float64))

    def _decode(self, plain: Any) -> Any:
        plain.SetLength(self.slots)
        return plain.GetPackedValueArray() if self.bgv else plain.GetRealPackedValueArray()

    def _load_cipher(self, residues: Residues) -> Any:
        return openfhe.DeserializeCiphertextString(self._cipher.build(residues), openfhe.BINARY)

    def _load_secret(self, residues: Residues) -> Any:
        return openfhe.DeserializePrivateKeyString(self._secret.build(residues), openfhe.BINARY)

    def _load_public(self, residues: Residues) -> Any:
        return openfhe.DeserializePublicKeyString(self._public.build(residues), openfhe.BINARY)

    def _pair(self, pair: Any) -> tuple[Residues, Residues]:
        public = np.empty((2, len(self.moduli), self.ring), np.uint64)
        secret = np.empty((1, len(self.moduli), self.ring), np.uint64)
        self._public.extract(_dump(pair.publicKey), public)
        self._secret.extract(_dump(pair.secretKey), secret)
        return public, secret

    def shaped(self, buffer: Any, polynomials: int) -> Residues:
        """View a buffer as residues, shape (count, polynomials, limbs, ring)."""
        return np.frombuffer(buffer, "<u8").reshape(-1, polynomials, len(self.moduli), self.ring)

    def keygen(self) -> tuple[Residues, Residues]:
        """Return a fresh public key (2, L, N) and secret key (1, L, N)."""
        return self._pair(self.cc.KeyGen())

    def join(self, public: Residues) -> tuple[Residues, Residues]:
        """Return the joint public key after this party and this party's secret share."""
        return self._pair(self.cc.MultipartyKeyGen(self._load_public(public)))

    def seal(self, key: Residues, values: NDArray[Any]) -> Residues:
        """Encrypt values, a multiple of the slots; a key of one polynomial is secret, of two public."""
        loaded = self._load_public(key) if key.shape[0] == 2 else self._load_secret(key)
        blocks = values.reshape(-1, self.slots)
        out = np.empty((len(blocks), 2, len(self.moduli), self.ring), np.uint64)
        for row, block in zip(out, blocks):  # noqa: B905
            self._cipher.extract(_dump(self.cc.Encrypt(loaded, self._encode(block))), row)
        return out

    def decrypt(self, secret: Residues, sealed: Residues) -> NDArray[Any]:
        """Return the values of ciphertexts."""
        key = self._load_secret(secret)
        return np.concatenate([self._decode(self.cc.Decrypt(self._load_cipher(c), key)) for c in sealed])

    def partial(self, secret: Residues, sealed: Residues, lead: bool) -> Residues:
        """Return one party's partial decryptions, shape (count, 1, L, N)."""
        key = self._load_secret(secret)
        step = self.cc.MultipartyDecryptLead if lead else self.cc.MultipartyDecryptMain
        out = np.empty((len(sealed), 1, len(self.moduli), self.ring), np.uint64)
        for row, residues in zip(out, sealed):  # noqa: B905
            self._partial.extract(_dump(step([self._load_cipher(residues)], key)[0]), row)
        return out

    def split(self, secret: Residues, parties: int, threshold: int, member: int) -> Residues:
        """Return Shamir pieces of a share, one for each other member in order, shape (parties - 1, 1, L, N)."""
        pieces = self._split(self._load_secret(secret), parties, threshold, member)
        out = np.empty((len(pieces), 1, len(self.moduli), self.ring), np.uint64)
        for row, piece in zip(out, pieces):  # noqa: B905
            self._pieces().extract(_dump(self._carry(piece)), row)
        return out

    def recover(self, pieces: Residues, holders: list[int], parties: int, threshold: int) -> Residues:
        """Return the share (1, L, N) that members' pieces of it determine."""
        template, loaded = self._pieces(), {}
        for holder, piece in zip(holders, pieces):  # noqa: B905
            carrier = openfhe.DeserializeCiphertextString(template.build(piece), openfhe.BINARY)
            loaded[holder + 1] = carrier.GetElements()[0]
        pair = self.cc.KeyGen()
        self.cc.RecoverSharedKey(pair.secretKey, loaded, parties, threshold, "shamir")
        return self._pair(pair)[1]

    def _split(self, secret: Any, parties: int, threshold: int, member: int) -> list[Any]:
        pieces = self.cc.ShareKeys(secret, parties, threshold, member + 1, "shamir")
        return [pieces[other + 1] for other in range(parties) if other != member]

    def _carry(self, polynomial: Any) -> Any:
        # The bindings serialise no bare polynomial: a ciphertext of a single element carries it.
        carrier = self.cc.Encrypt(self.cc.KeyGen().publicKey, self._encode(np.zeros(self.slots)))
        carrier.SetElements([polynomial])
        return carrier

    def _pieces(self) -> Template:
        if self._piece is None:
            # The library leaves sums of Shamir's terms unreduced, which would tell about the terms.
            pieces = self._split(self.cc.KeyGen().secretKey, SAMPLES + 1, SAMPLES, 0)
            blobs = [_dump(self._carry(piece)) for piece in pieces]
            self._piece = Template([blobs], self.moduli, 1, self.ring, spread=4)
        return self._piece

    def fuse(self, partials: list[Residues]) -> NDArray[Any]:
        """Return the values of partial decryptions, one array (count, 1, L, N) a party, lead first."""
        opened = []
        for parts in zip(*partials):  # noqa: B905
            loaded = [openfhe.DeserializeCiphertextString(self._partial.build(p), openfhe.BINARY) for p in parts]
            opened.append(self._decode(self.cc.MultipartyDecryptFusion(loaded)))
        return np.concatenate(opened)


def _context(spec: dict[str, Any], bgv: bool) -> Any:
    params = openfhe.CCParamsBGVRNS() if bgv else openfhe.CCParamsCKKSRNS()
    params.SetRingDim(int(spec["ring"]))
    params.SetSecurityLevel(openfhe.HEStd_128_classic)
    params.SetMultiplicativeDepth(0)
    params.SetKeySwitchTechnique(openfhe.BV)
    params.SetScalingTechnique(openfhe.FIXEDMANUAL)
    params.SetFirstModSize(int(spec["first_bits"]))
    if bgv:
        params.SetPlaintextModulus(int(spec["plain_modulus"]))
        if spec["flooding"] == "statistical":
            params.SetMultipartyMode(openfhe.NOISE_FLOODING_MULTIPARTY)
    else:
        params.SetScalingModSize(int(spec["scale_bits"]))
    cc = openfhe.GenCryptoContext(params)
    for feature in (openfhe.PKE, openfhe.KEYSWITCH, openfhe.LEVELEDSHE, openfhe.MULTIPARTY):
        cc.Enable(feature)
    return cc


def _dump(item: Any) -> bytes:
    return bytes(openfhe.Serialize(item, openfhe.BINARY))


class Engine:
    """Dispatches operations on contexts that it keeps; every request names its context by its full description."""

    def __init__(self) -> None:
        self._contexts: dict[str, Context] = {}

    def call(self, head: dict[str, Any], buffers: list[Any]) -> tuple[dict[str, Any], list[NDArray[Any]]]:
        """Run one operation.

        Args:
            head: ``op`` and ``spec``; ``lead`` for partial decryptions.
            buffers: residues of keys and ciphertexts, or values, as the operation takes them.

        Returns:
            The reply's head and its buffers (numpy arrays).
        """
        op = head["op"]
        context = self._context(head["spec"])
        if op == "open":
            return {"slots": context.slots}, []
        if op == "keygen":
            return {}, list(context.keygen())
        if op == "join":
            return {}, list(context.join(context.shaped(buffers[0], 2)[0]))
        if op == "seal":
            key = context.shaped(buffers[0], 2 if head["public"] else 1)[0]
            return {}, [context.seal(key, np.frombuffer(buffers[1], "<i8" if context.bgv else "<f8"))]
        if op == "decrypt":
            return {}, [context.decrypt(context.shaped(buffers[0], 1)[0], context.shaped(buffers[1], 2))]
        if op == "partial":
            secret, sealed = context.shaped(buffers[0], 1)[0], context.shaped(buffers[1], 2)
            return {}, [context.partial(secret, sealed, head["lead"])]
        if op == "split":
            secret = context.shaped(buffers[0], 1)[0]
            return {}, [context.split(secret, head["parties"], head["threshold"], head["member"])]
        if op == "recover":
            pieces = context.shaped(buffers[0], 1)
            return {}, [context.recover(pieces, head["holders"], head["parties"], head["threshold"])]
        if op == "fuse":
            return {}, [context.fuse([context.shaped(b, 1) for b in buffers])]
        raise WorkerError(f"unknown operation {op!r}")

    def _context(self, spec: dict[str, Any]) -> Context:
        name = json.dumps(spec, sort_keys=True)
        if name not in self._contexts:
            self._contexts[name] = Context(spec)
        return self._contexts[name]


def _read(stream: Any, size: int) -> bytearray:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        count = stream.readinto(view[got:])
        if not count:
            raise EOFError
        got += count
    return data


def _reply(stream: IO[bytes], head: dict[str, Any], buffers: list[NDArray[Any]]) -> None:
    text = json.dumps(head).encode()
    views = [np.ascontiguousarray(b).data.cast("B") for b in buffers]
    stream.write(HEAD.pack(len(text), len(views)) + struct.pack(f"<{len(views)}Q", *[v.nbytes for v in views]) + text)
    for view in views:
        stream.write(view)
    stream.flush()


def _die_with(parent: int) -> None:
    # The pipe's end tells most deaths of the owner; a forked sibling may hold it open, so look at the parent as well.
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(0)


def serve() -> None:
    """Answer requests until the input ends."""
    source = os.fdopen(os.dup(0), "rb", buffering=0)
    sink = os.fdopen(os.dup(1), "wb", buffering=1 << 20)
    os.dup2(2, 1)  # whatever the library prints must not reach the protocol
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's to handle
    threading.Thread(target=_die_with, args=(os.getppid(),), daemon=True).start()
    engine = Engine()
    while True:
        try:
            text_bytes, count = HEAD.unpack(_read(source, HEAD.size))
            lengths = struct.unpack(f"<{count}Q", _read(source, 8 * count))
            if text_bytes + sum(lengths) > MAX_MESSAGE_BYTES:
                raise EOFError
            head = json.loads(_read(source, text_bytes))
            buffers = [_read(source, n) for n in lengths]
        except EOFError:
            return
        try:
            reply, out = engine.call(head, buffers)
            reply["ok"] = True
        except Exception as error:  # the boundary of the process: everything becomes a reply
            reply, out = {"error": type(error).__name__, "message": str(error)}, []
        _reply(sink, reply, out)


if __name__ == "__main__":
    serve()

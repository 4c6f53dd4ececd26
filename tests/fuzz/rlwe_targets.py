"""Every frame and key of the sums on our own ring: parts, totals, partial decryptions, set-up messages, key files."""

import os

import numpy as np
from kit import LENGTH, PLAN, TAG, Target, added_and_opened, forge_frame
from sum_targets import forge_key

from crypto.errors import CryptoError
from crypto.keys import KeyBundle, without_secret
from crypto.rlwe.scheme import RlweSum
from crypto.rlwe.threshold import RlweThreshold, commitment, public_bundle, setup, setup_finish

VECTOR = np.linspace(-1, 1, LENGTH, dtype=np.float32)


def frames(mode: str) -> Target:
    """Parts and totals of one key, added, merged and opened."""
    described = RlweSum(PLAN, mode=mode, stochastic=False)  # type: ignore[arg-type]
    _, key = described.make_keys()
    scheme = described.with_key(key.key_id)
    part = scheme.sealer(key).seal(VECTOR, TAG)[0]
    adder = scheme.adder(TAG)
    adder.add(part)
    adder.add(part)

    return Target([part, adder.total()], added_and_opened(scheme, scheme.opener(key)), (CryptoError,), forge_frame)


def keys() -> Target:
    """Key files whose content is taken into use."""
    bundles = []
    for mode in ("symmetric", "public"):
        described = RlweSum(PLAN, mode=mode)  # type: ignore[arg-type]
        _, own = described.make_keys()
        bundles.append((described, own.encode()))
    # In public mode alone a key without its secret seals.
    bundles.append((described, without_secret(own, "clients").encode()))

    def read(data: bytes) -> None:
        bundle, refused = KeyBundle.decode(data), []
        for described, _ in bundles:
            scheme = described.with_key(bundle.key_id)
            try:
                part = scheme.sealer(bundle).seal(VECTOR, TAG)[0]
                adder = scheme.adder(TAG)
                adder.add(part)
                if bundle.secret:
                    scheme.opener(bundle).open([adder.total()], TAG)
            except CryptoError as error:
                refused.append(error)
        # A key fits one of the two modes.
        if len(refused) == len(bundles):
            raise refused[-1]

    return Target([data for _, data in bundles], read, (CryptoError,), forge_key)


def committee_frames() -> Target:
    """Totals as a member gets them, and partial decryptions as they are fused."""
    described = RlweThreshold(PLAN, 2, openings=9, stochastic=False)
    _, clients, *members = described.make_keys()
    scheme = described.with_key(clients.key_id)
    adder = scheme.adder(TAG)
    adder.add(scheme.sealer(clients).seal(VECTOR, TAG)[0])
    total = adder.total()
    answers = [scheme.partial_opener(bundle).partial(total, TAG) for bundle in members]

    def read(data: bytes) -> None:
        fuser = scheme.fuser(TAG, total)
        try:
            other = fuser.add(data)
        except CryptoError:
            scheme.partial_opener(members[0]).partial(data, TAG)
            return
        fuser.add(answers[1 - other])
        fuser.open()

    return Target([total, *answers], read, (CryptoError,), forge_frame)


def set_up() -> Target:
    """Set-up messages of a committee, of which one is another's."""
    scheme, seed = RlweThreshold(PLAN, 2, openings=9), os.urandom(16)
    (mine, share), (theirs, _) = setup(scheme, seed, 0), setup(scheme, seed, 1)

    def read(data: bytes) -> None:
        messages = [mine, data]
        public_bundle(scheme, messages)
        setup_finish(scheme, messages, share, [commitment(message) for message in messages])

    return Target([theirs], read, (CryptoError,), forge_frame)

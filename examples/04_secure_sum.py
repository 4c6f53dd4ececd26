"""Lesson 4. A secure sum by itself: three roles, and a budget before anything is sealed.

No learning here. `crypto` adds vectors of numbers that nobody but the opener can read.
"""

import numpy as np

from crypto.base import Plan, Tag
from crypto.errors import CryptoError
from crypto.rlwe.scheme import RlweSum


def main() -> None:
    # What will be asked of it is declared first; what would not fit is refused here.
    plan = Plan(length=1000, clients=3, bound=1.0)
    described = RlweSum(plan)
    budget = described.budget
    print(f"{budget.upload_bytes:,} bytes up, off by at most {budget.error_bound:.1e}, {budget.security_bits} bits")

    server_key, client_key = described.make_keys()
    tag = Tag(round=1, layout_hash=bytes(16), length=1000)
    sum_ = described.with_key(client_key.key_id)
    vectors = [np.random.default_rng(client).uniform(-1, 1, 1000).astype(np.float32) for client in range(3)]

    adder = sum_.adder(tag)  # At the server: no key.
    for vector in vectors:
        (part,) = sum_.sealer(client_key).seal(vector, tag)
        adder.add(part)
    opened = sum_.opener(client_key).open([adder.total()], tag)
    print(f"three clients, largest error {np.abs(opened - np.sum(vectors, axis=0)).max():.1e}")

    try:
        sum_.opener(server_key)
    except CryptoError as error:
        print(f"the server cannot: {error}")


if __name__ == "__main__":
    main()

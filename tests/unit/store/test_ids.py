"""Ids made here are what the standard library makes of the same bits, and say their version."""

from __future__ import annotations

import os
import uuid

from sentinel.store.ids import new_id, unix_milliseconds, uuid4, uuid7


def test_an_id_is_the_standard_librarys_and_says_its_version() -> None:
    for _ in range(1000):
        random = os.urandom(16)
        assert uuid4(random) == uuid.UUID(bytes=random, version=4)
        made = uuid7(unix_milliseconds(), random[:10])
        assert (made.version, made.variant) == (7, uuid.RFC_4122)
        assert (
            uuid.UUID(str(made)) == made
            and uuid.UUID(bytes=made.bytes) == made
            and hash(uuid.UUID(str(made))) == hash(made)
        )
    assert len({new_id() for _ in range(1000)}) == 1000


def test_ids_are_in_the_order_of_their_time_and_keep_all_their_random_bits() -> None:
    assert uuid7(5, b"\xff" * 10) < uuid7(6, bytes(10))
    ones = [(1 << bit).to_bytes(10, "big") for bit in range(80)]
    # Six of the 80 bits have no place in an id: they leave the id of no bits at all.
    assert len({uuid7(7, one) for one in ones} - {uuid7(7, bytes(10))}) == 74

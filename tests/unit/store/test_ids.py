"""Ids made here are what the standard library makes of the same bits, and say their version."""

from __future__ import annotations

import os
import uuid

from sentinel.store.ids import guard_ids, new_id, unix_milliseconds, uuid7


def test_an_id_is_the_standard_librarys_and_says_its_version() -> None:
    for _ in range(1000):
        made = uuid7(unix_milliseconds(), os.urandom(10))
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


def five(milliseconds: int, random: bytes) -> list[uuid.UUID]:
    packed = guard_ids(milliseconds, random)
    assert len(packed) == 80
    return [uuid.UUID(bytes=packed[at : at + 16]) for at in range(0, 80, 16)]


def test_five_ids_at_once_are_what_each_would_be() -> None:
    for _ in range(1000):
        random, now = os.urandom(80), unix_milliseconds()
        *times, last = five(now, random)
        for at, one in enumerate(times):
            # As a UUIDv4 of the same bytes, but for the time and the version in front.
            same = uuid.UUID(bytes=random[16 * at : 16 * at + 16], version=4).int
            wanted = now << 80 | 7 << 76 | same & (1 << 76) - 1
            assert one.int == (wanted & ~(1 << 75) if at == 1 else wanted | 1 << 75 if at == 2 else wanted)
        assert times[1] < times[2], "the events of a decision and of what comes with it are in that order"
        assert last == uuid.UUID(bytes=random[64:], version=4)
    assert [one.version for one in five((1 << 48) - 1, bytes(80))] == [7, 7, 7, 7, 4]
    assert {one.int >> 80 for one in five((1 << 48) - 1, b"\xff" * 80)[:4]} == {(1 << 48) - 1}

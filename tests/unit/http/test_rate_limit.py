"""The rate limit over several processes: exact, whoever asks; and what a limit per process would let through."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable

import pytest

from sentinel.core.errors import RateLimited
from sentinel.platform.http.rate_limit import SharedRateLimit

KEY = hashlib.sha256(b"a key").digest()
BURST, PROCESSES = 40, 4


def admitted(limit: SharedRateLimit, before_each: Callable[[], SharedRateLimit] | None = None) -> int:
    """How many of 4 × 40 requests from four forked processes are admitted."""
    read, write = os.pipe()
    children = []
    for _ in range(PROCESSES):
        child = os.fork()
        if child == 0:
            count = 0
            mine = before_each() if before_each else limit
            for _ in range(BURST):
                try:
                    mine.take(KEY)
                    count += 1
                except RateLimited:
                    pass
            os.write(write, struct.pack("=q", count))
            os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    os.close(write)
    with os.fdopen(read, "rb") as file:
        return sum(count for (count,) in struct.iter_unpack("=q", file.read()))


def stopped_clock() -> float:
    return 1000.0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_four_processes_together_are_admitted_exactly_the_burst() -> None:
    limit = SharedRateLimit(per_second=1, burst=BURST, clock=stopped_clock)
    assert admitted(limit) == BURST
    print(f"{PROCESSES * BURST} requests, exactly {BURST} admitted")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_same_count_catches_a_limit_per_process() -> None:
    def own() -> SharedRateLimit:
        return SharedRateLimit(per_second=1, burst=BURST, clock=stopped_clock)

    assert admitted(own(), own) == PROCESSES * BURST


def test_the_wait_that_is_told_is_the_wait_that_helps() -> None:
    now = [0.0]
    limit = SharedRateLimit(per_second=1, burst=2, clock=lambda: now[0])
    limit.take(KEY)
    limit.take(KEY)
    with pytest.raises(RateLimited) as refused:
        limit.take(KEY)
    now[0] += refused.value.retry_after_seconds
    limit.take(KEY)


def test_one_keys_debt_is_not_anothers() -> None:
    limit = SharedRateLimit(per_second=1, burst=1, clock=stopped_clock)
    for number in range(200):
        limit.take(hashlib.sha256(b"%d" % number).digest())


def test_a_refusal_costs_nothing() -> None:
    now = [0.0]
    limit = SharedRateLimit(per_second=10, burst=1, clock=lambda: now[0])
    limit.take(KEY)
    for _ in range(50):
        with pytest.raises(RateLimited):
            limit.take(KEY)
    now[0] += 0.11
    limit.take(KEY)


def test_a_process_that_dies_with_the_lock_holds_up_one_request_and_no_more() -> None:
    limit = SharedRateLimit(per_second=1, burst=100, clock=stopped_clock)
    lock = limit._locks[KEY[0] % len(limit._locks)]
    child = os.fork()
    if child == 0:
        lock.acquire()
        os._exit(9)
    os.waitpid(child, 0)
    assert not lock.acquire(block=False), "the dead process holds it"
    limit.take(KEY)
    assert lock.acquire(block=False), "the first who came took it over and gave it back"
    lock.release()
    limit.take(KEY)

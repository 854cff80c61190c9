"""Generates UUIDv7 identifiers (RFC 9562) in the process, time-ordered, so that indexes stay warm; and the random bytes they are made of.

Random bytes come from the operating system's generator and are buffered a page at a time: a decision needs some in
seven places, and a system call for each would release the interpreter lock seven times, which costs a busy server more
than everything else in the decision.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from datetime import datetime, timedelta

CLOCK_SKEW = timedelta(hours=1)
"""The largest difference expected between the database's clock and a machine's clock, whose time is in the ids."""
_PAGE_BYTES = 4096


class _Page:
    """A buffer of random bytes. Each byte is handed out once; a forked process starts with an empty buffer."""

    def __init__(self) -> None:
        self.reset()
        os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Discard the buffer and the lock, e.g. in a forked process."""
        self._lock = threading.Lock()
        self._bytes = b""
        self._at = 0

    def take(self, count: int) -> bytes:
        """The next `count` bytes, 4096 at most."""
        with self._lock:
            if self._at + count > len(self._bytes):
                self._bytes, self._at = os.urandom(_PAGE_BYTES), 0
            start = self._at
            self._at = start + count
            return self._bytes[start : self._at]


random_bytes = _Page().take
"""`count` bytes (1 to 4096) from the system's generator, fit for secrets."""


_LOW = (1 << 62) - 1


def new_id() -> uuid.UUID:
    """A UUIDv7: 48 bits of milliseconds, 74 random bits."""
    return uuid7(unix_milliseconds(), random_bytes(10))


def unix_milliseconds() -> int:
    """Milliseconds since the epoch by this process's clock, for ids."""
    return time.time_ns() // 1_000_000


def uuid7(milliseconds: int, random: bytes) -> uuid.UUID:
    """The UUIDv7 of a time in milliseconds since the epoch and 10 random bytes."""
    bits = int.from_bytes(random, "big")
    return _of_int(milliseconds << 80 | 0x7 << 76 | (bits >> 68) << 64 | 0x2 << 62 | bits & _LOW)


GUARD_ID_BYTES = 80
"""The number of random bytes that `guard_ids` takes, and of bytes that it returns."""
_TIMES = sum(1 << 80 + 128 * place for place in range(1, 5))
_VERSIONS = (
    sum(7 << 76 + 128 * place for place in range(1, 5)) | 4 << 76 | sum(2 << 62 + 128 * place for place in range(5))
)
_FIRST_EVENT, _SECOND_EVENT = 1 << 75 + 128 * 3, 1 << 75 + 128 * 2
"""The highest random bit of the second and of the third id: cleared in one and set in the other, it orders them."""
_RANDOM = (sum((0xFFF << 64 | _LOW) << 128 * place for place in range(5)) | ((1 << 48) - 1) << 80) & ~_FIRST_EVENT


def guard_ids(milliseconds: int, random: bytes) -> bytes:
    """The ids of one guard: four UUIDv7 of a time and then a UUIDv4, 16 bytes each, made of 80 random bytes.

    Making them at once takes a fifth of the time of one by one. The second is always less than the third: events of one
    transaction are in the order of their ids, and a decision comes before its start.
    """
    return (int.from_bytes(random, "big") & _RANDOM | _VERSIONS | _SECOND_EVENT | milliseconds * _TIMES).to_bytes(
        80, "big"
    )


def _of_int(value: int) -> uuid.UUID:
    """Return `uuid.UUID(int=value)` without its argument checks, which cost more than the rest of making an id."""
    found = object.__new__(uuid.UUID)
    object.__setattr__(found, "int", value)
    object.__setattr__(found, "is_safe", uuid.SafeUUID.unknown)
    return found


def first_id_at(moment: datetime) -> uuid.UUID:
    """A lower bound of the ids that `new_id` makes at a moment, for ranges of ids by time; clamped to what 48 bits can hold."""
    milliseconds = int(moment.timestamp() * 1000)
    return uuid.UUID(int=min(max(milliseconds, 0), (1 << 48) - 1) << 80)


def proof_id_of(event_id: uuid.UUID) -> str:
    """The public name of a decision's proof pack: "pf_" and its event's id in hex."""
    return "pf_" + event_id.hex


def event_of_proof(proof_id: str) -> uuid.UUID | None:
    """The id of the event behind a proof's public name, or None for any other text."""
    digits = proof_id.removeprefix("pf_")
    if len(digits) != 32 or digits == proof_id or not set(digits) <= set("0123456789abcdef"):
        return None
    return uuid.UUID(hex=digits)


def uuid_or_none(text: str) -> uuid.UUID | None:
    """Parse a UUID in its plain 36-character form, in letters of either case; None for any other text or spelling."""
    try:
        found = uuid.UUID(text)
    except ValueError:
        return None
    return found if str(found) == text.lower() else None

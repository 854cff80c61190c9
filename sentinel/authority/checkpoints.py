"""Checkpoints of the event log: Merkle tree heads appended to a file outside the database.

Each line covers one tenant and up to a thousand new events: size and root of the RFC 6962 log over the events' hashes
in feed order, and each new event's id and the beginning of its hash, so that a difference can be attributed to an
event.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
import uuid
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import psycopg

from sentinel.core.errors import SentinelError
from sentinel.core.merkle import TreeHead
from sentinel.store.database import Pool
from sentinel.store.queries import call_with_retry

AT_ONCE, PORTION = 1000, 10_000
_ID, _HASH = 32, 16
"""Hexadecimal digits of an event's id and of the beginning of its hash in a line."""

TENANTS = "select tenant_id from sentinel.feed_heads order by tenant_id"
EVENTS = """
select f.position, f.event_id, coalesce(e.hash, '') as hash
from sentinel.feed f left join sentinel.events e using (tenant_id, event_id)
where f.tenant_id = %s and f.position > %s order by f.position limit %s
"""


ALL_EVENTS = """
select f.position, f.event_id, coalesce(e.hash, '') as hash
from sentinel.feed f left join sentinel.events e using (tenant_id, event_id) where f.tenant_id = %s order by f.position
"""


class CheckpointBroken(SentinelError):
    """Raised if the event log differs from a checkpoint, or the file cannot be read; `detail` says where."""

    code = "checkpoint-broken"


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """One event as a checkpoint stores it: its id and the first hex digits of its hash."""

    event_id: uuid.UUID
    hash_begins: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One line: the Merkle tree head of a tenant's log up to `head.size`, and the entries since the previous line."""

    tenant_id: uuid.UUID
    head: TreeHead
    root: str
    entries: tuple[CheckpointEntry, ...]

    def line(self) -> bytes:
        """Return the line as written to the file."""
        return orjson.dumps({
            "tenant_id": str(self.tenant_id), "size": self.head.size, "root": self.root,
            "peaks": [peak.hex() for peak in self.head.peaks],
            "events": "".join(entry.event_id.hex + entry.hash_begins for entry in self.entries),
        }, option=orjson.OPT_APPEND_NEWLINE)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One event at its feed position, or a position whose event is missing (`hash` empty)."""

    position: int
    event_id: uuid.UUID
    hash: str

    @property
    def entry(self) -> CheckpointEntry:
        """The event as a checkpoint stores it."""
        return CheckpointEntry(self.event_id, self.hash.removeprefix("sha256:")[:_HASH])


def read_line(line: bytes) -> Checkpoint | None:
    """Return the checkpoint of a line, or None if the line was cut off by a crash."""
    try:
        fields = orjson.loads(line)
        texts = fields["events"]
        return Checkpoint(
            uuid.UUID(fields["tenant_id"]),
            TreeHead(int(fields["size"]), tuple(bytes.fromhex(peak) for peak in fields["peaks"])),
            str(fields["root"]),
            tuple(
                CheckpointEntry(uuid.UUID(texts[at : at + _ID]), texts[at + _ID : at + _ID + _HASH])
                for at in range(0, len(texts), _ID + _HASH)
            ),
        )
    except (ValueError, KeyError, TypeError):
        return None


def lines_of(file: BinaryIO, begin: int = 0) -> Iterator[tuple[uuid.UUID | None, int, int]]:
    """Yield (tenant, start offset, end offset) of each line from `begin` on; the tenant of a cut-off line is None.

    The events of a line are not parsed, so that a file of many years is read in seconds. Raises OSError.
    """
    file.seek(begin)
    for line in file:
        tenant_id, offset, begin = None, begin, begin + len(line)
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            tenant_id = uuid.UUID(orjson.loads(line)["tenant_id"])
        yield tenant_id, offset, begin


def offsets_by_tenant(file: BinaryIO) -> dict[uuid.UUID, array[int]]:
    """Return the offsets of each tenant's lines in a checkpoint file, in order: eight bytes per line. Raises OSError."""
    offsets: dict[uuid.UUID, array[int]] = {}
    for tenant_id, offset, _ in lines_of(file):
        if tenant_id is not None:
            offsets.setdefault(tenant_id, array("q")).append(offset)
    return offsets


def checkpoints_at(file: BinaryIO, offsets: Iterable[int]) -> Iterator[Checkpoint]:
    """Yield the checkpoints of the lines at these offsets, one line in memory at a time. Raises OSError."""
    for offset in offsets:
        file.seek(offset)
        if (found := read_line(file.readline())) is not None:
            yield found


def logged_events_after(
    connection: psycopg.Connection[Any], tenant_id: uuid.UUID, position: int, most: int
) -> list[LoggedEvent]:
    """Return the next `most` events after a feed position, in order."""
    return [LoggedEvent(*row) for row in connection.execute(EVENTS, [tenant_id, position, most]).fetchall()]


def logged_events(connection: psycopg.Connection[Any], tenant_id: uuid.UUID) -> Iterator[LoggedEvent]:
    """Yield every event of a tenant in order, by a server-side cursor: one statement per portion takes ten times as long."""
    with connection.transaction(), connection.cursor(name=f"feed_{tenant_id.hex}") as cursor:
        cursor.itersize = PORTION
        for row in cursor.execute(ALL_EVENTS, [tenant_id]):
            yield LoggedEvent(*row)


class CheckpointFile:
    """Appends checkpoints to one file. Several processes of a host may share it: one appends at a time, where the last ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest: dict[uuid.UUID, Checkpoint] = {}
        self._file: tuple[int, int] | None = None
        """Device and inode of the file that was read up to `_read_to`."""
        self._read_to = 0
        self._unread: dict[uuid.UUID, array[int]] = {}
        """Offsets of lines that other processes wrote, by tenant, until the tenant's newest line is needed."""
        self._at_end = True
        self._waiting: deque[uuid.UUID] = deque()
        """Tenants for whose new events the last `append` had no time."""

    @property
    def is_behind(self) -> bool:
        """Whether the last `append` ran out of time before it had read the file and written all new events."""
        return bool(self._waiting) or not self._at_end

    def require_writable(self) -> None:
        """Create the file if it does not exist. Raises OSError if it cannot be written."""
        os.close(self._open())

    def _open(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)

    def append(self, pool: Pool, *, seconds: float = math.inf) -> list[Checkpoint]:
        """`append_some`, but raises `CheckpointBroken` where that returns one; the checkpoints are written by then."""
        written, broken = self.append_some(pool, seconds=seconds)
        if broken is not None:
            raise broken
        return written

    def append_some(self, pool: Pool, *, seconds: float) -> tuple[list[Checkpoint], CheckpointBroken | None]:
        """Append checkpoints of each tenant's new events, sync the file, and return the checkpoints written.

        Writes nothing while another process writes. Ends after `seconds`, at the next line while reading the file to
        its end, else after the next portion of a tenant's events. The next call continues there, and tenants take
        turns, so that none waits for all events of another. Also returns the first `CheckpointBroken`: the newest
        checkpointed event of a tenant is no longer at its position, or its feed has a gap; this holds back no other
        tenant. Raises `EngineUnavailable`, and OSError for the file.
        """
        broken: CheckpointBroken | None = None
        with os.fdopen(self._open(), "r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return [], None
            until = time.monotonic() + seconds
            self._at_end = self._catch_up(file, until)
            if not self._at_end:
                return [], None
            whole = _ends_with_a_whole_line(file)
            written, waiting, self._waiting = [], self._waiting or self._tenants(pool), deque()
            while waiting:
                tenant_id = waiting.popleft()
                try:
                    for checkpoint in self._new(pool, tenant_id, self._newest_of(tenant_id, file)):
                        # O_APPEND writes at the end, whatever the position. The seek also discards the read buffer:
                        # without it, the line would be put into the buffer at the current position, and be read there
                        # in place of another one.
                        file.seek(0, os.SEEK_END)
                        file.write((b"" if whole else b"\n") + checkpoint.line())
                        whole = True
                        written.append(checkpoint)
                        if time.monotonic() >= until:
                            if len(checkpoint.entries) >= AT_ONCE:
                                waiting.append(tenant_id)
                            break
                except CheckpointBroken as error:
                    broken = broken or error
                if time.monotonic() >= until:
                    break
            self._waiting = waiting
            file.flush()
            os.fsync(file.fileno())
            self._read_to = file.seek(0, os.SEEK_END)
            self._newest |= {one.tenant_id: one for one in written}
        return written, broken

    def _tenants(self, pool: Pool) -> deque[uuid.UUID]:
        return deque(tenant_id for (tenant_id,) in call_with_retry(pool, lambda c: c.execute(TENANTS).fetchall()))

    def _catch_up(self, file: BinaryIO, until: float) -> bool:
        """Index the lines that other processes wrote since, and return whether the end of the file was reached.

        `until` is a time of the monotonic clock.
        """
        found = os.fstat(file.fileno())
        if (found.st_dev, found.st_ino) != self._file or found.st_size < self._read_to:
            # The file was moved away or truncated: a new file begins with the first event again.
            self._file, self._read_to, self._newest, self._unread = (found.st_dev, found.st_ino), 0, {}, {}
        for tenant_id, offset, end in lines_of(file, self._read_to):
            self._read_to = end
            if tenant_id is not None:
                self._unread.setdefault(tenant_id, array("q")).append(offset)
            if time.monotonic() >= until:
                return False
        return True

    def _newest_of(self, tenant_id: uuid.UUID, file: BinaryIO) -> Checkpoint | None:
        """Return a tenant's newest complete checkpoint, or None; only this line is parsed with its events."""
        for newest in checkpoints_at(file, reversed(self._unread.pop(tenant_id, array("q")))):
            self._newest[tenant_id] = newest
            break
        return self._newest.get(tenant_id)

    def _new(self, pool: Pool, tenant_id: uuid.UUID, newest: Checkpoint | None) -> Iterator[Checkpoint]:
        head = newest.head if newest else TreeHead()
        last = newest.entries[-1] if newest else None
        while True:
            # Starts with the last checkpointed event, to check that it is still at its position.
            behind, wanted = max(head.size - 1, 0), AT_ONCE + (last is not None)
            rows = call_with_retry(
                pool, partial(logged_events_after, tenant_id=tenant_id, position=behind, most=wanted)
            )
            if last is not None:
                if not rows or rows[0].entry != last:
                    raise CheckpointBroken(
                        f"position {head.size} of tenant {tenant_id} no longer has event {last.event_id}, which {self._path} records there"
                    )
                rows = rows[1:]
            if not rows:
                return
            if [row.position for row in rows] != list(range(head.size + 1, head.size + 1 + len(rows))) or not all(
                row.hash for row in rows
            ):
                raise CheckpointBroken(f"the feed of tenant {tenant_id} has a gap after position {head.size}")
            head = head.extended(leaf_hashes(rows))
            last = rows[-1].entry
            yield Checkpoint(tenant_id, head, head.root.hex(), tuple(row.entry for row in rows))


def _ends_with_a_whole_line(file: BinaryIO) -> bool:
    """Return whether the file is empty or ends with a newline, so that its last line was not cut off."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(end - 1, 0))
    return file.read() in (b"", b"\n")


def leaf_hashes(rows: Sequence[LoggedEvent]) -> Iterator[bytes]:
    """Return the leaves of the Merkle tree: the events' hashes as stored, as ASCII bytes."""
    return (row.hash.encode() for row in rows)

"""Writes checkpoints each minute, and compares the event log with them for `sentinel doctor`.

Guarantee: an event that a checkpoint covers cannot be removed, inserted or rewritten undetected by somebody who can
change the database but not the file. Events newer than the newest checkpoint are not covered.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import structlog

from sentinel.authority.checkpoints import (
    Checkpoint,
    CheckpointBroken,
    CheckpointFile,
    LoggedEvent,
    checkpoints_at,
    leaf_hashes,
    logged_events,
    offsets_by_tenant,
)
from sentinel.core.merkle import TreeHead
from sentinel.store.database import Pool

EVERY_SECONDS = 60.0
ROUND_SECONDS = 0.2
"""How long one round may take: the other housekeeping steps run in the same thread."""
DIFFERENCES_KEPT = 1000
"""How many differences are kept as texts: a database restored to the state of a day ago differs in every event since."""

log = structlog.get_logger("sentinel.checkpoint")


class Checkpointer:
    """Appends checkpoints each minute and logs them. Each failure is counted by `count_failure`; equal ones are logged once."""

    def __init__(self, path: Path, *, count_failure: Callable[[], None] = lambda: None) -> None:
        self._file = CheckpointFile(path)
        self._count_failure = count_failure
        self._due = 0.0
        self._failing = ""
        self._is_broken = False
        """Whether a tenant's log differed since each of them last had its turn."""

    def round(self, pool: Pool) -> None:
        """Write checkpoints if they are due, for about ROUND_SECONDS; call it often. Raises `EngineUnavailable`."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + EVERY_SECONDS
        try:
            written, broken = self._file.append_some(pool, seconds=ROUND_SECONDS)
        except OSError as error:
            self._log_fault(f"the checkpoint file cannot be written: {error.strerror}")
            return
        for one in written:
            log.info("checkpoint", size=one.head.size, root=one.root)
        if broken is not None:
            self._log_fault(broken.detail)
            self._is_broken = True
        if self._file.is_behind:
            self._due = now
            return
        # Each tenant had its turn.
        if not self._is_broken:
            self._failing = ""
        self._is_broken = False

    def _log_fault(self, fault: str) -> None:
        self._count_failure()
        if fault != self._failing:
            log.error("checkpoint_failed", cause=fault)
        self._failing = fault


@dataclass(frozen=True, slots=True)
class CheckpointComparison:
    """The result of comparing the event log with a checkpoint file.

    `covered` is the number of events that checkpoints cover, `differences` has the first differences as texts, and
    `found` is the number of all differences.
    """

    covered: int
    differences: tuple[str, ...]
    found: int


def compare_checkpoints(connection: psycopg.Connection[Any], path: Path) -> CheckpointComparison:
    """Compare the event log with every checkpoint of a file, whose lines are read one at a time.

    The first `DIFFERENCES_KEPT` differences are kept as texts, the others only counted. Raises `CheckpointBroken` for a
    file that cannot be read.
    """
    covered, found = 0, 0
    differences: list[str] = []
    try:
        with path.open("rb") as file:
            by_tenant = offsets_by_tenant(file)
            if not by_tenant and file.tell() > 0:
                raise CheckpointBroken(f"{path} is not a checkpoint file, or none of its lines can be read")
            for tenant, offsets in by_tenant.items():
                for text in _differences(connection, tenant, checkpoints_at(file, offsets)):
                    found += 1
                    if found <= DIFFERENCES_KEPT:
                        differences.append(text)
                covered += sum(last.head.size for last in checkpoints_at(file, offsets[-1:]))
    except OSError as error:
        raise CheckpointBroken(f"the checkpoint file {path} cannot be read: {error.strerror}") from None
    return CheckpointComparison(covered, tuple(differences), found)


def _differences(connection: psycopg.Connection[Any], tenant: uuid.UUID, known: Iterable[Checkpoint]) -> Iterator[str]:
    rows = _Rows(logged_events(connection, tenant))
    head = TreeHead()
    for checkpoint in known:
        began = head.size
        if checkpoint.head.size != began + len(checkpoint.entries):
            yield f"the file does not have all events from position {began} to {checkpoint.head.size} of tenant {tenant}"
            return
        found = rows.take(len(checkpoint.entries))
        named = 0
        for position, (entry, row) in enumerate(zip(checkpoint.entries, found, strict=True), began + 1):
            if row is None or not row.hash or row.event_id != entry.event_id:
                yield f"event {entry.event_id} is gone, position {position} of tenant {tenant}"
                named += 1
            elif row.entry != entry:
                yield f"event {entry.event_id} was rewritten, position {position} of tenant {tenant}"
                named += 1
        there = [row for row in found if row is not None]
        extended = head.extended(leaf_hashes(there))
        if not named and extended.root.hex() != checkpoint.root:
            yield f"an event from position {began + 1} to {checkpoint.head.size} of tenant {tenant} was rewritten"
            named += 1
        # After a difference, continue from the checkpoint's own head: otherwise every later root would differ too.
        head = checkpoint.head if named else extended


class _Rows:
    """A tenant's events by consecutive positions; None for a position without an event."""

    def __init__(self, rows: Iterator[LoggedEvent]) -> None:
        self._rows, self._at = rows, 0
        self._ahead: LoggedEvent | None = next(rows, None)

    def take(self, number: int) -> list[LoggedEvent | None]:
        return [self._next() for _ in range(number)]

    def _next(self) -> LoggedEvent | None:
        self._at += 1
        if self._ahead is None or self._ahead.position > self._at:
            return None
        found, self._ahead = self._ahead, next(self._rows, None)
        return found

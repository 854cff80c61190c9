"""One reader of the feed per process, fanned out to every viewer of the live stream.

Viewers wait on memory, not on the database, so their number costs no queries. A viewer that comes with a last position, or
fell behind, gets what it missed, up to a bound. The reader stops when nobody watches.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from sentinel.core.errors import SentinelError, TooManyStreams
from sentinel.store.feed import FeedRow

POLL_SECONDS = 0.25
HEARTBEAT_SECONDS = 15.0
KEPT = 1000
CATCH_UP = 500
FIRST_SEEN = 20
_AWAKE_SECONDS = 1.0
_FAILURE_SECONDS = 1.0


class Hub:
    """`read_after(position, limit)` gives feed rows oldest first, `read_newest(limit)` newest first."""

    def __init__(
        self,
        read_after: Callable[[int, int], list[FeedRow]],
        read_newest: Callable[[int], list[FeedRow]],
        *,
        max_viewers: int,
        stopping: Callable[[], bool] = lambda: False,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._read_after = read_after
        self._read_newest = read_newest
        self._max_viewers = max_viewers
        self._stopping = stopping
        self._heartbeat_seconds = heartbeat_seconds
        self._news = threading.Condition()
        self._rows: deque[FeedRow] = deque(maxlen=KEPT)
        # Every public row behind `_floor` and up to `_position` is in `_rows`.
        self._floor = self._position = 0
        self._reader: threading.Thread | None = None
        self.viewers = 0

    def join(self) -> None:
        """Take a viewer's place; give it back with `leave`. Raises `TooManyStreams`."""
        with self._news:
            if self.viewers >= self._max_viewers:
                raise TooManyStreams("every place for a live stream is taken; try again later")
            self.viewers += 1

    def leave(self) -> None:
        """Give a place back."""
        with self._news:
            self.viewers -= 1

    def follow(self, last_seen: int | None) -> Iterator[FeedRow | None]:
        """Rows behind `last_seen` (None: the latest few) as they come, and None where a heartbeat is due."""
        newest = self._read_newest(FIRST_SEEN if last_seen is None else CATCH_UP)
        yield from _behind(newest, last_seen)
        # Not `last_seen`: a position that was never handed out must not become where everybody reads from.
        position = newest[0].position if newest else 0
        quiet_since = time.monotonic()
        while not self._stopping():
            self._start_reader(position)
            rows = self._next(position)
            if rows:
                yield from rows
                position, quiet_since = rows[-1].position, time.monotonic()
            elif time.monotonic() - quiet_since >= self._heartbeat_seconds:
                yield None
                quiet_since = time.monotonic()

    def _next(self, position: int) -> list[FeedRow]:
        with self._news:
            if self._position <= position:
                self._news.wait(timeout=min(_AWAKE_SECONDS, self._heartbeat_seconds))
            if position >= self._floor:
                return [row for row in self._rows if row.position > position]
        return _behind(self._read_newest(CATCH_UP), position)

    def _start_reader(self, position: int) -> None:
        with self._news:
            if self._reader is not None and self._reader.is_alive():
                return
            self._rows.clear()
            self._floor = self._position = position
            self._reader = threading.Thread(target=self._read, name="live-feed", daemon=True)
            self._reader.start()

    def _read(self) -> None:
        while True:
            with self._news:
                if self.viewers == 0 or self._stopping():
                    self._reader = None
                    self._news.notify_all()
                    return
                position = self._position
            try:
                rows = self._read_after(position, CATCH_UP)
            except SentinelError:
                time.sleep(_FAILURE_SECONDS)
                continue
            if rows:
                self._keep(rows)
            if len(rows) < CATCH_UP:
                time.sleep(POLL_SECONDS)

    def _keep(self, rows: list[FeedRow]) -> None:
        with self._news:
            for row in rows:
                if len(self._rows) == KEPT:
                    self._floor = self._rows[0].position
                self._rows.append(row)
            self._position = rows[-1].position
            self._news.notify_all()


def _behind(newest: list[FeedRow], position: int | None) -> list[FeedRow]:
    """Newest-first rows, turned around and cut to what is behind `position`; None cuts nothing."""
    return [row for row in reversed(newest) if position is None or row.position > position]

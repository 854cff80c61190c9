"""One reader of the feed per process, whose memory every viewer of the live stream is served from.

Viewers wait on memory, not on the database, so their number costs no queries. A viewer that comes with a last position gets what
it missed, up to a bound; one that fell behind gets what is kept. The reader stops when nobody watches. `stream.Stream` sends what
is read here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from ops_console.board.events import LiveEvent
from sentinel.core.errors import SentinelError, TooManyStreams

POLL_SECONDS = 0.25
HEARTBEAT_SECONDS = 15.0
KEPT = 1000
CATCH_UP = 500
FIRST_SEEN = 20
_FAILURE_SECONDS = 1.0


class Hub:
    """`read_after(position, limit)` gives published decisions oldest first, `read_newest(limit)` newest first, `read_status()` what each agent does."""

    def __init__(
        self,
        read_after: Callable[[int, int], list[LiveEvent]],
        read_newest: Callable[[int], list[LiveEvent]],
        *,
        read_status: Callable[[], dict[str, str]] = dict,
        max_viewers: int,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._read_after = read_after
        self._read_newest = read_newest
        self._read_status = read_status
        self.status: dict[str, str] | None = {}
        """Each agent's status by its name, at most a second old; None while the database cannot be read."""
        self._max_viewers = max_viewers
        self._stopping = stopping
        self._lock = threading.Lock()
        self._rows: deque[LiveEvent] = deque(maxlen=KEPT)
        # Every public row behind `_floor` and up to `_position` is in `_rows`.
        self._floor = self._position = self._count = 0
        self._reader: threading.Thread | None = None
        self.viewers = 0
        self.on_news: Callable[[], None] = lambda: None
        """Called by the reader when rows came; must not block."""

    @property
    def latest(self) -> tuple[int, int]:
        """The newest row's position, and how many rows were read up to it: a difference of two counts is what lies between."""
        with self._lock:
            return self._position, self._count

    def is_stopping(self) -> bool:
        """Whether the process drains."""
        return self._stopping()

    def join(self) -> None:
        """Take a viewer's place; give it back with `leave`. Raises `TooManyStreams`."""
        with self._lock:
            if self.viewers >= self._max_viewers:
                raise TooManyStreams("every place for a live stream is taken; try again later")
            self.viewers += 1

    def leave(self) -> None:
        """Give a place back."""
        with self._lock:
            self.viewers -= 1

    def come(self, last_seen: int | None) -> tuple[list[LiveEvent], tuple[int, int]]:
        """What a viewer gets first: rows behind `last_seen` (None: the latest few), and the `latest` that it is at then.

        From memory while the reader runs, so that a thousand viewers who come back at once cost no query.
        Raises `EngineUnavailable`.
        """
        with self._lock:
            reading, floor, latest = self._is_reading(), self._floor, (self._position, self._count)
            kept = list(self._rows)
        if reading and last_seen is None and (len(kept) >= FIRST_SEEN or floor == 0):
            return kept[-FIRST_SEEN:], latest
        if reading and last_seen is not None and last_seen >= floor:
            return _behind(kept, last_seen)[-CATCH_UP:], latest
        newest = self._read_newest(CATCH_UP)[::-1]
        # Not `last_seen`: a position that was never handed out must not become where anybody reads from.
        latest = newest[-1].position if newest else 0, self._start_reader(newest)
        return (newest[-FIRST_SEEN:] if last_seen is None else _behind(newest, last_seen)), latest

    def since(self, position: int) -> list[LiveEvent]:
        """The rows behind a position that are kept. Never asks the database."""
        with self._lock:
            return _behind(list(self._rows), position) if self._position > position else []

    def keep_reading(self) -> None:
        """Start the reader again if it died; it goes on where it was."""
        if not self._is_reading():
            self._start_reader(None)

    def _is_reading(self) -> bool:
        reader = self._reader
        return reader is not None and reader.is_alive()

    def _start_reader(self, newest: list[LiveEvent] | None) -> int:
        """Begin behind `newest`, the latest rows oldest first; None goes on where the last reader was. The count of `latest`."""
        with self._lock:
            if self._is_reading():
                return self._count
            if newest is not None:
                self._count += len(_behind(newest, self._position))  # what was read before is not counted again
                self._rows.clear()
                self._rows.extend(newest)
                self._floor = newest[0].position if len(newest) == CATCH_UP else 0
                self._position = newest[-1].position if newest else 0
            self._reader = threading.Thread(target=self._read, name="live-feed", daemon=True)
            self._reader.start()
            return self._count

    def _read(self) -> None:
        while True:
            with self._lock:
                if self.viewers == 0 or self._stopping():
                    self._reader = None
                    return
                position = self._position
            try:
                rows = self._read_after(position, CATCH_UP)
                self._tell(self._read_status())
            except SentinelError:
                self._tell(None)
                time.sleep(_FAILURE_SECONDS)
                continue
            if rows:
                self._keep(rows)
            if len(rows) < CATCH_UP:
                time.sleep(POLL_SECONDS)

    def _tell(self, status: dict[str, str] | None) -> None:
        if status != self.status:
            self.status = status
            self.on_news()

    def _keep(self, rows: list[LiveEvent]) -> None:
        with self._lock:
            for row in rows:
                if len(self._rows) == KEPT:
                    self._floor = self._rows[0].position
                self._rows.append(row)
            self._position = rows[-1].position
            self._count += len(rows)
        self.on_news()


def _behind(rows: list[LiveEvent], position: int) -> list[LiveEvent]:
    """Rows, oldest first, cut to what is behind `position`."""
    return [row for row in rows if row.position > position]

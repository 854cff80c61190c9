"""One reader of the feed per process: every viewer of the live stream is served from its memory.

Viewers do not query the database while the reader runs, so their number costs nothing there. The reader publishes a
bounded number of decisions a second, the latest, and only counts the rest. A viewer that reconnects with its last
position gets what it missed, up to a bound, and the number of those left out; so does one that fell behind the rows
that are kept. The reader stops when there are no viewers. `stream.Stream` sends what is read here.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable

from ops_console.board.events import LiveEvent, Looked
from sentinel.core.errors import SentinelError, TooManyStreams

POLL_SECONDS = 0.25
FLOOD_SECONDS = 1.0
"""Between two reads while decisions come faster than they are published: each read is followed by a write to every viewer."""
READ_PER_SECOND = 100
HEARTBEAT_SECONDS = 15.0
KEPT = 1000
CATCH_UP = 500
FIRST_SEEN = 20
_FAILURE_SECONDS = 1.0


class Hub:
    """The shared state of one process's viewers, and the thread that reads the feed for them.

    `read_after(position, limit)` returns the latest decisions after a position, oldest first; `read_newest(limit)` the
    newest decisions, newest first; `read_status()` each agent's status by its name.
    """

    def __init__(
        self,
        read_after: Callable[[int, int], Looked],
        read_newest: Callable[[int], Looked],
        *,
        read_status: Callable[[], dict[str, str]] = dict,
        max_viewers: int,
        most_of_address: int,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._read_after = read_after
        self._read_newest = read_newest
        self._read_status = read_status
        self._status: dict[str, str] | None = {}
        self._max_viewers, self._most_of_address = max_viewers, most_of_address
        self._of_network: Counter[str] = Counter()
        self._stopping = stopping
        self._lock = threading.Lock()
        self._of: tuple[uuid.UUID, int] | None = None
        """The tenant whose decisions are kept, and the number of its feed's history; None before the first read."""
        self.tenant_label = ""
        """The name on the board of the tenant whose decisions are read; "" before the first read."""
        self.begun = 0
        """How often the tenant or the feed's history changed: a stream that was opened before such a change ends."""
        self.looks = 0
        """How many reads of the feed were completed."""
        # Each row with the count of decisions up to and including it; `_count_before` is the count before the first
        # row.
        self._rows: deque[tuple[LiveEvent, int]] = deque(maxlen=KEPT)
        # `_looked` is the position where reading continues. It may be beyond `_position`, the newest row's: positions
        # of events that the board does not show are not read again.
        self._count_before = self._position = self._count = self._looked = 0
        self._may_read, self._read_at = float(CATCH_UP), 0.0
        self._reader: threading.Thread | None = None
        self.viewers = 0
        self.on_news: Callable[[], None] = lambda: None
        """Called by the reader thread when there are new rows or a new status; must not block."""

    @property
    def latest(self) -> tuple[int, int]:
        """The newest row's position, and the count of rows up to it. The difference of two counts is the number of rows between."""
        with self._lock:
            return self._position, self._count

    @property
    def status(self) -> dict[str, str] | None:
        """Each agent's status by its name, at most a second old; None while the database cannot be read. Empty before the
        reader has read it, and when no reader runs: a status from when somebody last watched would be stale.
        """
        return self._status if self._is_reading() else {}

    @property
    def looked(self) -> int:
        """The position up to which the feed was last read, whether or not there was something to show."""
        return self._looked

    def is_stopping(self) -> bool:
        """Whether the process is shutting down."""
        return self._stopping()

    def join(self, network: str) -> None:
        """Admit a viewer from this network (`network_of`); `leave` must follow. Raises `TooManyStreams`."""
        with self._lock:
            if self.viewers >= self._max_viewers:
                raise TooManyStreams("the maximum number of live streams is open; try again later")
            if self._of_network[network] >= self._most_of_address:
                raise TooManyStreams(
                    "this address has the maximum number of live streams open; close one or try again later"
                )
            self.viewers += 1
            self._of_network[network] += 1

    def leave(self, network: str) -> None:
        """Release the place of a viewer from this network."""
        with self._lock:
            self.viewers -= 1
            self._of_network[network] -= 1
            if not self._of_network[network]:
                del self._of_network[network]

    def come(self, last_seen: int | None) -> tuple[list[LiveEvent], tuple[int, int], int]:
        """Return what a new viewer gets first: the rows after `last_seen` (None: the latest few), the `latest` that it
        has then reached, and how many rows after `last_seen` it is not sent. Rows before the oldest kept one are not
        counted.

        Served from memory while the reader runs, whatever `last_seen` is, so that a thousand viewers who reconnect at
        once, or one that reconnects a thousand times, cost no query. Raises `EngineUnavailable`.
        """
        kept = self._kept_behind(last_seen)
        if kept is not None:
            return kept
        looked = self._read_newest(CATCH_UP)
        newest = looked.events[::-1]
        # Not `last_seen`: a viewer may send any number, and the reader must not continue from a position we never sent.
        latest = newest[-1].position if newest else 0, self._start_reader(looked)
        return (newest[-FIRST_SEEN:] if last_seen is None else _behind(newest, last_seen)), latest, 0

    def _kept_behind(self, last_seen: int | None) -> tuple[list[LiveEvent], tuple[int, int], int] | None:
        """Return the answer of `come` from the rows in memory; None if no reader runs."""
        with self._lock:
            if not self._is_reading():
                return None
            latest, before = (self._position, self._count), self._count_before
            kept, counts = [row for row, _ in self._rows], [at for _, at in self._rows]
        if last_seen is None:
            return kept[-FIRST_SEEN:], latest, 0
        missed = _behind(kept, last_seen)
        given = missed[-CATCH_UP:]
        seen = before if len(missed) == len(kept) else counts[-len(missed) - 1]
        return given, latest, max(0, latest[1] - seen - len(given)) if last_seen < latest[0] else 0

    def since(self, position: int) -> list[LiveEvent]:
        """Return the kept rows after a position. Never queries the database."""
        with self._lock:
            return _behind([row for row, _ in self._rows], position) if self._position > position else []

    def keep_reading(self) -> None:
        """Start a new reader thread if the last one died; it continues at the same position."""
        if not self._is_reading():
            self._start_reader(None)

    def _is_reading(self) -> bool:
        reader = self._reader
        return reader is not None and reader.is_alive()

    def _start_reader(self, newest: Looked | None) -> int:
        """Start the reader unless it runs: after the rows of `newest`, or, with None, where the last reader stopped.

        Returns the count of `latest`.
        """
        with self._lock:
            if self._is_reading():
                return self._count
            if newest is not None:
                self._begin(newest)
            self._status = {}
            self._reader = threading.Thread(target=self._read, name="live-feed", daemon=True)
            self._reader.start()
            return self._count

    def _begin(self, looked: Looked) -> None:
        """Replace the kept rows by those of `looked`, which are newest first. The caller holds the lock."""
        newest = looked.events[::-1]
        of = (looked.tenant_id, looked.history)
        if self._of not in (None, of):
            self.begun += 1
            self._position = 0
        self._of, self.tenant_label = of, looked.tenant_label
        self._count += len(_behind(newest, self._position))  # rows that were read before are not counted twice
        self._rows.clear()
        self._rows.extend(zip(newest, range(self._count - len(newest) + 1, self._count + 1), strict=True))
        self._count_before = self._count - len(newest)
        self._position, self._looked = newest[-1].position if newest else 0, looked.position
        self.looks += 1

    def _read(self) -> None:
        while True:
            with self._lock:
                if self.viewers == 0 or self._stopping():
                    self._reader = None
                    return
                position = self._looked
            try:
                found = self._read_after(position, self._allowed())
                if (found.tenant_id, found.history) == self._of:
                    self._keep(found)
                else:  # positions are meaningless in another tenant's feed, and in the same feed after a restore
                    self._begin_anew(self._read_newest(CATCH_UP))
                self._tell(self._read_status())
                if found.left_out:
                    time.sleep(FLOOD_SECONDS / 2)
                    self._tell(self._read_status())  # a halt is shown without waiting for the next read
            except SentinelError:
                self._tell(None)
                time.sleep(_FAILURE_SECONDS)
                continue
            time.sleep(FLOOD_SECONDS / 2 if found.left_out else POLL_SECONDS)

    def _begin_anew(self, looked: Looked) -> None:
        with self._lock:
            self._begin(looked)
        self.on_news()

    def _allowed(self) -> int:
        """Return how many decisions may be published now: a token bucket of `CATCH_UP`, refilled by `READ_PER_SECOND`."""
        now = time.monotonic()
        self._may_read = min(CATCH_UP, self._may_read + (now - self._read_at) * READ_PER_SECOND)
        self._read_at = now
        return max(1, int(self._may_read))

    def _tell(self, status: dict[str, str] | None) -> None:
        if status != self._status:
            self._status = status
            self.on_news()

    def _keep(self, looked: Looked) -> None:
        """Append the rows of one read. `looked.left_out` older ones were counted but not read."""
        with self._lock:
            self._looked, self.tenant_label = looked.position, looked.tenant_label
            self._may_read -= len(looked.events)
            if looked.events:
                self._count += looked.left_out
                for row in looked.events:
                    if len(self._rows) == KEPT:
                        self._count_before = self._rows[0][1]
                    self._count += 1
                    self._rows.append((row, self._count))
                self._position = looked.events[-1].position
            self.looks += 1
        if looked.events:
            self.on_news()


def _behind(rows: list[LiveEvent], position: int) -> list[LiveEvent]:
    """Return the rows after `position`, in the same order."""
    return [row for row in rows if row.position > position]

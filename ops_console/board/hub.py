"""One reader of the feed per process, whose memory every viewer of the live stream is served from.

Viewers wait on memory, not on the database, so their number costs no queries, and the reader takes a bounded number of decisions a
second, the latest, and counts the others. A viewer that comes with a last position gets what it missed, up to a bound, and is
told how many it gets no more; so is one that fell behind what is kept. The reader stops when nobody watches. `stream.Stream`
sends what is read here.
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
"""Between two looks while decisions come faster than they are read: each look is a write to every viewer."""
READ_PER_SECOND = 100
HEARTBEAT_SECONDS = 15.0
KEPT = 1000
CATCH_UP = 500
FIRST_SEEN = 20
_FAILURE_SECONDS = 1.0


class Hub:
    """`read_after(position, limit)` gives the latest published decisions oldest first, `read_newest(limit)` newest first,
    each with how far it looked; `read_status()` what each agent does.
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
        """Whose decisions are kept: a tenant, and the number of its feed's history."""
        self.tenant_label = ""
        """How the board names the tenant whose decisions are read; "" before the first look."""
        self.begun = 0
        """How often it began with another tenant or another history of the feed: a stream that is of the one before ends."""
        self.looks = 0
        """How many looks at the feed came to their end."""
        # A row and how many were counted up to it; `_count_before` is how many up to the first one, without it.
        self._rows: deque[tuple[LiveEvent, int]] = deque(maxlen=KEPT)
        # `_looked` is where reading goes on: what was looked through and is not shown is not looked through again.
        self._count_before = self._position = self._count = self._looked = 0
        self._may_read, self._read_at = float(CATCH_UP), 0.0
        self._reader: threading.Thread | None = None
        self.viewers = 0
        self.on_news: Callable[[], None] = lambda: None
        """Called by the reader when rows came; must not block."""

    @property
    def latest(self) -> tuple[int, int]:
        """The newest row's position, and how many rows were counted up to it: a difference of two counts is what lies between."""
        with self._lock:
            return self._position, self._count

    @property
    def status(self) -> dict[str, str] | None:
        """Each agent's status by its name, at most a second old; None while the database cannot be read. Empty before the
        reader read it first, and when there is no reader: what was true when somebody last watched is told to nobody.
        """
        return self._status if self._is_reading() else {}

    @property
    def looked(self) -> int:
        """The position up to which the last of the `looks` went, whatever stood there."""
        return self._looked

    def is_stopping(self) -> bool:
        """Whether the process drains."""
        return self._stopping()

    def join(self, network: str) -> None:
        """Count a viewer of this network (`network_of`) in; `leave` counts it out. Raises `TooManyStreams`."""
        with self._lock:
            if self.viewers >= self._max_viewers:
                raise TooManyStreams("every place for a live stream is taken; try again later")
            if self._of_network[network] >= self._most_of_address:
                raise TooManyStreams(
                    "this address has as many live streams open as one may; close one or try again later"
                )
            self.viewers += 1
            self._of_network[network] += 1

    def leave(self, network: str) -> None:
        """Count a viewer of this network out."""
        with self._lock:
            self.viewers -= 1
            self._of_network[network] -= 1
            if not self._of_network[network]:
                del self._of_network[network]

    def come(self, last_seen: int | None) -> tuple[list[LiveEvent], tuple[int, int], int]:
        """What a viewer gets first: rows behind `last_seen` (None: the latest few), the `latest` that it is at then, and how
        many rows behind `last_seen` it does not get, as far as it is still known where they stood: those before the oldest
        row that is kept are not told.

        From memory while the reader runs, whatever `last_seen` is, so that a thousand viewers who come back at once, or one
        that comes a thousand times, cost no query. Raises `EngineUnavailable`.
        """
        kept = self._kept_behind(last_seen)
        if kept is not None:
            return kept
        looked = self._read_newest(CATCH_UP)
        newest = looked.events[::-1]
        # Not `last_seen`: a position that was never handed out must not become where anybody reads from.
        latest = newest[-1].position if newest else 0, self._start_reader(looked)
        return (newest[-FIRST_SEEN:] if last_seen is None else _behind(newest, last_seen)), latest, 0

    def _kept_behind(self, last_seen: int | None) -> tuple[list[LiveEvent], tuple[int, int], int] | None:
        """What `come` gives of the rows that are kept; None where no reader runs."""
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
        """The rows behind a position that are kept. Never asks the database."""
        with self._lock:
            return _behind([row for row, _ in self._rows], position) if self._position > position else []

    def keep_reading(self) -> None:
        """Start the reader again if it died; it goes on where it was."""
        if not self._is_reading():
            self._start_reader(None)

    def _is_reading(self) -> bool:
        reader = self._reader
        return reader is not None and reader.is_alive()

    def _start_reader(self, newest: Looked | None) -> int:
        """Begin behind the newest rows; None goes on where the last reader was. The count of `latest`."""
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
        """Keep these rows, newest first, and no others; the lock is held."""
        newest = looked.events[::-1]
        of = (looked.tenant_id, looked.history)
        if self._of not in (None, of):
            self.begun += 1
            self._position = 0
        self._of, self.tenant_label = of, looked.tenant_label
        self._count += len(_behind(newest, self._position))  # what was read before is not counted again
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
                else:  # a position of one tenant's feed says nothing about another's, nor about the same one once it was restored
                    self._begin_anew(self._read_newest(CATCH_UP))
                self._tell(self._read_status())
                if found.left_out:
                    time.sleep(FLOOD_SECONDS / 2)
                    self._tell(self._read_status())  # who is halted is told as soon as ever
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
        """How many decisions may be read now: `CATCH_UP` in a burst, `READ_PER_SECOND` for long."""
        now = time.monotonic()
        self._may_read = min(CATCH_UP, self._may_read + (now - self._read_at) * READ_PER_SECOND)
        self._read_at = now
        return max(1, int(self._may_read))

    def _tell(self, status: dict[str, str] | None) -> None:
        if status != self._status:
            self._status = status
            self.on_news()

    def _keep(self, looked: Looked) -> None:
        """Keep what one look found: rows, before which so many others were counted and not read."""
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
    """Rows, oldest first, cut to what is behind `position`."""
    return [row for row in rows if row.position > position]

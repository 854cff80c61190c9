"""gunicorn's event-loop worker for all our servers, with our protocol on its connections and a clean shutdown.

Besides the protocol (`http_protocol.py`) it adds two things: a new connection is left to a process that holds fewer,
and at shutdown connections between two requests are closed at once, so that the process waits only for requests in
progress.
"""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import time
from typing import Any

from gunicorn.workers.gasgi import ASGIWorker
from uvicorn.config import Config
from uvicorn.server import ServerState

from sentinel.platform.http.wire import date_header
from sentinel.platform.serving.connection_bounds import Connections
from sentinel.platform.serving.http_protocol import KEEP_ALIVE_SECONDS, HttpProtocol

HEARTBEAT_SECONDS = 1.0
_NO_ROOM = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class SharedCounts:
    """A mixin for a worker class: keeps `nr_conns` in memory that the other processes see.

    The process that accepts a keep-alive connection serves it to its end: without balancing, one process would be full
    and another idle.
    """

    SLOTS = 128
    ABSENT = 2**31 - 1
    counts: memoryview
    """One count per slot; `ABSENT`, more than any process holds, marks a free slot. Made by the master before it forks."""
    _slot: int

    def take_slot(self) -> None:
        """Take a slot that no living process has. Called in the master, before the worker sets its first count.

        Only the master takes slots, so no lock is needed. Processes beyond `SLOTS` share the last one.
        """
        free = (slot for slot, number in enumerate(self.counts) if number == self.ABSENT)
        self._slot = next(free, self.SLOTS - 1)

    @property
    def nr_conns(self) -> int:
        """Connections this process holds."""
        return int(self.counts[self._slot])

    @nr_conns.setter
    def nr_conns(self, number: int) -> None:
        self.counts[self._slot] = number

    def has_more_than_another(self) -> bool:
        """Whether some process holds fewer connections than this one, not counting a difference of up to a sixteenth."""
        held = self.held
        return held - held // 16 > min(self.counts)

    @property
    def held(self) -> int:
        """Connections of this process."""
        return self.nr_conns

    @classmethod
    def share_counts(cls) -> None:
        """Make the shared memory. Called in the master, before it forks."""
        cls.counts = memoryview(mmap.mmap(-1, cls.SLOTS * 4)).cast("i")
        for slot in range(cls.SLOTS):
            cls.counts[slot] = cls.ABSENT

    def forget(self) -> None:
        """Free the slot of this process, which has ended. Called in the master."""
        self.counts[self._slot] = self.ABSENT


class _Acceptor:
    """Accepts connections from one listening socket, balanced with the other processes."""

    AT_ONCE = 32
    HOLD_BACK_SECONDS = 0.005
    LOOK_AGAIN_SECONDS = 0.0005
    NO_ROOM_SECONDS = 0.25
    """The pause after the system had no file descriptor or memory for another connection."""

    def __init__(self, worker: EventWorker, listener: Any) -> None:
        self._worker = worker
        self._listener = listener
        self._held_back_at: float | None = None
        self._again: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        worker.loop.add_reader(listener.fileno(), self._ready)

    def _ready(self) -> None:
        """Accept pending connections, unless another process has fewer; after a few milliseconds in any case."""
        for _ in range(self.AT_ONCE):
            if self._worker.has_more_than_another() and self._yields_to_others():
                return
            self._held_back_at = None
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                # Other errors are expected: another process was faster, or the client is gone.
                if error.errno in _NO_ROOM:
                    self._worker.log.warning("no connection is taken: %s", error.strerror)
                    self._look_later(self.NO_ROOM_SECONDS)
                return
            connection.setblocking(False)
            self._worker.keep(self._worker.loop.connect_accepted_socket(lambda: HttpProtocol(self._worker), connection))

    def _yields_to_others(self) -> bool:
        now = time.monotonic()
        self._held_back_at = self._held_back_at or now
        if now - self._held_back_at >= self.HOLD_BACK_SECONDS:
            return False
        self._look_later(self.LOOK_AGAIN_SECONDS)
        return True

    def _look_later(self, seconds: float) -> None:
        # A reader left on a listener with pending connections would be called again at once, and keep the CPU busy.
        self._worker.loop.remove_reader(self._listener.fileno())
        self._again = self._worker.loop.call_later(seconds, self._look_again)

    def _look_again(self) -> None:
        self._again = None
        self._worker.loop.add_reader(self._listener.fileno(), self._ready)
        self._ready()

    def close(self) -> None:
        """Accept no more connections."""
        if self._again is not None:
            self._again.cancel()
        else:
            self._worker.loop.remove_reader(self._listener.fileno())

    async def wait_closed(self) -> None:
        """Return at once: `close` has closed it."""


def protocol_config(app: Any) -> Config:
    """The configuration that uvicorn's protocol reads: the ASGI app, no logging, no trust in proxy headers, no WebSockets."""
    config = Config(
        app, interface="asgi3", lifespan="off", ws="none", log_config=None, access_log=False, proxy_headers=False,
        server_header=False, date_header=False, timeout_keep_alive=int(KEEP_ALIVE_SECONDS),
    )  # fmt: skip
    config.load()
    return config


class EventWorker(SharedCounts, ASGIWorker):  # type: ignore[misc]
    """One process: an event loop, its connections, and the ASGI app that `Server` sets as `asgi`."""

    alive: bool
    connections: Connections
    """Made by `Server` with its bounds, after the fork."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.take_slot()
        self._opening: set[asyncio.Task[Any]] = set()
        self._ending: asyncio.Event | None = None
        super().__init__(*arguments, **named)

    @property
    def held(self) -> int:
        """Connections of this process, including those that are being set up."""
        return self.nr_conns + len(self._opening)

    def keep(self, opening: Any) -> None:
        """Run the coroutine that sets up a connection, and keep its task: the loop itself holds tasks only weakly."""
        task = self.loop.create_task(opening)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def handle_exit_signal(self) -> None:
        """SIGTERM: stop after the requests in progress."""
        super().handle_exit_signal()
        self._wake()

    def handle_quit_signal(self) -> None:
        """SIGINT, SIGQUIT: stop at once."""
        super().handle_quit_signal()
        self._wake()

    def _wake(self) -> None:
        if self._ending is not None:
            self._ending.set()

    async def _serve(self) -> None:
        """Serve until asked to stop, or the master process has ended."""
        self._ending = asyncio.Event()
        self.protocol_config, self.server_state = protocol_config(self.asgi), ServerState()
        self.servers = [_Acceptor(self, one.sock) for one in self.sockets]
        while self.alive and self.ppid == os.getppid():
            self.notify()
            self.server_state.default_headers = [(b"date", date_header())]
            try:
                await asyncio.wait_for(self._ending.wait(), HEARTBEAT_SECONDS)
            except TimeoutError:
                continue
        self.alive = False
        closing = self.loop.create_task(self._close_idle())
        await self._shutdown()
        closing.cancel()

    async def _close_idle(self) -> None:
        """Close connections between two requests, again and again while requests in progress are finished."""
        while True:
            for connection in self.connections.waiting():
                connection.end()
            await asyncio.sleep(0.02)

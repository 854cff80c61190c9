"""gunicorn's event-loop worker for the authority: connections spread over the processes, a prompt and clean end.

Two things are added to it: a new connection is left to a process that holds fewer, and at the end connections between
two requests are closed at once, so that only requests in hand are waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from gunicorn.asgi.protocol import ASGIProtocol
from gunicorn.workers.gasgi import ASGIWorker

from sentinel.connection_counts import SharedCounts
from sentinel.http.problems import unread_problem
from sentinel.http.request_ids import request_id_of

HEARTBEAT_SECONDS = 1.0
GONE_MILLISECONDS = 30_000


class _Connection(ASGIProtocol):  # type: ignore[misc]
    """A connection that its worker knows; a client that never gets its first request out is not waited for either."""

    def connection_made(self, transport: Any) -> None:
        """Begin, with the keep-alive's time for the first request too."""
        super().connection_made(transport)
        # A client that went away without a word is noticed by what it does not acknowledge.
        with contextlib.suppress(OSError, AttributeError):
            transport.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_MILLISECONDS
            )
        self.worker.connections.add(self)
        self._arm_keepalive_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self.worker.connections.discard(self)
        super().connection_lost(exc)

    def _send_error_response(self, status: int, message: str, extra_headers: Iterable[tuple[str, str]] = ()) -> None:
        """Answer what could not be read as a request with a problem document, in gunicorn's own words."""
        environ: dict[str, Any] = {}
        body, status, content_type, headers = unread_problem(status, message, request_id_of(environ))
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"Content-Type: {content_type}"]
        named = {"X-Request-ID": request_id_of(environ), **headers, **dict(extra_headers)}
        lines += [f"{name}: {value}" for name, value in named.items()]
        lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
        self._safe_write("\r\n".join(lines).encode("latin-1") + body)

    @property
    def is_idle(self) -> bool:
        """Whether it is between two requests."""
        return bool(self._awaiting_request)

    def close(self) -> None:
        """Close it now."""
        self._keepalive_timeout()


class _Acceptor:
    """Takes connections off one listening socket, in turn with the other processes."""

    HOLD_BACK_SECONDS = 0.005
    LOOK_AGAIN_SECONDS = 0.0005

    def __init__(self, worker: EventWorker, listener: Any) -> None:
        self._worker = worker
        self._listener = listener
        self._held_back_at: float | None = None
        self._again: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        worker.loop.add_reader(listener.fileno(), self._ready)

    def _ready(self) -> None:
        """Accept, unless another has fewer; after a few milliseconds in any case, for the other may be stuck."""
        now = time.monotonic()
        if self._worker.has_more_than_another():
            self._held_back_at = self._held_back_at or now
            if now - self._held_back_at < self.HOLD_BACK_SECONDS:
                self._worker.loop.remove_reader(self._listener.fileno())
                self._again = self._worker.loop.call_later(self.LOOK_AGAIN_SECONDS, self._look_again)
                return
        self._held_back_at = None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # another process was faster, or the client is gone
        connection.setblocking(False)
        self._worker.keep(self._worker.loop.connect_accepted_socket(lambda: _Connection(self._worker), connection))

    def _look_again(self) -> None:
        self._again = None
        self._worker.loop.add_reader(self._listener.fileno(), self._ready)
        self._ready()

    def close(self) -> None:
        """Take no more."""
        if self._again is not None:
            self._again.cancel()
        else:
            self._worker.loop.remove_reader(self._listener.fileno())

    async def wait_closed(self) -> None:
        """It is."""


class EventWorker(SharedCounts, ASGIWorker):  # type: ignore[misc]
    """One process: an event loop, its connections, and the ASGI app that `Server` puts in as `asgi`."""

    alive: bool

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.take_slot(arguments[0])
        self.connections: set[_Connection] = set()
        self._opening: set[asyncio.Task[Any]] = set()
        self._ending: asyncio.Event | None = None
        super().__init__(*arguments, **named)

    @classmethod
    def check_config(cls, cfg: Any, log: Any) -> None:
        """The threads of the configuration are the WSGI app's; nothing to warn of."""

    def keep(self, opening: Any) -> None:
        """Hold on to a connection that is being set up: the loop itself forgets its tasks."""
        task = self.loop.create_task(opening)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def handle_exit_signal(self) -> None:
        """SIGTERM: end, waiting for requests in hand."""
        super().handle_exit_signal()
        self._wake()

    def handle_quit_signal(self) -> None:
        """SIGINT, SIGQUIT: end at once."""
        super().handle_quit_signal()
        self._wake()

    def _wake(self) -> None:
        if self._ending is not None:
            self._ending.set()

    async def _serve(self) -> None:
        """Serve until told to stop, or the master is gone."""
        self._ending = asyncio.Event()
        self.servers = [_Acceptor(self, one.sock) for one in self.sockets]
        while self.alive and self.ppid == os.getppid():
            self.notify()
            try:
                await asyncio.wait_for(self._ending.wait(), HEARTBEAT_SECONDS)
            except TimeoutError:
                continue
        self.alive = False
        closing = self.loop.create_task(self._close_idle())
        await self._shutdown()
        closing.cancel()

    async def _close_idle(self) -> None:
        """Close what is between two requests, again and again while the rest is waited for."""
        while True:
            for connection in [one for one in self.connections if one.is_idle]:
                connection.close()
            await asyncio.sleep(0.02)

"""The proxy's HTTP listener: uvicorn's h11 protocol with the bounds and deadlines of the other programs' listeners.

The client-only distribution has h11, but neither Flask nor httptools, so the other programs' protocol cannot be used
here. As there, an idle connection is closed to make room for a new one, and the connections of one address are bounded.
A client has HEAD_SECONDS to send a head and BODY_SECONDS to send a body, even if it trickles bytes, and must read its
answers (`connection_flow.py`). A connection whose request is being answered, also by a stream, is never closed for
another one.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sentinel.core.hosts import network_of
from sentinel.mcp_proxy.options import CONNECTIONS
from sentinel.platform.serving.connection_bounds import BoundedConnection, Connections, Stage
from sentinel.platform.serving.connection_flow import ConnectionFlow

HEAD_SECONDS = 10.0
BODY_SECONDS = 60.0
"""Longer than the authority allows for a guard request's body: a tool's arguments may be four megabytes."""
_OTHER_FILES = 1_500
"""Open files needed beside the agents' connections: connections to the authority and to the upstream."""


def listener_config(
    app: Any, host: str, port: int, connections_per_address: int, *, connections: int = CONNECTIONS,
    longest_answer_seconds: int | None = None,
) -> uvicorn.Config:  # fmt: skip
    """Return the uvicorn configuration that serves `app`, with at most so many connections in all and from one address.

    Shutdown waits up to `longest_answer_seconds` for answers in progress; None: without a limit.
    """
    most = _with_files_for(connections)
    bounds = Connections(most, min(connections_per_address, most))
    return uvicorn.Config(
        app, host=host, port=port, log_level="warning", access_log=False, interface="asgi3", ws="none",
        http=partial(BoundedProtocol, bounds),  # type: ignore[arg-type]
        timeout_graceful_shutdown=longest_answer_seconds,
    )  # fmt: skip


def _with_files_for(connections: int) -> int:
    """Raise the limit of open files for so many connections; return how many there may be, fewer where the machine's limit is lower."""
    try:
        import resource
    except ImportError:  # a system that has no such limit
        return connections
    wanted = connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return min(connections, max(allowed // 2, 1))


class ProxyListener(uvicorn.Server):
    """Serves until `ending` is set, and then finishes the answers in progress."""

    def __init__(self, config: uvicorn.Config, ending: asyncio.Event) -> None:
        super().__init__(config)
        self._ending = ending

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals: uvicorn would raise a captured signal again, which ends the process before calls in flight are finished."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Return whether to shut down; uvicorn calls this ten times a second."""
        if self._ending.is_set() and not self.should_exit:
            self.handle_exit(signal.SIGTERM, None)  # the SDK's session streams react to it too
        return await super().on_tick(counter)


class BoundedProtocol(BoundedConnection, H11Protocol):
    """One connection, counted in `bounds`."""

    def __init__(self, bounds: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._bounds = bounds

    def connection_made(self, transport: Any) -> None:
        """Serve the connection, or close it where the process or its address has too many."""
        peer = transport.get_extra_info("peername")
        self.network = network_of(str(peer[0]) if peer else "")
        if not self._bounds.admit(self):
            transport.abort()
            return
        super().connection_made(transport)
        self.flow = ConnectionFlow(transport, self._has_waiting, self.loop)
        self._due_in(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the connection's place; a call in flight continues."""
        self._due_in(None)
        self._bounds.gone(self)
        if self.transport is not None:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received bytes. A request that they leave incomplete has a deadline, which further bytes do not extend."""
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # a malformed body, whose head is answered already
            self.transport.abort()
        self._see_stage()

    def on_response_complete(self) -> None:
        """Continue reading after the app has answered a request."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self.flow.resume_reading()  # a pipelined request has begun by now; reads on unless another one waits
            self._see_stage()

    def _has_waiting(self) -> bool:
        """Return whether a pipelined request waits for the one before it to be answered."""
        return self.conn.their_state is h11.DONE and bool(self.conn.trailing_data[0])

    def _see_stage(self) -> None:
        """Record the connection's stage, and set the deadline by which its client must continue."""
        if self.transport.is_closing():
            return
        seconds: float | None
        if self.conn.their_state is h11.SEND_BODY:
            stage, seconds = Stage.BODY, BODY_SECONDS
        elif self.cycle is not None and not self.cycle.response_complete:
            stage, seconds = Stage.ANSWERED, None
        elif self.conn.trailing_data[0]:
            stage, seconds = Stage.NEW, HEAD_SECONDS
        else:
            stage, seconds = Stage.IDLE, self.timeout_keep_alive
        if stage is not self.stage:
            self._bounds.moved(self, stage)
            self.stage = stage
            self._due_in(seconds)

"""The proxy's connections over HTTP: uvicorn's protocol with the bounds and deadlines that the other programs' listeners have.

The agents' distribution has h11 alone, and neither Flask nor httptools, so this is not the others' protocol. As there, a connection
that asks for nothing makes room for a new one, whose address has at most so many; a client has HEAD_SECONDS for a head and
BODY_SECONDS for a body, however it trickles, and must take its answers (`connection_flow.py`). What is being answered, a stream
too, is never closed for another.
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
"""Longer than for a decision's body: a tool's arguments may be four megabytes."""
_OTHER_FILES = 1_500
"""Open files beside the agents' connections: those to the authority and to the server."""


def listener_config(
    app: Any, host: str, port: int, connections_per_address: int, *, connections: int = CONNECTIONS,
    longest_answer_seconds: int | None = None,
) -> uvicorn.Config:  # fmt: skip
    """How `app` is served there: at most so many connections in all and of one address. At the end answers are waited for that long; None: for ever."""
    most = _with_files_for(connections)
    bounds = Connections(most, min(connections_per_address, most))
    return uvicorn.Config(
        app, host=host, port=port, log_level="warning", access_log=False, interface="asgi3", ws="none",
        http=partial(BoundedProtocol, bounds),  # type: ignore[arg-type]
        timeout_graceful_shutdown=longest_answer_seconds,
    )  # fmt: skip


def _with_files_for(connections: int) -> int:
    """Raise the limit of open files for so many connections; as many as there may be where the machine allows fewer."""
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
    """Serves until `ending` is set, and then until what is being answered is."""

    def __init__(self, config: uvicorn.Config, ending: asyncio.Event) -> None:
        super().__init__(config)
        self._ending = ending

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none: uvicorn raises a captured signal again, which ends the process before calls under way are finished."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Whether to end; asked ten times a second."""
        if self._ending.is_set() and not self.should_exit:
            self.handle_exit(signal.SIGTERM, None)  # which the SDK's streams of sessions look at too
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
        """End; a call that is under way goes on."""
        self._due_in(None)
        self._bounds.gone(self)
        if self.transport is not None:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes: whatever they leave open has a deadline that more of them does not move."""
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # a body that cannot be read, after the answer to its head
            self.transport.abort()
        self._see_stage()

    def on_response_complete(self) -> None:
        """The app has answered."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self.flow.resume_reading()  # a request that waited has begun by now, unless another one waits behind it
            self._see_stage()

    def _has_waiting(self) -> bool:
        """Whether a request waits for the end of the one before it."""
        return self.conn.their_state is h11.DONE and bool(self.conn.trailing_data[0])

    def _see_stage(self) -> None:
        """What the connection is doing now, and by when its client must have gone on."""
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

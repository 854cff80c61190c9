"""Back-pressure on one connection: when more of it is read, and how long its client may leave its answers untaken.

uvicorn's `FlowControl` reads on whenever an app asks for the body of its request, and waits for a client that takes nothing as
long as that client likes. Here nothing more is read while requests wait for their turn, and once answers pile up in our
memory the client has TAKE_SECONDS to take something of them, again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl

TAKE_SECONDS = 30.0
GONE_MILLISECONDS = 30_000


class ConnectionFlow(FlowControl):
    """The flow of one connection; `has_waiting` tells whether requests of it wait for their turn."""

    def __init__(
        self, transport: asyncio.Transport, has_waiting: Callable[[], bool], loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(transport)
        self._has_waiting = has_waiting
        self._loop = loop
        self._deadline: asyncio.TimerHandle | None = None
        # Detects a client that vanished: its missing acknowledgements time out.
        with contextlib.suppress(OSError, AttributeError):
            transport.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_MILLISECONDS
            )

    def resume_reading(self) -> None:
        """Read on, unless that would bring more requests behind those that wait."""
        if not self._has_waiting():
            super().resume_reading()

    def pause_writing(self) -> None:
        """Answers pile up: from now on the client must go on taking them."""
        super().pause_writing()
        self._must_take()

    def resume_writing(self) -> None:
        """The client has taken almost everything, or the connection has ended."""
        super().resume_writing()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _must_take(self) -> None:
        left = self._transport.get_write_buffer_size()
        self._deadline = self._loop.call_later(TAKE_SECONDS, self._see_taken, left)

    def _see_taken(self, left_before: int) -> None:
        # What the kernel takes over at once are many packets: who takes byte by byte is seen as taking nothing.
        if self._transport.get_write_buffer_size() >= left_before:
            self._transport.abort()
        else:
            self._must_take()

"""Back-pressure on one connection: when reading goes on, and how long its client may leave its answers unread.

uvicorn's `FlowControl` resumes reading whenever an app asks for the body of its request, and waits without limit for a
client that reads nothing. Here nothing more is read while requests wait for their turn, one read is at most about a
body long, and once answers pile up in our memory the client must read some of them every TAKE_SECONDS, or it is
disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl

TAKE_SECONDS = 30.0
GONE_MILLISECONDS = 30_000
RECEIVE_BYTES = 32_768
"""What the kernel is asked to hold of what a client sent; it doubles the number, for its own overhead. A read takes all of it."""


class ConnectionFlow(FlowControl):
    """The flow control of one connection; `has_waiting` returns whether requests on it wait for their turn."""

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
        # Without a limit the kernel holds more the faster a client sends, and one read would make 250 KB of requests wait.
        with contextlib.suppress(OSError, AttributeError):
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)

    def resume_reading(self) -> None:
        """Resume reading, unless that would add requests to those that wait already."""
        if not self._has_waiting():
            super().resume_reading()

    def pause_writing(self) -> None:
        """Start the client's deadline: answers pile up, and it must go on reading them."""
        super().pause_writing()
        self._must_take()

    def resume_writing(self) -> None:
        """End the deadline: the client has read almost everything, or the connection has ended."""
        super().resume_writing()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _must_take(self) -> None:
        left = self._transport.get_write_buffer_size()
        self._deadline = self._loop.call_later(TAKE_SECONDS, self._see_taken, left)

    def _see_taken(self, left_before: int) -> None:
        # The kernel takes many packets from us at once: a client that reads byte by byte makes no progress here.
        if self._transport.get_write_buffer_size() >= left_before:
            self._transport.abort()
        else:
            self._must_take()

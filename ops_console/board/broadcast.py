"""One thread per process that sends the live stream to every viewer, so that a viewer costs a socket and no thread.

A request hands its connection over once its headers are out. From then on nothing here blocks: what is new is encoded once
for all, sends never wait, and a viewer that does not keep up is let go: it comes back with its last position and gets what
it missed. What all viewers together cost is bounded: when decisions come faster than that, and so far faster than anybody
reads, viewers get the latest and are told how many were left out.
"""

from __future__ import annotations

import atexit
import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from ops_console.board.events import LiveEvent
from ops_console.board.hub import HEARTBEAT_SECONDS, Hub

MOST_UNSENT = 1 << 19
STALLED_SECONDS = 30.0
PER_SECOND = 10_000
AT_ONCE = 20_000
_AWAKE_SECONDS = 0.5
_STOP_SECONDS = 1.0
_LAST_CHUNK = b"0\r\n\r\n"


@dataclass(eq=False, slots=True)
class Viewer:
    """A connection, how far it has been served, and what it has not taken yet."""

    connection: socket.socket
    is_chunked: bool
    position: int
    leave: Callable[[], None]
    unsent: bytearray = field(default_factory=bytearray)
    sent_at: float = 0.0
    waits_to_write: bool = False


@dataclass(slots=True)
class Pace:
    """How many events may still go out, counted for each viewer: `AT_ONCE` in a burst, `PER_SECOND` for long.

    One viewer sees them all; of 500 each gets 20 a second for long, which keeps a process under a tenth of a processor.
    """

    left: float = AT_ONCE
    asked_at: float = 0.0

    def allow(self, wanted: int, viewers: int, now: float) -> int:
        """How many of `wanted` may go out to so many viewers now."""
        self.left = min(AT_ONCE, self.left + (now - self.asked_at) * PER_SECOND)
        self.asked_at = now
        allowed = min(wanted, int(self.left) // viewers)
        self.left -= allowed * viewers
        return allowed


class Broadcaster:
    """`encode(event)` is an event as it goes over the wire. The thread starts with the first viewer."""

    def __init__(
        self, hub: Hub, encode: Callable[[LiveEvent], bytes], *, heartbeat_seconds: float = HEARTBEAT_SECONDS
    ) -> None:
        self._hub = hub
        self._encode = encode
        self._heartbeat_seconds = heartbeat_seconds
        self._lock = threading.Lock()
        self._arrived: list[Viewer] = []
        self._viewers: set[Viewer] = set()
        self._pace = Pace()
        self._told = b""
        self._thread: threading.Thread | None = None
        self._selector: selectors.BaseSelector
        self._bell: socket.socket | None = None
        self._is_closing = False
        hub.on_news = self._wake

    def take(
        self, connection: socket.socket, *, is_chunked: bool, first: bytes, position: int, leave: Callable[[], None]
    ) -> None:
        """Serve a connection from now on: `first`, then what is behind `position`. Calls `leave` once it is gone."""
        connection.setblocking(False)
        with contextlib.suppress(OSError, AttributeError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A machine that went away without a word is noticed by a heartbeat that nobody takes.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STALLED_SECONDS * 1000))
        viewer = Viewer(connection, is_chunked, position, leave, sent_at=time.monotonic())
        if first:
            viewer.unsent += _framed(first, is_chunked)
        with self._lock:
            self._arrived.append(viewer)
            if self._thread is None or not self._thread.is_alive():
                self._start()
        self._wake()

    def stop(self) -> None:
        """End every viewer's answer; waits for at most a second."""
        self._is_closing = True
        self._wake()
        thread = self._thread
        if thread is not None:
            thread.join(timeout=_STOP_SECONDS)

    def _start(self) -> None:
        self._selector = selectors.DefaultSelector()
        ear, self._bell = socket.socketpair()
        ear.setblocking(False)
        self._bell.setblocking(False)
        self._selector.register(ear, selectors.EVENT_READ)
        # A process that drains has no request left to wait for, and would be gone before viewers are told.
        atexit.register(self.stop)
        self._thread = threading.Thread(target=self._run, args=(ear,), name="live-board", daemon=True)
        self._thread.start()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # rung often enough, or closed
            if self._bell is not None:
                self._bell.send(b"\0")

    def _run(self, ear: socket.socket) -> None:
        beat_at = time.monotonic() + self._heartbeat_seconds
        try:
            while not (self._is_closing or self._hub.is_stopping()):
                self._serve_ready(ear, max(0.0, min(_AWAKE_SECONDS, beat_at - time.monotonic())))
                self._send_status()
                self._welcome()
                self._send_news()
                if time.monotonic() >= beat_at:
                    beat_at = time.monotonic() + self._heartbeat_seconds
                    self._beat()
        finally:
            self._end(ear)

    def _serve_ready(self, ear: socket.socket, timeout: float) -> None:
        for key, happened in self._selector.select(timeout):
            if key.data is None:
                _is_gone(ear)
            elif happened & selectors.EVENT_READ and _is_gone(key.data.connection):
                self._drop(key.data)
            elif happened & selectors.EVENT_WRITE:
                self._send(key.data)

    def _welcome(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
        for viewer in arrived:
            self._viewers.add(viewer)
            self._selector.register(viewer.connection, selectors.EVENT_READ, viewer)
            self._send(viewer, _framed(self._told, viewer.is_chunked) if self._told else b"")

    def _send_status(self) -> None:
        """Who is halted, degraded, active or idle, when that changes; null when it cannot be read."""
        status = self._hub.status
        told = (
            b"" if status == {} else b"event: status\ndata: %s\n\n" % orjson.dumps(status, option=orjson.OPT_SORT_KEYS)
        )
        if told != self._told:
            self._told = told
            self._give(list(self._viewers), told, None)

    def _send_news(self) -> None:
        """What came since each viewer's position. All but those who just came share one, so it is put together once."""
        if not self._viewers:
            return
        self._hub.keep_reading()
        together: dict[int, list[Viewer]] = {}
        for viewer in self._viewers:
            together.setdefault(viewer.position, []).append(viewer)
        for position, viewers in together.items():
            rows = self._hub.since(position)
            if rows is None:
                # Too far behind for what is kept: coming back is how it gets it from the database.
                for viewer in viewers:
                    self._drop(viewer)
            elif rows:
                allowed = self._pace.allow(len(rows), len(viewers), time.monotonic())
                self._give(viewers, self._news(rows, allowed), rows[-1].position)

    def _news(self, rows: list[LiveEvent], allowed: int) -> bytes:
        left_out = len(rows) - allowed
        shown = rows[left_out:]
        told = b"event: left-out\ndata: %d\n\n" % left_out if left_out else b""
        return told + b"".join(map(self._encode, shown))

    def _beat(self) -> None:
        now = time.monotonic()
        for viewer in list(self._viewers):
            if viewer.unsent and now - viewer.sent_at > STALLED_SECONDS:
                self._drop(viewer)
        self._give(list(self._viewers), b": heartbeat\n\n", None)

    def _give(self, viewers: list[Viewer], payload: bytes, position: int | None) -> None:
        chunk = _framed(payload, is_chunked=True)
        for viewer in viewers:
            viewer.position = viewer.position if position is None else position
            self._send(viewer, chunk if viewer.is_chunked else payload)
            if len(viewer.unsent) > MOST_UNSENT:
                self._drop(viewer)

    def _send(self, viewer: Viewer, more: bytes = b"") -> None:
        """Send what the connection takes now, keep the rest, and be told when it takes more."""
        unsent: bytes | bytearray = more
        if viewer.unsent:
            viewer.unsent += more
            unsent = viewer.unsent
        try:
            count = viewer.connection.send(unsent) if unsent else 0
        except BlockingIOError:
            count = 0
        except OSError:
            self._drop(viewer)
            return
        if count:
            viewer.sent_at = time.monotonic()
        if unsent is viewer.unsent:
            del viewer.unsent[:count]
        else:
            viewer.unsent += unsent[count:]
        self._want_writing(viewer, bool(viewer.unsent))

    def _want_writing(self, viewer: Viewer, wanted: bool) -> None:
        if wanted != viewer.waits_to_write:
            viewer.waits_to_write = wanted
            events = selectors.EVENT_READ | selectors.EVENT_WRITE if wanted else selectors.EVENT_READ
            self._selector.modify(viewer.connection, events, viewer)

    def _drop(self, viewer: Viewer) -> None:
        if viewer in self._viewers:
            self._viewers.remove(viewer)
            self._selector.unregister(viewer.connection)
            viewer.connection.close()
            viewer.leave()

    def _end(self, ear: socket.socket) -> None:
        """The process drains: say that the response is over, as far as each connection takes it, and close."""
        self._welcome()
        for viewer in list(self._viewers):
            if viewer.is_chunked and not viewer.unsent:
                with contextlib.suppress(OSError):
                    viewer.connection.send(_LAST_CHUNK)
            self._drop(viewer)
        atexit.unregister(self.stop)
        ear.close()
        if self._bell is not None:
            self._bell.close()
        self._selector.close()


def _framed(payload: bytes, is_chunked: bool) -> bytes:
    """A piece of the body as HTTP/1.1 sends one whose length is not known (RFC 9112 §7.1)."""
    return b"%x\r\n%s\r\n" % (len(payload), payload) if is_chunked else payload


def _is_gone(connection: socket.socket) -> bool:
    """Whether the other end closed; what a viewer sends on a stream is read and forgotten."""
    try:
        return connection.recv(4096) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True

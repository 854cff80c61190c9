"""HTTP/1.1 on one connection: uvicorn's protocol, with a fast path for the hot routes, those that answer decisions.

httptools parses. A request of a hot route is given to its handler once it has arrived completely, and is answered by a
callback: the scope, task and cycle of an ASGI request are not made for it. Every other request takes uvicorn's path to
the ASGI app. Requests of one connection are answered in order, one after the other; while requests wait for their turn
nothing more is read, and at most MAX_WAITING of those already read may wait. A client has HEAD_SECONDS for a head and
BODY_SECONDS for a body, however slowly it sends; `connection_flow.py` limits how long it may leave its answers unread.
"""

from __future__ import annotations

import asyncio
import io
from collections import deque
from typing import Any, NoReturn

from httptools import HttpParserError, HttpParserUpgrade
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sentinel.core.hosts import network_of
from sentinel.platform.http.asgi import problem_answer
from sentinel.platform.http.bodies import MAX_BYTES
from sentinel.platform.http.wire import EdgeResponse, QuickHandler, Request, environ_of, head_of, require_host
from sentinel.platform.serving.connection_bounds import BoundedConnection, Stage
from sentinel.platform.serving.connection_flow import ConnectionFlow

HEAD_SECONDS = 10.0
BODY_SECONDS = 20.0
KEEP_ALIVE_SECONDS = 30.0
MAX_WAITING = 16
_UNUSUAL = frozenset(("HTTP_TRANSFER_ENCODING", "HTTP_EXPECT"))
MAX_LINE_BYTES, MAX_FIELDS, MAX_FIELD_BYTES, MAX_HEAD_BYTES = 4094, 50, 8190, 65_536


class _HotRequest:
    """A request of a hot route, from the end of its head to its answer."""

    __slots__ = ("body", "environ", "handler", "keep_alive")

    def __init__(self, handler: QuickHandler, environ: dict[str, Any], keep_alive: bool) -> None:
        self.handler, self.environ, self.keep_alive = handler, environ, keep_alive
        self.body: list[bytes] = []


class HttpProtocol(BoundedConnection, HttpToolsProtocol):
    """One connection of an `EventWorker`."""

    def __init__(self, worker: Any) -> None:
        super().__init__(worker.protocol_config, worker.server_state, {}, worker.loop)
        # Data after a request that announced itself as the last must not be parsed as another request.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=False)
        self.worker = worker
        self.address = ""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._answered_at = 0.0
        self._framing_bytes = 0
        """Bytes of a head, or around a body's chunks, since the request began or the last part of its body came."""
        # From the start: the parser skips empty lines before a request (RFC 9112, 2.2), and they must not end the deadline.
        self._is_in_head = True
        self._is_in_body = self._went_on = self._is_last = False
        self._incoming: _HotRequest | None = None
        self._turn: deque[Any] = deque()
        """Requests that wait until earlier ones are answered: complete hot requests, and (cycle, app) pairs of others."""
        self._in_hand: Any = None
        self._is_starting = False
        self._unread: bytes | None = None
        """The answer to bytes that could not be read as a request; it is the connection's last."""

    # The connection

    def connection_made(self, transport: Any) -> None:
        """Serve the connection, or close it where the process or its address has too many."""
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        self.network = network_of(self.address)
        self.worker.nr_conns += 1
        if not self.worker.connections.admit(self):
            transport.abort()
            return
        super().connection_made(transport)
        self.flow = ConnectionFlow(transport, self.has_waiting, self.loop)
        self._find = self.worker.asgi.hot_routes(self.server[1] if self.server else 0)
        self._due_in(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up. The request in hand finishes without an answer: a commit that was requested is not cancelled."""
        self.worker.nr_conns -= 1
        self._due_in(None)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._turn.clear()
        self.worker.connections.gone(self)
        if self.transport is not None:
            super().connection_lost(exc)

    def _see_stage(self) -> None:
        """Update the connection's stage, and the deadline for what its client must send next."""
        in_hand = self._in_hand
        if in_hand is not None and not (self._is_in_body and isinstance(in_hand, tuple) and in_hand[0] is self.cycle):
            stage, seconds = Stage.ANSWERED, None  # also when we have paused reading in the middle of the next request
        elif self._is_in_body:
            stage, seconds = Stage.BODY, BODY_SECONDS
        elif self._is_in_head:
            stage, seconds = Stage.NEW, HEAD_SECONDS
        else:
            stage, seconds = Stage.IDLE, None
        if stage is self.stage:
            return
        self.worker.connections.moved(self, stage)
        self.stage = stage
        if seconds is not None or self._deadline is not None:
            self._due_in(seconds)

    def _idle(self) -> None:
        """Wait for the client's next request. One timer runs across requests: setting one per request would cost more."""
        self._answered_at = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(KEEP_ALIVE_SECONDS, self._end_idle)

    def _end_idle(self) -> None:
        left = self._answered_at + KEEP_ALIVE_SECONDS - self.loop.time()
        self._idle_timer = None
        if self.stage is not Stage.IDLE:
            return
        if left <= 0:
            self.transport.close()
        else:
            self._idle_timer = self.loop.call_later(left, self._end_idle)

    # What arrives

    def data_received(self, data: bytes) -> None:
        """Parse received bytes. The deadline for an incomplete head or body is not extended by further bytes."""
        self._went_on = False
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade:
            self._is_last = True  # an upgrade is ignored: only HTTP/1.1 is served
        except HttpParserError as error:
            # Bytes after the connection's last request are ignored; an error in that request's own body is not.
            if self._is_in_body or not self._is_last:
                self._refuse(400, str(error))
        if (self._is_in_head or (self._is_in_body and self._incoming is None)) and not self._went_on:
            self._framing_bytes += len(data)
            if self._framing_bytes > MAX_HEAD_BYTES:
                self._refuse(431, "the request head, or the framing of its body, is too long")
        if self._is_all_read or self._turn or self.pipeline:
            self.flow.pause_reading()
        self._see_stage()

    def has_waiting(self) -> bool:
        """Whether requests wait for their turn."""
        return bool(self._turn or self.pipeline)

    @property
    def _is_all_read(self) -> bool:
        """Whether all further bytes are to be ignored."""
        return self._unread is not None or (self._is_last and not self._is_in_body)

    def on_message_begin(self) -> None:
        """Begin a request. One read can hold thousands of requests, of which no more are accepted than may wait."""
        if (self._turn or self.pipeline) and len(self._turn) + len(self.pipeline) >= MAX_WAITING:
            self._stop(429, f"at most {MAX_WAITING} requests may wait on one connection")
        super().on_message_begin()
        self._is_in_head = self._went_on = True
        self._framing_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Add a part of the request's target."""
        self.url += url
        if len(self.url) > MAX_LINE_BYTES:
            self._stop(414, "the request's target is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add one header. A name with an underscore is dropped: in the environment it would equal the name with a hyphen."""
        if len(name) + len(value) > MAX_FIELD_BYTES or len(self.headers) >= MAX_FIELDS:
            self._stop(431, "there are too many headers, or one is too long")
        if b"_" in name:
            return
        if (name := name.lower()) == b"expect":
            super().on_header(name, value)
        else:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Decide whether a hot route or the ASGI app answers the request."""
        self._is_in_head = False
        self._is_last = not self.parser.should_keep_alive()
        self._incoming = self._hot_request()
        if self._incoming is None:
            try:
                super().on_headers_complete()
            except (HttpParserError, AttributeError):  # no URL, or one without a path; `cycle` is an earlier one
                self._stop(400, "the request's target must be a path")
            self.cycle.keep_alive = self.cycle.keep_alive and self.worker.alive
            # Trailers of a chunked body (RFC 9112, 7.1.2) do not count as headers: a proxy checked the head alone.
            self.headers = []
        self._is_in_body = True

    def _hot_request(self) -> _HotRequest | None:
        """The request if it is a plain one of a hot route, else None; also None when its head alone gets it refused."""
        if self.cycle is not None and not self.cycle.response_complete:
            return None  # it takes the ASGI path too, to be answered after the unfinished ASGI request
        handler = self._find(self.url) if self.parser.get_method() == b"POST" else None
        if handler is None or self.parser.get_http_version() != "1.1" or self.parser.should_upgrade():
            return None
        environ = environ_of(self.headers)
        declared = environ.get("CONTENT_LENGTH", "")
        if (
            not (declared.isascii() and declared.isdigit())
            or int(declared[:20]) > MAX_BYTES
            or not _UNUSUAL.isdisjoint(environ)
        ):
            return None
        environ["SERVER_PROTOCOL"], environ["REMOTE_ADDR"] = "HTTP/1.1", self.address
        environ["PATH_INFO"] = self.url.decode("ascii")
        return _HotRequest(handler, environ, not self._is_last)

    def on_body(self, body: bytes) -> None:
        """Add a part of a body; a hot request's body is bounded by its declared length."""
        if self._incoming is not None:
            self._incoming.body.append(body)
        else:
            self._went_on, self._framing_bytes = True, 0
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Queue a request that has arrived completely."""
        self._is_in_body = False
        incoming, self._incoming = self._incoming, None
        if incoming is None:
            super().on_message_complete()
            return
        self._turn.append(incoming)
        self._start_next()

    def _stop(self, status: int, message: str) -> NoReturn:
        self._refuse(status, message)
        raise ValueError(message)  # ends the parser

    def _refuse(self, status: int, message: str) -> None:
        """Answer what could not be read as a request with a problem document, after the answers that are still due, and close."""
        if self._unread is not None:
            return
        if self._is_in_body and self._incoming is None:
            self._abandon(self.cycle)
        self._is_in_head = self._is_in_body = False
        self._incoming = None
        self._unread = self.worker.asgi.answer_to_unread(status, message)
        self._start_next()

    def _abandon(self, cycle: Any) -> None:
        """Drop the answer of an ASGI request whose body cannot be read to its end; its app learns that the client is gone."""
        if cycle.response_started and not cycle.response_complete:
            self.transport.close()
        elif isinstance(self._in_hand, tuple) and self._in_hand[0] is cycle:
            self._in_hand = None
        self._turn = deque(one for one in self._turn if isinstance(one, _HotRequest) or one[0] is not cycle)
        self.pipeline = deque(one for one in self.pipeline if one[0] is not cycle)

    # Answers, in the order of the requests

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._turn.append((cycle, app))
        self._start_next()

    def on_response_complete(self) -> None:
        """Go on with the next request after the ASGI app has answered."""
        self._in_hand = None
        self._start_next()
        self._see_stage()

    def resume_writing(self) -> None:
        """Go on with the next request once the client reads its answers again."""
        super().resume_writing()
        self._start_next()
        self._see_stage()

    def _start_next(self) -> None:
        """Start the next request when none is in hand, unless the client does not read its answers."""
        if self._is_starting:
            return None
        self._is_starting = True
        try:
            while self._in_hand is None and not self.flow.write_paused and not self.transport.is_closing():
                following = self._turn.popleft() if self._turn else self.pipeline.pop() if self.pipeline else None
                if following is None:
                    return self._nothing_waits()
                self._in_hand = following
                if isinstance(following, _HotRequest):
                    self._begin(following)
                else:
                    super()._start_asgi_task(*following)
        finally:
            self._is_starting = False

    def _nothing_waits(self) -> None:
        if self._unread is not None:
            self.transport.write(self._unread)
            self.transport.close()
        elif self._is_all_read:
            self.transport.close()
        else:
            self.flow.resume_reading()
            self._idle()

    def _begin(self, hot: _HotRequest) -> None:
        hot.environ["wsgi.input"] = io.BytesIO(hot.body[0] if len(hot.body) == 1 else b"".join(hot.body))
        try:
            require_host(hot.environ)
            hot.handler.begin(Request(hot.environ), lambda answer: self._reply(hot, answer))
        except Exception as error:
            self._reply(hot, problem_answer(error, hot.environ))

    def _reply(self, hot: _HotRequest, answer: EdgeResponse) -> None:
        """Send the answer, unless its client is gone."""
        if self._in_hand is not hot:
            return
        self._in_hand = None
        if self.transport.is_closing():
            return
        keep_alive = hot.keep_alive and self.worker.alive
        more = self.worker.asgi.headers_of_hot(hot.environ)
        self.transport.write(head_of(answer, hot.environ, more, keep_alive) + answer.body)
        if not keep_alive:
            self.transport.close()
        self._start_next()
        if not self._is_starting:
            self._see_stage()

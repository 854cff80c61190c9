"""HTTP/1.1 exchanges with one address, bounded in bytes and in time: the bytes of a request, the strict parsing of a response, and
the transport for threads; `async_transport.py` has the one for an event loop.

An agent makes three calls per action, so a call costs one write and one small parse, a third of what the usual clients spend. No
redirects, no proxies, no compression: an answer comes from the address that was asked. Responses (RFC 9112) are parsed here
because the standard library parses headers as mail, which costs four times as much as everything else together. A
response that is not understood exactly is refused, and its connection closed.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakSet

from sentinel.client.errors import NoAnswerKind, Unreachable

if TYPE_CHECKING:
    import ssl
    from urllib.parse import SplitResult

T = TypeVar("T")
Parsing = Generator[None, bytes, T]

RECEIVE_BYTES = 65536
MAX_HEAD_BYTES = 32 << 10
MAX_RESPONSE_BYTES = 1 << 20
_LEAST_CONNECT_SECONDS = 1.0
_MOST_INTERIM = 5
_CHUNK_LINE = 64


class Transport:
    """Exchanges with one base address. Thread-safe; keeps up to `pool_size` idle connections, each for the process that made it."""

    def __init__(self, base_url: str, *, headers: Mapping[str, str], pool_size: int = 16) -> None:
        self._endpoint = Endpoint(base_url, headers)
        self._idle: deque[socket.socket] = deque()
        self._pool_size = pool_size
        self._live: WeakSet[socket.socket] = WeakSet()
        self._lock = threading.Lock()  # guards `_live`, and closing against a connection put back meanwhile
        self._closed = False
        _transports.add(self)

    def exchange(self, method: str, path: str, body: bytes | None, deadline: float) -> RawResponse:
        """Send one request and return the whole answer; `deadline` is in monotonic seconds. Raises `Unreachable`.

        An idle connection that the server closed meanwhile is replaced at once, since our requests are idempotent.
        """
        request, was_sent = self._endpoint.request(method, path, body), False
        while True:
            if self._closed:
                raise Unreachable(NoAnswerKind.CLOSED, "the client is closed")
            kept = self._take_idle()
            try:
                link = kept or self._connect(deadline)
            except Unreachable as error:
                error.may_have_arrived |= was_sent
                raise
            try:
                answer = self._send_and_receive(link, request, deadline)
                return answer._replace(was_sent_before=True) if was_sent else answer
            except TimeoutError as error:
                link.close()
                raise Unreachable(NoAnswerKind.TIMEOUT, "no answer in time") from error
            except OSError as error:
                link.close()
                if kept is None or self._closed:
                    raise Unreachable(NoAnswerKind.BROKEN, describe(error)) from error
                was_sent = True
                self._drop_idle()
            except BaseException:
                link.close()
                raise

    def abort(self) -> None:
        """Abort every exchange in flight, in any thread; later ones raise `Unreachable(CLOSED)`."""
        self._closed = True
        with self._lock:
            live = list(self._live)
        for link in live:
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it was closed meanwhile, which is what we wanted

    def close(self) -> None:
        """Close idle connections; the transport is not used afterwards."""
        with self._lock:
            self._closed = True
        self._drop_idle()

    def leave_to_parent(self) -> None:
        """Drop all connections in a forked process: they are the parent's, whose answers would be read here. They stay open there."""
        inherited, self._live, self._lock = self._live, WeakSet(), threading.Lock()
        self._idle.clear()
        for link in list(inherited):
            link.close()

    def _send_and_receive(self, link: socket.socket, request: bytes, deadline: float) -> RawResponse:
        _limit(link, deadline)
        link.sendall(request)
        answer = read_response(link, deadline)
        if not (answer.is_reusable and self._put_back(link)):
            link.close()
        return raw_response(answer)

    def _put_back(self, link: socket.socket) -> bool:
        """Put a connection back into the pool; False where the pool is full, or was closed while the exchange was in flight."""
        with self._lock:
            if self._closed or len(self._idle) >= self._pool_size:
                return False
            self._idle.append(link)
            return True

    def _take_idle(self) -> socket.socket | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _drop_idle(self) -> None:
        while (link := self._take_idle()) is not None:
            link.close()

    def _connect(self, deadline: float) -> socket.socket:
        try:
            link = self._dial(deadline)
        except TimeoutError as error:
            late = Unreachable(NoAnswerKind.TIMEOUT, "no connection in time")
            late.may_have_arrived = False
            raise late from error
        except OSError as error:
            raise Unreachable(NoAnswerKind.REFUSED, describe(error)) from error
        with self._lock:
            self._live.add(link)
        if self._closed:  # the transport was aborted while this connection was made
            link.close()
            raise Unreachable(NoAnswerKind.CLOSED, "the client is closed")
        return link

    def _dial(self, deadline: float) -> socket.socket:
        failed: OSError | None = None
        addresses = look_up(self._endpoint.host, self._endpoint.port, deadline)
        for place, (family, kind, protocol, _, address) in enumerate(addresses):
            left = deadline - time.monotonic()
            if failed is not None and left <= 0:
                raise TimeoutError("the deadline is over") from failed
            until = time.monotonic() + connect_seconds(left, len(addresses) - place)
            link = socket.socket(family, kind, protocol)
            try:
                _limit(link, until)
                link.connect(address)
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return self._secured(link, until)
            except OSError as error:
                link.close()
                failed = error
        raise failed or OSError("the name has no address")

    def _secured(self, link: socket.socket, deadline: float) -> socket.socket:
        if self._endpoint.tls is None:
            return link
        _limit(link, deadline)  # for the handshake, which would otherwise get the full timeout of the connection again
        return self._endpoint.tls.wrap_socket(link, server_hostname=self._endpoint.host)


def _limit(link: socket.socket, deadline: float) -> None:
    """Set the timeout of the socket's next operation to what is left until `deadline` (monotonic seconds)."""
    link.settimeout(max(deadline - time.monotonic(), 0.001))


def connect_seconds(left: float, addresses: int) -> float:
    """Return how long to try the next of so many addresses: its part of the seconds left, but a second if there is one, so
    that one whose machine is gone does not keep a call from the others."""
    return max(left / addresses, min(left, _LEAST_CONNECT_SECONDS))


def numeric_addresses(host: str, port: int) -> list[Any] | None:
    """Return what `socket.getaddrinfo` returns of an address; None for a name, which has to be looked up."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return None


def look_up(host: str, port: int, deadline: float) -> list[Any]:
    """Call `socket.getaddrinfo` until `deadline` (monotonic seconds) at most. Raises what it raises, or `TimeoutError`."""
    if (addresses := numeric_addresses(host, port)) is not None:
        return addresses
    found: list[list[Any] | Exception] = []
    is_over = threading.Event()

    def done(result: list[Any] | Exception) -> None:
        found.append(result)
        is_over.set()

    start_look_up(host, port, done)
    if not is_over.wait(max(deadline - time.monotonic(), 0.001)):
        raise TimeoutError("the deadline is over")
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def start_look_up(host: str, port: int, done: Callable[[list[Any] | Exception], None]) -> None:
    """Call `socket.getaddrinfo` in a thread of its own, and `done` there with its result or its error.

    The system's look-up has no timeout: a caller that waits no longer abandons it in its thread.
    """

    def ask() -> None:
        try:
            result: list[Any] | Exception = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except Exception as error:
            result = error
        done(result)

    try:
        threading.Thread(target=ask, daemon=True).start()
    except RuntimeError:  # no thread can be had, e.g. at the interpreter's end
        ask()


_transports: WeakSet[Transport] = WeakSet()


def _after_fork() -> None:
    for transport in list(_transports):
        transport.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class RawResponse(NamedTuple):
    """A response, its body unparsed. `was_sent_before`: the same request was first sent on an idle connection, which broke."""

    status: int
    content_type: str
    retry_after: str | None
    replayed: bool
    data: bytes
    was_sent_before: bool = False


class Endpoint:
    """One base address and the headers of every request to it. Raises `ValueError` for an invalid address."""

    def __init__(self, base_url: str, headers: Mapping[str, str]) -> None:
        parts = _parts_of(base_url)
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.tls = _tls() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._head = _common_head(parts.netloc.rpartition("@")[2], headers)

    def request(self, method: str, path: str, body: bytes | None) -> bytes:
        """Return the bytes of one request."""
        line = f"{method} {self._prefix}{path} HTTP/1.1\r\n".encode("ascii")
        if (trace := current_traceparent()) is not None:
            line += b"traceparent: %s\r\n" % trace.encode("ascii")
        if body is None:
            return line + self._head + b"\r\n"
        return b"%s%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
            line,
            self._head,
            len(body),
            body,
        )


def _parts_of(base_url: str) -> SplitResult:
    """Split an address. Raises `ValueError` for one that no request could be sent to, so that no later call fails for it."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(base_url)
        sent = parts.netloc + parts.path
        (parts.hostname or "").encode("idna")  # as a look-up does
        is_usable = (
            bool(parts.hostname) and parts.port != 0 and sent.isascii() and sent.isprintable() and " " not in sent
        )
        is_address = is_usable and parts.scheme in ("http", "https") and not parts.query and not parts.fragment
    except ValueError:  # an invalid port, or a name that cannot be encoded
        is_address = False
    if not is_address:
        raise ValueError("the authority's address must look like http://host:port")
    return parts


def raw_response(answer: HttpResponse) -> RawResponse:
    """Return the response with the headers that callers read."""
    content_type = answer.header(b"content-type").partition(";")[0].strip().lower()
    replayed = answer.header(b"idempotent-replayed").lower() == "true"
    return RawResponse(answer.status, content_type, answer.header(b"retry-after") or None, replayed, answer.data)


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """Return the TLS context of every client in the process: loading the CA certificates takes a tenth of a second."""
    # Imported for https alone: it would be a tenth of the time of `import sentinel.client`.
    import ssl

    return ssl.create_default_context()


def _common_head(host: str, headers: Mapping[str, str]) -> bytes:
    lines = {"Host": host, "Accept": "application/json", "Accept-Encoding": "identity", **headers}
    for name, value in lines.items():
        # A line end in a header would be a second header: refuse it here, once.
        if not value.isascii() or not value.isprintable():
            raise ValueError(f"{name} must be printable ASCII")
    return "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode("ascii")


def describe(error: BaseException) -> str:
    """Return an error in one line of at most 200 characters."""
    text = str(getattr(error, "strerror", None) or error).strip()
    return (text.splitlines() or [""])[0][:200] or type(error).__name__


class HttpResponse:
    """One response: status, headers by lower-case name, whole body, and whether the connection can be reused."""

    __slots__ = ("data", "headers", "is_reusable", "status")

    def __init__(self, status: int, headers: dict[bytes, bytes], data: bytes, is_reusable: bool) -> None:
        self.status = status
        self.headers = headers
        self.data = data
        self.is_reusable = is_reusable

    def header(self, name: bytes) -> str:
        """Return a header's text, "" where there is none; bytes that are not ASCII become U+FFFD."""
        return self.headers.get(name, b"").decode("ascii", "replace")


def read_response(link: socket.socket, deadline: float) -> HttpResponse:
    """Read one response from a blocking socket until `deadline` (monotonic seconds). Raises `OSError`, `TimeoutError`,
    `Unreachable(BROKEN)`."""
    parsing = parse_response()
    next(parsing)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline is over")
        # Set before every receive, so that a server sending byte by byte gets no more time than one sending at once.
        link.settimeout(left)
        try:
            parsing.send(link.recv(RECEIVE_BYTES))
        except StopIteration as done:
            response: HttpResponse = done.value
            return response


def parse_response() -> Parsing[HttpResponse]:
    """Parse one response without I/O: a generator that yields when it needs bytes, is sent them (b"" at the end of the
    connection), and returns the response.

    Raises `ConnectionError` (ended in the middle) or `Unreachable(BROKEN)`.
    """
    return _Parser().response()


class _Parser:
    """Parses one response from one buffer; every method that needs more bytes is a generator, as `parse_response`."""

    def __init__(self) -> None:
        self._buffer = b""

    def response(self) -> Parsing[HttpResponse]:
        """Return the final response; interim ones (1xx) are skipped."""
        for _ in range(_MOST_INTERIM):
            minor, status, headers = yield from self._head()
            if status >= 200:
                data, is_delimited = yield from self._body(status, headers)
                stays = minor == b"1" and headers.get(b"connection", b"").lower() != b"close"
                # Bytes left in the buffer were not asked for: then the connection is not reused.
                return HttpResponse(status, headers, data, is_delimited and stays and not self._buffer)
        raise _broken("too many interim answers")

    def _head(self) -> Parsing[tuple[bytes, int, dict[bytes, bytes]]]:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise _broken("the head is too large")
            self._buffer += yield from self._more()
        first, *lines = self._buffer[:end].split(b"\r\n")
        self._buffer = self._buffer[end + 4 :]
        protocol, _, rest = first.partition(b" ")
        code = rest[:3]
        if (
            protocol not in (b"HTTP/1.1", b"HTTP/1.0")
            or not code.isdigit()
            or len(code) != 3
            or rest[3:4] not in (b" ", b"")
        ):
            raise _broken("not an HTTP answer")
        return protocol[-1:], int(code), _headers(lines)

    def _body(self, status: int, headers: dict[bytes, bytes]) -> Parsing[tuple[bytes, bool]]:
        """Return (body, whether its end was marked by a length or chunks and not by the end of the connection)."""
        length, coding = headers.get(b"content-length"), headers.get(b"transfer-encoding")
        if status in (204, 304):
            return b"", True
        if coding is not None:
            if coding.lower() != b"chunked" or length is not None:
                raise _broken("an unknown transfer coding")
            return (yield from self._chunks()), True
        if length is None:
            return (yield from self._rest()), False
        if not length.isdigit() or len(length) > 9:
            raise _broken("an unreadable length")
        return (yield from self._exactly(int(length))), True

    def _exactly(self, count: int) -> Parsing[bytes]:
        if count > MAX_RESPONSE_BYTES:
            raise _broken("the answer is too large")
        if len(self._buffer) < count:
            parts, have = [self._buffer], len(self._buffer)
            while have < count:
                parts.append((yield from self._more()))
                have += len(parts[-1])
            self._buffer = b"".join(parts)
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        return data

    def _chunks(self) -> Parsing[bytes]:
        parts: list[bytes] = []
        total = 0
        while True:
            size_text = (yield from self._line()).partition(b";")[0].strip()
            try:
                size = int(size_text, 16) if size_text.isalnum() else -1
            except ValueError:
                size = -1
            total += size
            if size < 0 or total > MAX_RESPONSE_BYTES:
                raise _broken("an unreadable or too large chunk")
            if size == 0:
                break
            parts.append((yield from self._exactly(size)))
            if (yield from self._exactly(2)) != b"\r\n":
                raise _broken("a chunk without an end")
        if (yield from self._line()):
            raise _broken("trailers are not expected")
        return b"".join(parts)

    def _line(self) -> Parsing[bytes]:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > _CHUNK_LINE:
                raise _broken("a chunk line is too long")
            self._buffer += yield from self._more()
        line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
        return line

    def _rest(self) -> Parsing[bytes]:
        """Return everything until the server closes the connection."""
        parts, have = [self._buffer], len(self._buffer)
        self._buffer = b""
        while have <= MAX_RESPONSE_BYTES:
            part = yield
            if not part:
                return b"".join(parts)
            parts.append(part)
            have += len(part)
        raise _broken("the answer is too large")

    def _more(self) -> Parsing[bytes]:
        data = yield
        if not data:
            raise ConnectionError("the connection ended in the middle")
        return data


def _headers(lines: list[bytes]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name.strip() != name or b" " in name or b"\x00" in line:
            raise _broken("an unreadable header")
        name, value = name.lower(), value.strip()
        if name in found and name in (b"content-length", b"transfer-encoding") and found[name] != value:
            raise _broken("two lengths")
        found[name] = value
    return found


def _broken(what: str) -> Unreachable:
    return Unreachable(NoAnswerKind.BROKEN, what)


def current_traceparent() -> str | None:
    """Return the `traceparent` of the current span; None where this process has no OpenTelemetry, or no span."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    found = api.get_current_span().get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}" if found.is_valid else None


def call_span(method: str, path: str) -> AbstractContextManager[Any]:
    """Return a span around one call to the authority, named by its route, e.g. `sentinel.action.guard`; no span for
    reads, which are polled."""
    if method != "POST" or "opentelemetry.trace" not in sys.modules:
        return nullcontext()
    return open_span("sentinel" + path.replace("/", "."), "CLIENT", {})


@contextmanager
def open_span(name: str, kind: str, attributes: Mapping[str, Any]) -> Iterator[Any]:
    """Open a span of the program's own tracer as the current one; yields None without OpenTelemetry.

    Only the type of an exception is recorded: its text may carry what must not leave this process.
    """
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        yield None
        return
    with api.get_tracer("sentinel").start_as_current_span(
        name, kind=api.SpanKind[kind], attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except BaseException as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(api.StatusCode.ERROR)
            raise

"""Parses one HTTP/1.1 response (RFC 9112), accepting a strict subset of the grammar; for a blocking socket and for an event loop.

Ours because it is on the way of every decision three times: the standard library parses headers as mail, which costs
four times as much as everything else together. What is not understood exactly is refused, and the connection with it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Generator
from typing import TypeVar

from sentinel.client.errors import NoAnswerKind, Unreachable

T = TypeVar("T")
Parsing = Generator[None, bytes, T]

RECEIVE_BYTES = 65536
MAX_HEAD_BYTES = 32 << 10
MAX_RESPONSE_BYTES = 1 << 20
_MOST_INTERIM = 5
_CHUNK_LINE = 64


class HttpResponse:
    """One response: status, headers by lower-case name, whole body, and whether the connection can go on."""

    __slots__ = ("data", "headers", "is_reusable", "status")

    def __init__(self, status: int, headers: dict[bytes, bytes], data: bytes, is_reusable: bool) -> None:
        self.status = status
        self.headers = headers
        self.data = data
        self.is_reusable = is_reusable

    def header(self, name: bytes) -> str:
        """A header's text; "" where there is none or it is not ASCII."""
        return self.headers.get(name, b"").decode("ascii", "replace")


def read_response(link: socket.socket, deadline: float) -> HttpResponse:
    """One response from a blocking socket until `deadline` (monotonic seconds). Raises `OSError`, `TimeoutError`, `Unreachable(BROKEN)`."""
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
    """One response without any I/O: it yields when it needs bytes, is sent them (b"" for the end of the connection), and returns.

    Raises `ConnectionError` (ended in the middle) or `Unreachable(BROKEN)`.
    """
    return _Parser().response()


class _Parser:
    """Every method that needs bytes is a generator over one buffer."""

    def __init__(self) -> None:
        self._buffer = b""

    def response(self) -> Parsing[HttpResponse]:
        """The final response; interim ones (1xx) are skipped."""
        for _ in range(_MOST_INTERIM):
            minor, status, headers = yield from self._head()
            if status >= 200:
                data, is_delimited = yield from self._body(status, headers)
                stays = minor == b"1" and headers.get(b"connection", b"").lower() != b"close"
                # Unsolicited bytes: the connection is not reused.
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
        """(body, whether its end was marked)."""
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
        """Everything until the server closes."""
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

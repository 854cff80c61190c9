"""Reads one HTTP/1.1 response (RFC 9112) from a socket, accepting a strict subset of the grammar.

Ours because it is on the way of every decision three times: the standard library parses headers as mail, which costs
four times as much as everything else together. What is not understood exactly is refused, and the connection with it.
"""

from __future__ import annotations

import socket
import time

from sentinel.client.errors import NoAnswerKind, Unreachable

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


class ResponseReader:
    """Reads one response until `deadline` (monotonic seconds). Raises `OSError`, `TimeoutError`, `Unreachable(BROKEN)`."""

    def __init__(self, link: socket.socket, deadline: float) -> None:
        self._link, self._deadline = link, deadline
        self._buffer = b""

    def read(self) -> HttpResponse:
        """The final response; interim ones (1xx) are skipped."""
        for _ in range(_MOST_INTERIM):
            minor, status, headers = self._head()
            if status >= 200:
                data, is_delimited = self._body(status, headers)
                stays = minor == b"1" and headers.get(b"connection", b"").lower() != b"close"
                # Unsolicited bytes: the connection is not reused.
                return HttpResponse(status, headers, data, is_delimited and stays and not self._buffer)
        raise _broken("too many interim answers")

    def _head(self) -> tuple[bytes, int, dict[bytes, bytes]]:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise _broken("the head is too large")
            self._more()
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

    def _body(self, status: int, headers: dict[bytes, bytes]) -> tuple[bytes, bool]:
        """(body, whether its end was marked)."""
        length, coding = headers.get(b"content-length"), headers.get(b"transfer-encoding")
        if status in (204, 304):
            return b"", True
        if coding is not None:
            if coding.lower() != b"chunked" or length is not None:
                raise _broken("an unknown transfer coding")
            return self._chunks(), True
        if length is None:
            return self._rest(), False
        if not length.isdigit() or len(length) > 9:
            raise _broken("an unreadable length")
        return self._exactly(int(length)), True

    def _exactly(self, count: int) -> bytes:
        if count > MAX_RESPONSE_BYTES:
            raise _broken("the answer is too large")
        if len(self._buffer) < count:
            parts, have = [self._buffer], len(self._buffer)
            while have < count:
                parts.append(self._receive())
                have += len(parts[-1])
            self._buffer = b"".join(parts)
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        return data

    def _chunks(self) -> bytes:
        parts: list[bytes] = []
        total = 0
        while True:
            size_text = self._line().partition(b";")[0].strip()
            try:
                size = int(size_text, 16) if size_text.isalnum() else -1
            except ValueError:
                size = -1
            total += size
            if size < 0 or total > MAX_RESPONSE_BYTES:
                raise _broken("an unreadable or too large chunk")
            if size == 0:
                break
            parts.append(self._exactly(size))
            if self._exactly(2) != b"\r\n":
                raise _broken("a chunk without an end")
        if self._line():
            raise _broken("trailers are not expected")
        return b"".join(parts)

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > _CHUNK_LINE:
                raise _broken("a chunk line is too long")
            self._more()
        line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
        return line

    def _rest(self) -> bytes:
        """Everything until the server closes."""
        parts, have = [self._buffer], len(self._buffer)
        self._buffer = b""
        while have <= MAX_RESPONSE_BYTES:
            part = self._receive(may_end=True)
            if not part:
                return b"".join(parts)
            parts.append(part)
            have += len(part)
        raise _broken("the answer is too large")

    def _more(self) -> None:
        self._buffer += self._receive()

    def _receive(self, *, may_end: bool = False) -> bytes:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline is over")
        # Set before every receive, so that a server sending byte by byte gets no more time than one sending at once.
        self._link.settimeout(left)
        data = self._link.recv(65536)
        if not data and not may_end:
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

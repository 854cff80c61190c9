"""One HTTP/1.1 exchange on a kept-alive connection, bounded in bytes and in time.

An agent makes three calls per action, so a call costs one write and one small parse (`http_reader.py`), a third of what
the usual clients spend. No redirects, no proxies, no compression: an answer comes from the address that was asked.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit
from weakref import WeakSet

from sentinel.client.errors import NoAnswerKind, Unreachable
from sentinel.client.http_reader import HttpResponse, ResponseReader


@dataclass(frozen=True, slots=True)
class RawResponse:
    """A response, unparsed."""

    status: int
    content_type: str
    retry_after: str | None
    replayed: bool
    data: bytes


class Transport:
    """Exchanges with one base address. Thread-safe; keeps up to `pool_size` idle connections."""

    def __init__(self, base_url: str, *, headers: Mapping[str, str], pool_size: int = 16) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("the authority's address must look like http://host:port")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._head = _common_head(parts.netloc.rpartition("@")[2], headers)
        self._idle: deque[socket.socket] = deque(maxlen=pool_size)
        self._live: WeakSet[socket.socket] = WeakSet()
        self._closed = False

    def exchange(self, method: str, path: str, body: bytes | None, deadline: float) -> RawResponse:
        """Send one request, return the whole answer; `deadline` is in monotonic seconds. Raises `Unreachable`.

        A kept connection that the server closed meanwhile is replaced at once: our requests are repeatable.
        """
        request = self._request(method, path, body)
        while True:
            if self._closed:
                raise Unreachable(NoAnswerKind.CLOSED, "the client is closed")
            kept = self._kept()
            link = kept or self._connect(deadline)
            try:
                return self._send_and_receive(link, request, deadline)
            except TimeoutError as error:
                link.close()
                raise Unreachable(NoAnswerKind.TIMEOUT, "no answer in time") from error
            except OSError as error:
                link.close()
                if kept is None or self._closed:
                    raise Unreachable(NoAnswerKind.BROKEN, _describe(error)) from error
                self._drop_idle()
            except BaseException:
                link.close()
                raise

    def abort(self) -> None:
        """Break every exchange now under way, in any thread; later ones raise `Unreachable(CLOSED)`."""
        self._closed = True
        for link in list(self._live):
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it was closed meanwhile: what we wanted

    def close(self) -> None:
        """Close idle connections; the transport is not used afterwards."""
        self._closed = True
        self._drop_idle()

    def _send_and_receive(self, link: socket.socket, request: bytes, deadline: float) -> RawResponse:
        link.settimeout(max(deadline - time.monotonic(), 0.001))
        link.sendall(request)
        answer = ResponseReader(link, deadline).read()
        if answer.is_reusable:
            self._idle.append(link)
        else:
            link.close()
        return _raw(answer)

    def _request(self, method: str, path: str, body: bytes | None) -> bytes:
        line = f"{method} {self._prefix}{path} HTTP/1.1\r\n".encode("ascii")
        if body is None:
            return line + self._head + b"\r\n"
        return b"%s%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
            line,
            self._head,
            len(body),
            body,
        )

    def _kept(self) -> socket.socket | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _drop_idle(self) -> None:
        while (link := self._kept()) is not None:
            link.close()

    def _connect(self, deadline: float) -> socket.socket:
        try:
            link = self._dial(deadline)
        except TimeoutError as error:
            raise Unreachable(NoAnswerKind.TIMEOUT, "no connection in time") from error
        except OSError as error:
            raise Unreachable(NoAnswerKind.REFUSED, _describe(error)) from error
        self._live.add(link)
        return link

    def _dial(self, deadline: float) -> socket.socket:
        failed: OSError | None = None
        for family, kind, protocol, _, address in socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM):
            link = socket.socket(family, kind, protocol)
            try:
                link.settimeout(max(deadline - time.monotonic(), 0.001))
                link.connect(address)
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return self._secured(link)
            except OSError as error:
                link.close()
                failed = error
        raise failed or OSError("the name has no address")

    def _secured(self, link: socket.socket) -> socket.socket:
        if self._tls is None:
            return link
        return self._tls.wrap_socket(link, server_hostname=self._host)


def _raw(answer: HttpResponse) -> RawResponse:
    content_type = answer.header(b"content-type").partition(";")[0].strip().lower()
    replayed = answer.header(b"idempotent-replayed").lower() == "true"
    return RawResponse(answer.status, content_type, answer.header(b"retry-after") or None, replayed, answer.data)


def _common_head(host: str, headers: Mapping[str, str]) -> bytes:
    lines = {"Host": host, "Accept": "application/json", "Accept-Encoding": "identity", **headers}
    for name, value in lines.items():
        # A line end in a header would be a second header: refuse it here, once.
        if not value.isascii() or not value.isprintable():
            raise ValueError(f"{name} must be printable ASCII")
    return "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode("ascii")


def _describe(error: BaseException) -> str:
    text = str(getattr(error, "strerror", None) or error).strip()
    return (text.splitlines() or [""])[0][:200] or type(error).__name__

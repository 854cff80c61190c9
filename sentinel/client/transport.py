"""One HTTP/1.1 exchange on a kept-alive connection, bounded in bytes and in time.

An agent makes three calls per action, so a call costs one write and one small parse (`http_reader.py`), a third of what
the usual clients spend. No redirects, no proxies, no compression: an answer comes from the address that was asked.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Mapping
from weakref import WeakSet

from sentinel.client.endpoint import Endpoint, RawResponse, describe, raw_response
from sentinel.client.errors import NoAnswerKind, Unreachable
from sentinel.client.http_reader import read_response


class Transport:
    """Exchanges with one base address. Thread-safe; keeps up to `pool_size` idle connections."""

    def __init__(self, base_url: str, *, headers: Mapping[str, str], pool_size: int = 16) -> None:
        self._endpoint = Endpoint(base_url, headers)
        self._idle: deque[socket.socket] = deque(maxlen=pool_size)
        self._live: WeakSet[socket.socket] = WeakSet()
        self._closed = False

    def exchange(self, method: str, path: str, body: bytes | None, deadline: float) -> RawResponse:
        """Send one request, return the whole answer; `deadline` is in monotonic seconds. Raises `Unreachable`.

        A kept connection that the server closed meanwhile is replaced at once: our requests are repeatable.
        """
        request = self._endpoint.request(method, path, body)
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
                    raise Unreachable(NoAnswerKind.BROKEN, describe(error)) from error
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
        answer = read_response(link, deadline)
        if answer.is_reusable:
            self._idle.append(link)
        else:
            link.close()
        return raw_response(answer)

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
            raise Unreachable(NoAnswerKind.REFUSED, describe(error)) from error
        self._live.add(link)
        return link

    def _dial(self, deadline: float) -> socket.socket:
        failed: OSError | None = None
        for family, kind, protocol, _, address in socket.getaddrinfo(
            self._endpoint.host, self._endpoint.port, type=socket.SOCK_STREAM
        ):
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
        if self._endpoint.tls is None:
            return link
        return self._endpoint.tls.wrap_socket(link, server_hostname=self._endpoint.host)

"""The transport on an event loop: the same requests, the same strict reading, the same bounds as `transport.py`.

Connections are kept only between `__aenter__` and `close`, and only for the loop that made them, so that a client that nobody
closes leaks nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping

from sentinel.client.endpoint import Endpoint, RawResponse, describe, raw_response
from sentinel.client.errors import NoAnswerKind, Unreachable
from sentinel.client.http_reader import RECEIVE_BYTES, HttpResponse, parse_response

_Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncTransport:
    """Exchanges with one base address; keeps up to `pool_size` idle connections once `keeps` is set."""

    def __init__(self, base_url: str, *, headers: Mapping[str, str], pool_size: int = 16) -> None:
        self._endpoint = Endpoint(base_url, headers)
        self._idle: deque[_Link] = deque(maxlen=pool_size)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def keep_connections(self) -> None:
        """Keep connections for the running loop from now on."""
        self._loop = asyncio.get_running_loop()

    async def exchange(self, method: str, path: str, body: bytes | None, deadline: float) -> RawResponse:
        """Send one request, return the whole answer; `deadline` is in monotonic seconds. Raises `Unreachable`."""
        request = self._endpoint.request(method, path, body)
        try:
            return await asyncio.wait_for(self._exchange(request), max(deadline - time.monotonic(), 0.001))
        except asyncio.TimeoutError as error:  # noqa: UP041 - another class than TimeoutError on Python 3.10
            raise Unreachable(NoAnswerKind.TIMEOUT, "no answer in time") from error

    def close(self) -> None:
        """Close idle connections; the transport is not used afterwards."""
        self._closed = True
        while self._idle:
            _abort(self._idle.pop())

    async def _exchange(self, request: bytes) -> RawResponse:
        while True:
            if self._closed:
                raise Unreachable(NoAnswerKind.CLOSED, "the client is closed")
            kept = self._kept()
            link = kept or await self._connect()
            try:
                return raw_response(await self._send_and_receive(link, request))
            except OSError as error:
                _abort(link)
                if kept is None:
                    raise Unreachable(NoAnswerKind.BROKEN, describe(error)) from error
                # The server closed a kept connection meanwhile: our requests are repeatable.
            except BaseException:
                _abort(link)
                raise

    async def _send_and_receive(self, link: _Link, request: bytes) -> HttpResponse:
        reader, writer = link
        writer.write(request)
        await writer.drain()
        parsing = parse_response()
        next(parsing)
        while True:
            data = await reader.read(RECEIVE_BYTES)
            try:
                parsing.send(data)
            except StopIteration as done:
                response: HttpResponse = done.value
                break
        full = len(self._idle) == self._idle.maxlen
        if response.is_reusable and not full and not self._closed and self._loop is asyncio.get_running_loop():
            self._idle.append(link)
        else:
            _abort(link)
        return response

    def _kept(self) -> _Link | None:
        if self._loop is not asyncio.get_running_loop() or not self._idle:
            return None
        return self._idle.pop()

    async def _connect(self) -> _Link:
        endpoint = self._endpoint
        try:
            return await asyncio.open_connection(
                endpoint.host, endpoint.port, ssl=endpoint.tls, server_hostname=endpoint.host if endpoint.tls else None
            )
        except OSError as error:
            raise Unreachable(NoAnswerKind.REFUSED, describe(error)) from error


def _abort(link: _Link) -> None:
    link[1].transport.abort()

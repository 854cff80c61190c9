"""The transport on an event loop: the same requests, the same strict reading, the same bounds as `transport.py`.

Connections are pooled per event loop. They are closed with the client, at the end of the loop (`asyncio.run` finalises
async generators), or when the client is garbage-collected: a client that is never closed leaks nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from sentinel.client.errors import NoAnswerKind, Unreachable
from sentinel.client.transport import (
    RECEIVE_BYTES,
    Endpoint,
    HttpResponse,
    RawResponse,
    connect_seconds,
    describe,
    numeric_addresses,
    parse_response,
    raw_response,
    start_look_up,
)

T = TypeVar("T")
_Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Attempt:
    """One request, by when it must be answered (monotonic seconds), and whether it may have been sent."""

    def __init__(self, request: bytes, deadline: float) -> None:
        self.request, self.deadline, self.is_sent = request, deadline, False


class AsyncTransport:
    """Exchanges with one base address; keeps up to `pool_size` idle connections for each loop."""

    def __init__(self, base_url: str, *, headers: Mapping[str, str], pool_size: int = 16) -> None:
        self._endpoint = Endpoint(base_url, headers)
        self._pool_size = pool_size
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()
        self._closed = False
        _transports.add(self)

    async def exchange(self, method: str, path: str, body: bytes | None, deadline: float) -> RawResponse:
        """Send one request and return the whole answer; `deadline` is in monotonic seconds. Raises `Unreachable`."""
        attempt = _Attempt(self._endpoint.request(method, path, body), deadline)
        try:
            return await _within(max(deadline - time.monotonic(), 0.001), self._exchange(attempt))
        except asyncio.TimeoutError as error:  # noqa: UP041 - another class than TimeoutError on Python 3.10
            late = Unreachable(NoAnswerKind.TIMEOUT, f"no {'answer' if attempt.is_sent else 'connection'} in time")
            late.may_have_arrived = attempt.is_sent
            raise late from error

    async def close(self) -> None:
        """Close this loop's idle connections; the transport is not used afterwards."""
        self._closed = True
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()

    def take_idle(self) -> list[_Link]:
        """Remove and return the idle connections of every loop."""
        return [link for pool in self._pools.values() for link in pool.take_all()]

    async def _exchange(self, attempt: _Attempt) -> RawResponse:
        was_sent = False
        while True:
            if self._closed:
                raise Unreachable(NoAnswerKind.CLOSED, "the client is closed")
            pool = await self._pool()
            kept = pool.take()
            try:
                link = kept or await self._connect(attempt.deadline)
            except Unreachable as error:
                error.may_have_arrived |= was_sent
                raise
            attempt.is_sent = True
            try:
                response = await _send_and_receive(link, attempt.request)
            except OSError as error:
                _abort(link)
                if kept is None:
                    raise Unreachable(NoAnswerKind.BROKEN, describe(error)) from error
                # The server closed the idle connection meanwhile: send again, since our requests are idempotent.
                was_sent = True
            except BaseException:
                _abort(link)
                raise
            else:
                if not response.is_reusable or self._closed or not pool.give_back(link):
                    _abort(link)
                answer = raw_response(response)
                return answer._replace(was_sent_before=True) if was_sent else answer

    async def _pool(self) -> _Pool:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            # Other threads, with loops of their own, may add and forget pools at the same time.
            for other in self._pools.keyrefs():
                ended = other()
                if ended is not None and ended.is_closed():
                    self._pools.pop(ended, None)
            pool = self._pools[loop] = _Pool(self._pool_size)
            await pool.open()
        return pool

    async def _connect(self, deadline: float) -> _Link:
        try:
            link = await _dial(self._endpoint, deadline)
        except OSError as error:
            raise Unreachable(NoAnswerKind.REFUSED, describe(error)) from error
        if self._closed:  # the client was closed while this connection was made
            _abort(link)
            raise Unreachable(NoAnswerKind.CLOSED, "the client is closed")
        return link


async def _dial(endpoint: Endpoint, deadline: float) -> _Link:
    name = endpoint.host if endpoint.tls else None
    addresses = await _look_up(endpoint.host, endpoint.port)
    for place, (*_, address) in enumerate(addresses):
        opening = asyncio.open_connection(_scoped(address), address[1], ssl=endpoint.tls, server_hostname=name)
        if place == len(addresses) - 1:
            return await opening  # within the call's own time
        left = max(deadline - time.monotonic(), 0.001)
        with suppress(OSError, asyncio.TimeoutError):  # two classes on Python 3.10
            return await _within(connect_seconds(left, len(addresses) - place), opening)
    raise OSError("the name has no address")


def _scoped(address: Any) -> str:
    """The host of a socket's address; a link-local one of IPv6 with its scope, without which nobody can connect to it."""
    return f"{address[0]}%{address[3]}" if len(address) == 4 and address[3] else str(address[0])


async def _look_up(host: str, port: int) -> list[Any]:
    """Call `socket.getaddrinfo`, not in the loop's threads: those may all be taken, e.g. by an agent's tools, and the
    loop's end would wait for a look-up that hangs. Raises what it raises."""
    if (addresses := numeric_addresses(host, port)) is not None:
        return addresses
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[Any]] = loop.create_future()

    def set_found(result: list[Any] | Exception) -> None:
        if found.done():  # given up meanwhile
            return
        if isinstance(result, Exception):
            found.set_exception(result)
        else:
            found.set_result(result)

    def done(result: list[Any] | Exception) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(set_found, result)

    start_look_up(host, port, done)
    return await found


_transports: WeakSet[AsyncTransport] = WeakSet()
_inherited: list[_Link] = []
"""In a forked process, the parent's connections, kept alive here: closing them would remove them from the selector
(epoll) that both processes share."""


def _after_fork() -> None:
    for transport in list(_transports):
        _inherited.extend(transport.take_idle())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Idle(deque[_Link]):
    """Idle connections; none is added once `is_closed` is set."""

    is_closed = False


class _Pool:
    """The idle connections of one loop. An async generator of that loop closes them when client, pool or loop ends, whichever is first."""

    def __init__(self, size: int) -> None:
        self._idle = _Idle(maxlen=size)
        self._holder = _hold(self._idle)

    async def open(self) -> None:
        """Start the generator, so that the loop knows it and finalises it at its end."""
        await anext(self._holder)

    def take(self) -> _Link | None:
        """Remove and return the most recently used connection that is not known to be closed; None without one."""
        while self._idle:
            link = self._idle.pop()
            if not link[1].is_closing():
                return link
        return None

    def take_all(self) -> list[_Link]:
        """Remove and return every connection, closed or not."""
        links = list(self._idle)
        self._idle.clear()
        return links

    def give_back(self, link: _Link) -> bool:
        """Keep the connection for reuse. Returns False where the pool is full or closed."""
        if len(self._idle) == self._idle.maxlen or self._idle.is_closed:
            return False
        self._idle.append(link)
        return True

    async def close(self) -> None:
        """Close the idle connections."""
        await self._holder.aclose()


async def _hold(idle: _Idle) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        idle.is_closed = True
        while idle:
            _abort(idle.pop())
        await asyncio.sleep(0)  # gives the loop a turn to release the aborted connections


async def _within(seconds: float, waiting: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine for at most `seconds`, else raise `asyncio.TimeoutError`. Not by `asyncio.wait_for`, which on
    Python 3.11 loses a cancellation that arrives with the result."""
    if sys.version_info >= (3, 11):  # noqa: UP036 - the client runs on Python 3.10
        async with asyncio.timeout(seconds):
            return await waiting
    else:
        return await _within_by_timer(seconds, waiting)


async def _within_by_timer(seconds: float, waiting: Coroutine[Any, Any, T]) -> T:
    """Do the same as `_within` on Python 3.10, which has no `asyncio.timeout`."""
    task, is_over = asyncio.current_task(), False
    assert task is not None

    def end() -> None:
        nonlocal is_over
        is_over = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, end)
    try:
        return await waiting
    except asyncio.CancelledError:
        if is_over:
            raise asyncio.TimeoutError from None  # noqa: UP041 - as `asyncio.wait_for` raises it there
        raise
    finally:
        timer.cancel()


async def _send_and_receive(link: _Link, request: bytes) -> HttpResponse:
    reader, writer = link
    try:
        writer.write(request)
        await writer.drain()
    except RuntimeError as error:  # uvloop raises it for a connection that was closed meanwhile
        raise ConnectionError(describe(error)) from error
    parsing = parse_response()
    next(parsing)
    while True:
        data = await reader.read(RECEIVE_BYTES)
        try:
            parsing.send(data)
        except StopIteration as done:
            response: HttpResponse = done.value
            return response


def _abort(link: _Link) -> None:
    link[1].transport.abort()

"""The live stream of the public board (server-sent events) on the event loop: a viewer costs a connection and no thread.

New decisions are encoded and joined once for all viewers. A viewer whose connection stalls is disconnected; it
reconnects with its last position and gets what it missed. The total output to all viewers is bounded: when decisions
come faster than that, which is far faster than anybody reads, or faster than they can be kept, viewers get the latest
and the number left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from ops_console import metrics
from ops_console.board.events import LiveEvent
from ops_console.board.hub import HEARTBEAT_SECONDS, KEPT, Hub
from sentinel.core.hosts import network_of
from sentinel.platform.http.asgi import STALLED_SECONDS, Receive, Send, asgi_headers, disconnected
from sentinel.platform.http.wire import address_of, query_field, request_id_of

PATH = "/ops/api/live/stream"
CONNECTED = b": connected\nretry: 2000\n\n"
HEARTBEAT = b": heartbeat\n\n"
ANEW = b"event: anew\ndata: true\n\n"
"""Tells a viewer to discard what it shows: the board has another tenant now, or the database was restored."""
PER_SECOND = 5_000
AT_ONCE = 20_000
_AWAKE_SECONDS = 0.5
_POSITION = re.compile(r"[0-9]{1,18}")


@dataclass(slots=True)
class Pace:
    """A token bucket over events times viewers: `AT_ONCE` in a burst, `PER_SECOND` sustained.

    A single viewer gets every event that is read; 500 viewers get 10 a second each, more than anybody reads.
    """

    left: float = AT_ONCE
    asked_at: float = 0.0

    def allow(self, wanted: int, viewers: int, now: float) -> int:
        """Return how many of `wanted` events may be sent to each of `viewers`, and deduct them; `now` is in monotonic seconds."""
        self.left = min(AT_ONCE, self.left + (now - self.asked_at) * PER_SECOND)
        self.asked_at = now
        allowed = min(wanted, int(self.left) // viewers)
        self.left -= allowed * viewers
        return allowed


class Stream:
    """The stream's endpoint and what all viewers of one process share. `headers` are sent with each answer."""

    def __init__(
        self,
        hub: Hub,
        *,
        headers: dict[str, str],
        trusted_proxies: int = 0,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._hub = hub
        self._trusted_proxies = trusted_proxies
        self._heartbeat_seconds = heartbeat_seconds
        self._headers = asgi_headers(headers)
        self._pace = Pace()
        self._viewers_at: dict[tuple[int, int], int] = {}
        self._payloads: dict[tuple[tuple[int, int], tuple[int, int]], bytes] = {}
        self._news: asyncio.Future[None] | None = None
        self._watch: asyncio.Task[None] | None = None

        @lru_cache(maxsize=2 * KEPT)
        def encode(event: LiveEvent) -> bytes:
            return b"id: %d\ndata: %s\n\n" % (event.position, orjson.dumps(event.fields))

        self.encode = encode

    async def __call__(self, environ: dict[str, Any], receive: Receive, send: Send) -> None:
        """Send the decisions after the viewer's position, then new ones, until it disconnects.

        Raises `TooManyStreams` or `EngineUnavailable` before anything is sent.
        """
        # A browser that reconnects repeats its first address; what it saw last is in the header `Last-Event-ID`.
        seen = last_seen(environ)
        network = network_of(address_of(environ, self._trusted_proxies))
        self._hub.join(network)
        metrics.STREAMS.set(self._hub.viewers)
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            begun = self._hub.begun
            rows, at, left_out = await asyncio.to_thread(self._hub.come, seen)
            if gone.done():
                return
            headers = [*self._headers, (b"x-request-id", request_id_of(environ).encode("latin-1"))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            first = CONNECTED + _tenant(self._hub.tenant_label) + _left_out(left_out) + b"".join(map(self.encode, rows))
            if (
                self._hub.begun != begun
            ):  # the tenant changed meanwhile: the name and the rows may be of different tenants
                first = CONNECTED
            await self._follow(first, at, begun, seen or 0, gone, send)
        except (TimeoutError, OSError):
            return
        finally:
            gone.cancel()
            self._hub.leave(network)
            metrics.STREAMS.set(self._hub.viewers)

    async def _follow(
        self,
        payload: bytes,
        at: tuple[int, int],
        begun: int,
        seen: int,
        gone: asyncio.Future[None],
        send: Send,
    ) -> None:
        told, quiet_since = b"", time.monotonic()
        # The viewer's page may have been rendered after the hub's last read, so a position ahead of it proves nothing
        # yet. The second read to complete from now on surely began after the viewer came; `seen` still ahead of it is
        # stale.
        ahead, surely_later = seen > self._hub.looked, self._hub.looks + 2
        self._viewers_at[at] = self._viewers_at.get(at, 0) + 1
        try:
            while not gone.done():
                news = self._next_news()
                if self._hub.begun != begun:
                    await send({"type": "http.response.body", "body": payload + ANEW, "more_body": False})
                    return
                if ahead and self._hub.looks >= surely_later:
                    payload, ahead = payload + (ANEW if seen > self._hub.looked else b""), False
                status = self._status()
                if status != told:
                    payload, told = payload + status, status
                latest = self._hub.latest
                payload += self._since(at, latest)
                if latest[0] > at[0]:
                    self._moved(at, latest)
                    at = latest
                if not payload and time.monotonic() - quiet_since >= self._heartbeat_seconds:
                    payload = HEARTBEAT
                if payload:
                    async with asyncio.timeout(STALLED_SECONDS):
                        await send({"type": "http.response.body", "body": payload, "more_body": True})
                    payload, quiet_since = b"", time.monotonic()
                if self._hub.is_stopping():
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    return
                if not news.done():
                    left = max(0.0, quiet_since + self._heartbeat_seconds - time.monotonic())
                    timeout = min(left, _AWAKE_SECONDS) if ahead else left
                    await asyncio.wait({news, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._moved(at, None)

    def _moved(self, at: tuple[int, int], to: tuple[int, int] | None) -> None:
        """Count a viewer at its new position (None: it left); `Pace` needs the number of viewers per position."""
        self._viewers_at[at] -= 1
        if not self._viewers_at[at]:
            del self._viewers_at[at]
        if to is not None:
            self._viewers_at[to] = self._viewers_at.get(to, 0) + 1

    def _since(self, at: tuple[int, int], latest: tuple[int, int]) -> bytes:
        """Return the payload for rows after `at` up to `latest`, built once for all viewers at that position."""
        if latest[0] <= at[0]:
            return b""
        found = self._payloads.get((at, latest))
        if found is None:
            rows = [row for row in self._hub.since(at[0]) if row.position <= latest[0]]
            allowed = self._pace.allow(len(rows), self._viewers_at[at], time.monotonic())
            found = _left_out(max(latest[1] - at[1], len(rows)) - allowed)
            found += b"".join(map(self.encode, rows[len(rows) - allowed :]))
            self._payloads = {key: one for key, one in self._payloads.items() if key[1] == latest}
            self._payloads[at, latest] = found
        return found

    def _status(self) -> bytes:
        """The event with each agent's status (halted, degraded, active or idle); null if unreadable; b"" before it was read."""
        status = self._hub.status
        return (
            b"" if status == {} else b"event: status\ndata: %s\n\n" % orjson.dumps(status, option=orjson.OPT_SORT_KEYS)
        )

    def _next_news(self) -> asyncio.Future[None]:
        """Return a future that is done once the reader's thread has something new; all waiting viewers share it."""
        loop = asyncio.get_running_loop()
        if self._watch is None or self._watch.done():

            def ring() -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: there are no viewers
                    loop.call_soon_threadsafe(self._ring)

            self._hub.on_news = ring
            self._watch = loop.create_task(self._keep_awake())
        if self._news is None or self._news.done():
            self._news = loop.create_future()
        return self._news

    def _ring(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _keep_awake(self) -> None:
        """While there are viewers, restart a reader that died, and wake all viewers once the process shuts down."""
        while self._hub.viewers:
            self._hub.keep_reading()
            if self._hub.is_stopping():
                self._ring()
            await asyncio.sleep(_AWAKE_SECONDS)


def _tenant(label: str) -> bytes:
    """The event that names the tenant whose decisions follow; b"" if it has no name."""
    return b"event: tenant\ndata: %s\n\n" % orjson.dumps(label) if label else b""


def _left_out(number: int) -> bytes:
    """The event with the number of decisions that the viewer is not shown; b"" for 0."""
    return b"event: left-out\ndata: %d\n\n" % number if number else b""


def last_seen(environ: dict[str, Any]) -> int | None:
    """The viewer's last position, from `Last-Event-ID`, which browsers send on reconnecting, else the query; None if not given."""
    given = environ.get("HTTP_LAST_EVENT_ID") or query_field(environ, "last_seen")
    return int(given) if _POSITION.fullmatch(given) else None

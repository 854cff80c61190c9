"""The live stream's answer: its first bytes by the request's thread, the rest by the process's broadcaster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import orjson
from flask import Response

from ops_console import metrics
from ops_console.board.broadcast import Broadcaster
from ops_console.board.events import LiveEvent
from ops_console.board.hub import KEPT, Hub
from sentinel.server import HandedOver, take_connection

CONNECTED = b": connected\nretry: 2000\n\n"
HEARTBEAT = b": heartbeat\n\n"


class Stream:
    """What every viewer of one process shares."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

        @lru_cache(maxsize=2 * KEPT)
        def encode(event: LiveEvent) -> bytes:
            return b"id: %d\ndata: %s\n\n" % (event.position, orjson.dumps(event.fields))

        self._encode = encode
        self._broadcaster = Broadcaster(hub, encode)

    def answer(self, environ: Mapping[str, Any], last_seen: int | None) -> Response:
        """The stream from behind `last_seen` (None: the latest few) on. Raises `TooManyStreams`, `EngineUnavailable`."""
        place = _Place(self._hub)
        try:
            rows, position = self._hub.come(last_seen)
        except BaseException:
            place.leave()
            raise
        response = Response(self._body(environ, rows, position, place), content_type="text/event-stream")
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Accel-Buffering"] = "no"
        # Not in the generator: one that is never begun is never finished.
        response.call_on_close(place.leave_unless_handed_over)
        return response

    def _body(self, environ: Mapping[str, Any], rows: list[LiveEvent], position: int, place: _Place) -> Iterator[bytes]:
        yield CONNECTED
        connection = take_connection(environ)
        if connection is not None:
            place.is_handed_over = True
            self._broadcaster.take(
                connection, is_chunked=environ.get("SERVER_PROTOCOL") != "HTTP/1.0", position=position,
                first=b"".join(map(self._encode, rows)), leave=place.leave,
            )  # fmt: skip
            raise HandedOver
        yield from map(self._encode, rows)
        for row in self._hub.follow(position):
            yield HEARTBEAT if row is None else self._encode(row)


class _Place:
    """A viewer's place, taken when made and given back once, however often it is left. Raises `TooManyStreams`."""

    def __init__(self, hub: Hub) -> None:
        hub.join()
        self._hub: Hub | None = hub
        self.is_handed_over = False
        metrics.STREAMS.set(hub.viewers)

    def leave(self) -> None:
        hub, self._hub = self._hub, None
        if hub is not None:
            hub.leave()
            metrics.STREAMS.set(hub.viewers)

    def leave_unless_handed_over(self) -> None:
        if not self.is_handed_over:
            self.leave()

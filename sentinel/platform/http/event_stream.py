"""What every stream of server-sent events on the event loop has in common."""

from __future__ import annotations

from sentinel.platform.http.asgi import Receive

HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
STALLED_SECONDS = 30.0
"""A client that takes nothing holds its place for so long and no longer."""


def asgi_headers(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    """The same as ASGI has them."""
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


async def disconnected(receive: Receive) -> None:
    """Wait until the client is gone; what it sends meanwhile is read and forgotten."""
    while (await receive())["type"] != "http.disconnect":
        pass

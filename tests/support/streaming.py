"""Viewers of a stream in this process: a handler of the event loop runs in a thread's loop, what it sends is read here."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import MutableMapping
from typing import Any

from sentinel.platform.http.asgi import StreamHandler


class Loop:
    """An event loop in a thread, for as long as the context lasts."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True, name="streams")

    def __enter__(self) -> Loop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run_coroutine_threadsafe(self._end_tasks(), self.loop).result(60)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=60)
        self.loop.close()

    @staticmethod
    async def _end_tasks() -> None:
        """Cancel what is still running and wait for it to end."""
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def view(self, handler: StreamHandler, **environ: str) -> Viewer:
        """Somebody new who asks `handler` for its stream."""
        return Viewer(self.loop, handler, environ)


class Viewer:
    """One client of a stream. `stuck` takes nothing more until it is cleared; closing it is going away."""

    def __init__(self, loop: asyncio.AbstractEventLoop, handler: StreamHandler, environ: dict[str, str]) -> None:
        self._loop = loop
        self._came: queue.Queue[bytes] = queue.Queue()
        self._left = asyncio.Event()
        self._takes = asyncio.Event()
        self._takes.set()
        self.headers: dict[bytes, bytes] = {}
        self._rest = b""
        self.done = asyncio.run_coroutine_threadsafe(handler(dict(environ), self._receive, self._send), loop)
        self.done.add_done_callback(lambda _: self._came.put(b""))

    async def _receive(self) -> MutableMapping[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        await self._takes.wait()
        if message["type"] == "http.response.start":
            self.headers = dict(message["headers"])
        elif message.get("body"):
            self._came.put(message["body"])

    def stick(self) -> None:
        """Take nothing any more."""
        self._loop.call_soon_threadsafe(self._takes.clear)

    def recv(self, seconds: float = 60.0) -> bytes:
        """What came next; empty once the answer is over. Raises `queue.Empty`, or what the handler raised."""
        found = self._came.get(timeout=seconds)
        if not found:
            self.done.result(0)
        return found

    def block(self, seconds: float = 60.0) -> str:
        """The next event or comment; empty once the answer is over."""
        while b"\n\n" not in self._rest:
            if not (more := self.recv(seconds)):
                return ""
            self._rest += more
        found, _, self._rest = self._rest.partition(b"\n\n")
        return found.decode() + "\n\n"

    def leave(self) -> None:
        """Go away."""
        self._loop.call_soon_threadsafe(self._left.set)
        self._loop.call_soon_threadsafe(self._takes.set)

    def close(self) -> None:
        """Go away, and wait until that was noticed."""
        self.leave()
        self.done.exception(60)

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

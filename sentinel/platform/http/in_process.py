"""Runs an ASGI app as a WSGI app for threads of the same process: for tests, and for a scratch authority on loopback.

One event loop in a thread of its own serves all callers; it ends with `close`. An exception of the app is raised in the
thread that called it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator, MutableMapping
from concurrent.futures import Future
from http import HTTPStatus
from typing import Any

from sentinel.platform.http.asgi import AsgiApp, Scope

Message = MutableMapping[str, Any]

_ENDING_SECONDS = 2.0
_STATUS_LINES = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}


class InProcess:
    """The WSGI app around `app`."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="in-process")
        self._thread.start()

    def close(self) -> None:
        """End the loop after the answers in progress; what still runs after two seconds, such as a stream, is cancelled."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_end_others(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        """WSGI."""
        exchange = _Exchange(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
        answering = self._app(_scope(environ), exchange.receive, exchange.send)
        exchange.done = asyncio.run_coroutine_threadsafe(answering, self._loop)  # type: ignore[arg-type]
        exchange.done.add_done_callback(lambda _: exchange.sent.put(None))
        start = exchange.next()
        if start is None:
            raise RuntimeError("the app gave no answer")
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
        start_response(_STATUS_LINES[start["status"]], headers)
        return self._body(exchange)

    def _body(self, exchange: _Exchange) -> Iterator[bytes]:
        """Yield the answer's body as it arrives; a caller that stops reading counts as a client that has gone."""
        try:
            while (message := exchange.next()) is not None:
                yield message.get("body", b"")
        finally:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(exchange.gone.set)


class _Exchange:
    """One request and its answer, between a thread and the loop."""

    done: Future[None]

    def __init__(self, body: bytes) -> None:
        self._unread: bytes | None = body
        self.gone = asyncio.Event()
        self.sent: queue.SimpleQueue[Message | None] = queue.SimpleQueue()

    async def receive(self) -> Message:
        """ASGI: return the whole body, and after that nothing until the client is gone."""
        if self._unread is not None:
            body, self._unread = self._unread, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """ASGI."""
        self.sent.put(message)

    def next(self) -> Message | None:
        """The next message that the app sent; None at the end. Raises the app's exception."""
        message = self.sent.get()
        if message is None:
            self.done.result()
        return message


async def _end_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if not others:
        return
    _, streams = await asyncio.wait(others, timeout=_ENDING_SECONDS)
    for task in streams:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _scope(environ: dict[str, Any]) -> Scope:
    headers = [
        (name.removeprefix("HTTP_").lower().replace("_", "-").encode(), value.encode("latin-1"))
        for name, value in environ.items()
        if name.startswith("HTTP_") or (name in ("CONTENT_TYPE", "CONTENT_LENGTH") and value)
    ]
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": environ["SERVER_PROTOCOL"].partition("/")[2],
        "method": environ["REQUEST_METHOD"], "scheme": environ["wsgi.url_scheme"], "root_path": "",
        "path": environ["PATH_INFO"].encode("latin-1").decode("utf-8", "replace"),
        "query_string": environ.get("QUERY_STRING", "").encode("latin-1"), "headers": headers,
        "server": (environ["SERVER_NAME"], int(environ["SERVER_PORT"])),
        "client": (environ.get("REMOTE_ADDR", ""), int(environ.get("REMOTE_PORT", 0))),
    }  # fmt: skip

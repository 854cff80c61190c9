"""An HTTP server on loopback that says exactly what a test tells it, down to the byte, for clients that must survive it."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tests.support.busy import overload


@dataclass
class Asked:
    """One request as it arrived, and the link to answer on."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    link: socket.socket
    stop: threading.Event

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def raw(self, data: bytes) -> None:
        """Exactly these bytes."""
        self.link.sendall(data)

    def answer(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        """A well-formed answer, the only one on its connection: a client that is not told so sends the next one into its end."""
        lines = {
            "Connection": "close",
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.raw(f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + body)

    def say(self, found: Any) -> None:
        """200 with JSON."""
        self.answer(200, json.dumps(found).encode())

    def drip(self, data: bytes, pause: float = 0.02) -> None:
        """Byte by byte."""
        for byte in data:
            if self.stop.wait(pause):
                return
            self.raw(bytes([byte]))

    def hang(self) -> None:
        """Nothing, until the test is over."""
        self.stop.wait(60)

    def reset(self) -> None:
        """The connection breaks in the other's hands."""
        self.link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.link.close()


Script = Callable[[Asked], None]


class ScriptedServer:
    """Answers every request by `script`; `asked` lists them."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.script: Script = lambda asked: asked.answer(500, b"")
        self.asked: list[Asked] = []
        self._tls = tls
        self._stop = threading.Event()
        self._links: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[ScriptedServer]:
        """Listens inside; every thread is over afterwards."""
        threads: list[threading.Thread] = []
        loop = threading.Thread(target=self._accept, args=(threads,), daemon=True)
        loop.start()
        try:
            yield self
        finally:
            self._stop.set()
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            for link in self._links:  # nobody waits for what a client never sends
                with suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)
            for thread in (loop, *threads):
                thread.join(5)

    def _accept(self, threads: list[threading.Thread]) -> None:
        while not self._stop.is_set():
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            self._links.append(link)
            threads.append(threading.Thread(target=self._serve, args=(link,), daemon=True))
            threads[-1].start()

    def _serve(self, link: socket.socket) -> None:
        link.settimeout(60)
        try:
            if self._tls:
                link = self._tls.wrap_socket(link, server_side=True)
            if (asked := _read(link, self._stop)) is not None:
                self.asked.append(asked)
                self.script(asked)
        except OSError:
            pass  # the other side went away: that is what half of these tests are about
        finally:
            link.close()


def _read(link: socket.socket, stop: threading.Event) -> Asked | None:
    data = b""
    while b"\r\n\r\n" not in data:
        more = link.recv(65536)
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        more = link.recv(65536)
        if not more:  # the other side left in the middle of what it sent
            return None
        body += more
    method, path, _ = first.split(" ", 2)
    return Asked(method, path, headers, body, link, stop)


def _endless(asked: Asked) -> None:
    asked.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    while not asked.stop.is_set():
        asked.raw(b" " * 65536)


def _endless_head(asked: Asked) -> None:
    asked.raw(b"HTTP/1.1 200 OK\r\n")
    while not asked.stop.is_set():
        asked.raw(b"X-More: " + b"x" * 8000 + b"\r\n")


def _endless_line(asked: Asked) -> None:
    asked.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not asked.stop.is_set():
        asked.raw(b"1" * 65536)


_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_LONG = _HEAD + b"Content-Length: 9999\r\n\r\n"


def faults(yes: bytes) -> dict[str, tuple[Script, str]]:
    """How a server can fail around the body `yes`, and what is then known: a trouble, or "answered" with something unusable."""
    return {
        "hangs": (lambda asked: asked.hang(), "timeout"),
        "hangs after the head": (lambda asked: (asked.raw(_LONG), asked.hang())[0], "timeout"),
        # One line: a client gives a head of more than a hundred lines up as broken, which a long deadline would outlast.
        "drips its head": (lambda asked: asked.drip(b"HTTP/1.1 200 OK\r\nX-A: " + b"b" * 9000), "timeout"),
        "drips its body": (lambda asked: (asked.raw(_LONG), asked.drip(b" " * 9000))[0], "timeout"),
        "drips chunks": (lambda asked: (asked.raw(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n"),
                                        asked.drip(b"1\r\n \r\n" * 1500))[0], "timeout"),
        "resets": (lambda asked: asked.reset(), "broken"),
        "closes": (lambda asked: None, "broken"),
        "is cut off": (lambda asked: asked.raw(_LONG + yes), "broken"),
        "speaks no HTTP": (lambda asked: asked.raw(b"SSH-2.0-x\r\n\r\n"), "broken"),
        "never ends": (_endless, "too_large"),
        "never ends its head": (_endless_head, "broken|too_large"),
        "never ends a line": (_endless_line, "broken|too_large"),
        "10 MB": (lambda asked: asked.answer(200, b" " * (10 << 20)), "too_large"),
        "10 MB around a yes": (lambda asked: asked.answer(200, yes + b" " * (10 << 20)), "too_large"),
        "429": (lambda asked: asked.answer(429, yes, Retry_After="1"), "answered"),
        "500": (lambda asked: asked.answer(500, yes), "answered"),
        "201": (lambda asked: asked.answer(201, yes), "answered"),
        "redirect": (lambda asked: asked.answer(307, yes, Location="/elsewhere") if asked.path != "/elsewhere"
                     else asked.answer(200, yes), "answered"),
        "HTML": (lambda asked: asked.answer(200, b"<html>yes</html>", "text/html"), "answered"),
        "a yes as HTML": (lambda asked: asked.answer(200, yes, "text/html"), "answered"),
        "a yes as text": (lambda asked: asked.answer(200, yes, "text/plain"), "answered"),
        "a yes without a type": (lambda asked: asked.raw(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s"
                                                          % (len(yes), yes)), "answered"),
        "empty": (lambda asked: asked.answer(200, b""), "answered"),
        "null": (lambda asked: asked.answer(200, b"null"), "answered"),
        "an array": (lambda asked: asked.answer(200, b"[" + yes + b"]"), "answered"),
        "two answers": (lambda asked: asked.answer(200, yes + yes), "answered"),
        "not UTF-8": (lambda asked: asked.answer(200, b"\xff\xfe" + yes), "answered"),
        "deep": (lambda asked: asked.answer(200, b"[" * 60000), "answered"),
        "compressed": (lambda asked: asked.answer(200, b"\x1f\x8b" + yes, Content_Encoding="gzip"), "answered"),
    }  # fmt: skip


SLACK = 20.0
"""Seconds that a busy machine may take on top of a deadline: far from what a server that hangs (sixty) or drips (more) takes."""


def deadline_for(known: str) -> float:
    """Short where the fault is to last until the deadline; else long, so that a busy machine cannot be taken for a fault.

    The short one grows with the machine's load, for it must not be over before anything is sent, but stays far from a minute.
    """
    return min(0.6 * overload(), 8.0) if known == "timeout" else 60.0


def times_asked(server: ScriptedServer) -> int:
    """How often it was asked, once it has read what was sent: a caller that gave up may be ahead of it."""
    deadline = time.monotonic() + SLACK
    while not server.asked and time.monotonic() < deadline:
        time.sleep(0.01)
    return len(server.asked)


def took(call: Callable[[], Any]) -> tuple[Any, float]:
    """What it returned, and how many seconds it took."""
    began = time.monotonic()
    return call(), time.monotonic() - began

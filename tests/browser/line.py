"""The way between a browser and the console, which a test may cut and mend."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


class Line:
    """Carries bytes both ways; while it is cut, what comes is closed at once."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._is_cut = False
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def cut(self) -> None:
        """Break every connection, and each that comes."""
        self._is_cut = True
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Carry again."""
        self._is_cut = False

    def close(self) -> None:
        """Stop listening, and leave no socket open: one that is collected later fails whichever test runs then."""
        self.cut()
        self._listening.shutdown(socket.SHUT_RDWR)  # closing it would wake nobody who accepts
        for thread in self._threads:  # the first accepts: after it none is added
            thread.join()
        for one in (self._listening, *self._open):
            one.close()

    def _begin(self, work: Callable[..., None], *given: socket.socket) -> None:
        thread = threading.Thread(target=work, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                if self._is_cut:
                    here.close()
                    continue
                self._open.add(here)
                there = socket.create_connection(("127.0.0.1", self._to))
                self._open.add(there)
                if self._is_cut:  # since it was asked: the cut did not see these two
                    self.cut()
                for source, target in ((here, there), (there, here)):
                    self._begin(self._carry, source, target)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def line_to(url: str) -> Iterator[Line]:
    """A line to the console at `url`."""
    line = Line(int(url.rpartition(":")[2]))
    try:
        yield line
    finally:
        line.close()

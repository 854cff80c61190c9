"""A proxy between a program and PostgreSQL that loses, garbles or withholds exactly what a test says.

It speaks unix sockets and knows only two things of the protocol: where a query's result ends, and where a transaction is
over. So "the commit happened and its reply was lost" is a place and not a guess.
"""

from __future__ import annotations

import contextlib
import select
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

PORT_FILE = ".s.PGSQL.5432"
_RESULT, _OVER = b"SELECT ", b"Z\x00\x00\x00\x05I"
_WITHIN = (b"Z\x00\x00\x00\x05T", b"Z\x00\x00\x00\x05E")


class DatabaseProxy:
    """Forwards until told otherwise. The orders count queries, each used once, first come first served."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.lose_replies = 0
        self.lose_requests = 0
        self.garble_replies = 0
        self.on_reply: Callable[[], None] | None = None
        self.black_hole = threading.Event()
        self.lost = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.folder = Path(tempfile.mkdtemp(prefix="snt-proxy-"))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.folder / PORT_FILE))
        self._listener.listen(64)
        self._listener.settimeout(0.1)
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, url: str) -> str:
        """The same database through the proxy."""
        return make_conninfo(**{**conninfo_to_dict(url), "host": str(self.folder)})

    def close(self) -> None:
        """End everything."""
        self._closing.set()
        self._listener.close()
        (self.folder / PORT_FILE).unlink(missing_ok=True)
        self.folder.rmdir()

    def _accept(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError, OSError):
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        with client, server, contextlib.suppress(OSError):
            server.connect(str(self.target))
            reply = b""
            began = False
            while not self._closing.is_set():
                ready, _, _ = select.select([client, server], [], [], 0.1)
                if client in ready:
                    data = client.recv(65536)
                    # A start-up packet is no query; only what comes after the first "ready" counts.
                    if not data or (began and self._use("lose_requests")):
                        return
                    server.sendall(data)
                if server in ready:
                    data = server.recv(65536)
                    if not data:
                        return
                    reply += data
                    if reply.endswith(_WITHIN):
                        # An answer within a transaction: nothing is decided by it yet.
                        if not self._speaks_again():
                            return
                        client.sendall(reply)
                        reply = b""
                        continue
                    whole = reply.endswith(_OVER)
                    if (began and _RESULT in reply) or not whole:
                        if whole and not self._deliver(client, reply):
                            return
                    else:
                        client.sendall(reply)
                    if whole:
                        reply, began = b"", True
                    elif not began:
                        client.sendall(reply)
                        reply = b""

    def _deliver(self, client: socket.socket, reply: bytes) -> bool:
        """Pass on a query's whole reply, its transaction being over, or do what was ordered instead."""
        if self.on_reply is not None:
            self.on_reply()
        if not self._speaks_again() or self._use("lose_replies"):
            return False
        if self._use("garble_replies"):
            client.sendall(b"\x00\xff garbage \xfe" * 20)
            return False
        client.sendall(reply)
        return True

    def _speaks_again(self) -> bool:
        """Wait while answers are withheld; False where the proxy is closed meanwhile."""
        while self.black_hole.is_set():
            if self._closing.wait(0.05):
                return False
        return True

    def _use(self, order: str) -> bool:
        with self._lock:
            left = getattr(self, order)
            if left <= 0:
                return False
            setattr(self, order, left - 1)
            self.lost += 1
            return True


@contextmanager
def proxied(url: str) -> Iterator[DatabaseProxy]:
    """A proxy in front of the server of a URL with a socket folder as its host."""
    proxy = DatabaseProxy(Path(str(conninfo_to_dict(url)["host"])) / PORT_FILE)
    try:
        yield proxy
    finally:
        proxy.close()

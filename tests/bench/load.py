"""A small closed-loop HTTP load generator: N keep-alive connections on one selector, prebuilt requests, exact latencies.

In Python so that the benchmark needs nothing installed; raw sockets so that it costs little beside what it measures.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class LoadResult:
    """Latencies in seconds of the answered requests, and how many had another status than 200."""

    seconds: float
    latencies: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)

    @property
    def per_second(self) -> float:
        """Answered requests a second."""
        return len(self.latencies) / self.seconds

    def percentile(self, share: float) -> float:
        """A latency in milliseconds, e.g. `percentile(0.99)`."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def request_bytes(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """One POST as it goes over the wire."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, *(f"{k}: {v}" for k, v in headers.items()), "", ""]).encode() + body


class _Connection:
    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.began = 0.0

    def send(self, request: bytes) -> None:
        self.began = time.perf_counter()
        self.socket.sendall(request)

    def receive(self) -> int | None:
        """The status once the whole answer is there, else None."""
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("the server closed the connection")
        self.buffer += data
        head, separator, rest = self.buffer.partition(b"\r\n\r\n")
        if not separator:
            return None
        lower = head.lower()
        start = lower.index(b"content-length:") + 15
        end = lower.find(b"\r\n", start)
        length = int(lower[start : end if end > 0 else None])
        if len(rest) < length:
            return None
        self.buffer = rest[length:]
        return int(head[9:12])


def run_load(
    address: tuple[str, int], requests: Iterator[bytes], *, connections: int, seconds: float, warm_seconds: float = 0.5
) -> LoadResult:
    """Keep `connections` requests in flight for `seconds`, after an uncounted warm-up; ends early with the last request."""
    selector = selectors.DefaultSelector()
    opened = [_Connection(address) for _ in range(connections)]
    begin = time.perf_counter() + warm_seconds
    end = begin + seconds
    result, waiting = LoadResult(seconds), 0
    for connection, request in zip(opened, requests, strict=False):
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.send(request)
        waiting += 1
    try:
        while waiting and time.perf_counter() < end:
            for key, _ in selector.select(timeout=1.0):
                connection = key.data
                status = connection.receive()
                if status is None:
                    continue
                now = time.perf_counter()
                if now >= begin:
                    result.latencies.append(now - connection.began)
                    result.statuses[status] = result.statuses.get(status, 0) + 1
                following = next(requests, None)
                if following is None:
                    waiting -= 1
                else:
                    connection.send(following)
    finally:
        for connection in opened:
            connection.socket.close()
        selector.close()
    return result

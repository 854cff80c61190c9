"""What a request costs the server that does nothing with it: our edge alone, answering as many bytes as a guard has.

python -m tests.bench.pieces_edge --serve PORT
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

from flask import Flask

from sentinel.platform.http.asgi import Edge, by_path
from sentinel.platform.http.wire import EdgeResponse, HttpsOnly, Request
from sentinel.platform.serving.server import Listener, Server
from tests.bench.cpu import tree_cpu_seconds
from tests.bench.generator import generate
from tests.bench.templates import GUARD, guards
from tests.support.ports import free_port

ANSWER = b'{"decision":"ALLOW","padding":"' + b"x" * 1400 + b'"}'
CONNECTIONS = (1, 32)


def measure(seconds: int) -> None:
    """Print CPU a request of the bare edge."""
    with _running() as (port, pid):
        for connections in CONNECTIONS:
            generate(port, guards("unused"), connections=connections, seconds=1)
            before = tree_cpu_seconds(pid)
            measured = generate(port, guards("unused"), connections=connections, seconds=seconds)
            cpu = tree_cpu_seconds(pid) - before
            print(
                f"{f'bare edge, {connections} connections':36} CPU {measured.each(1e6 * cpu):7.1f} us   {measured.per_second:,.0f}/s"
                f"   p50 {measured.p50_ms:.2f} ms (n={measured.requests})",
                flush=True,
            )


@contextlib.contextmanager
def _running() -> Iterator[tuple[int, int]]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.pieces_edge", "--serve", str(port)])
    try:
        for _ in range(200):
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{port}{GUARD}", b"{}", timeout=2),
            ):
                break
            time.sleep(0.1)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(timeout=10)


def serve(port: int) -> None:
    """The server, in the foreground."""

    async def answer(_: Request) -> EdgeResponse:
        return EdgeResponse(ANSWER)

    def make_app(_: object) -> Edge:
        return Edge(Flask("edge"), threads=1, posts=by_path({GUARD: answer}), https_only=HttpsOnly(behind_tls=False))

    listener = Listener("127.0.0.1", port, 1000, 1000, "--serve", "", "")
    Server(make_app, listener, processes=2, graceful_seconds=1).run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", type=int, required=True)
    serve(parser.parse_args().serve)

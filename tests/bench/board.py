"""What viewers of the public board cost the guard: its throughput with 500 live streams on one console process and with none.

The viewers are real connections, read by a process of their own that counts events and checks that positions only grow.
Everything shares this machine, so what the viewers themselves cost to read is in the ratio too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sentinel.store.database import BOARD, CONSOLE
from tests.bench.templates import guards
from tests.support.logins import program_url
from tests.support.ports import free_port

if TYPE_CHECKING:
    from tests.bench.place import Bench

VIEWERS = 500
WANTED = 0.9
_POSITION = re.compile(rb"^id: (\d+)$", re.MULTILINE)
_LEFT_OUT = re.compile(rb"event: left-out\ndata: (\d+)\n")


def board_viewers(bench: Bench, seconds: int, *, connections: int = 32) -> None:
    """One round: guards with no viewer, then with `VIEWERS`; notes both, and what reached the viewers."""
    with running_console(bench) as port:
        bench.guard("guard without viewers", guards, connections=connections, seconds=seconds)
        with watching(port, VIEWERS) as told:
            bench.guard(f"guard with {VIEWERS} viewers", guards, connections=connections, seconds=seconds)
        bench.note("viewers at the end", told["open"])
        bench.note("events a viewer a second", told["events"] / VIEWERS / told["seconds"])
        bench.note("events left out a viewer", told["left_out"] / VIEWERS)
        bench.note("positions out of order", told["out_of_order"])


@contextlib.contextmanager
def running_console(bench: Bench) -> Iterator[int]:
    """One process of the public board on the bench's database; its port."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "ops_console", "--only", "public", "--board-port", str(port), "--graceful-seconds", "2"],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "SENTINEL_DATABASE_URL": program_url(bench.url, CONSOLE),
             "SENTINEL_BOARD_DATABASE_URL": program_url(bench.url, BOARD), "SENTINEL_PUBLIC_AGENTS": "*", "SENTINEL_LOG_LEVEL": "error",
             "SENTINEL_BOARD_MAX_CONNECTIONS_PER_ADDRESS": "2000", "SENTINEL_REQUIRE_SECOND_FACTOR": "nobody"},
    )  # fmt: skip
    try:
        _wait(port)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=15)


def _wait(port: int) -> None:
    for _ in range(300):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise SystemExit("the console did not start")


@contextlib.contextmanager
def watching(port: int, viewers: int) -> Iterator[dict[str, float]]:
    """So many viewers in a process of their own, all connected when the block begins; filled with what they saw at its end."""
    command = [sys.executable, "-m", "tests.bench.board", "--watch", str(port), "--viewers", str(viewers)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    told: dict[str, float] = {}
    try:
        if process.stdout.readline() != "ready\n":
            raise SystemExit("the viewers could not connect")
        yield told
        process.stdin.close()
        told.update(json.loads(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def watch(port: int, viewers: int) -> dict[str, float]:
    """Hold the streams open and read them until standard input ends."""
    selector = selectors.DefaultSelector()
    request = b"GET /ops/api/live/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nLast-Event-ID: 999999999999999\r\n\r\n"
    for _ in range(viewers):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(request)
        if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
            raise SystemExit("a viewer was refused")
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ, [0])
    selector.register(sys.stdin, selectors.EVENT_READ)
    print("ready", flush=True)
    told, began = {"open": viewers, "events": 0, "left_out": 0, "out_of_order": 0}, time.monotonic()
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                return {**told, "seconds": time.monotonic() - began}
            if not _read(key, told):
                told["open"] -= 1
                selector.unregister(key.fileobj)


def _read(key: selectors.SelectorKey, told: dict[str, int]) -> bool:
    data = key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
    # Looked at as little as can be: what this costs is taken from what is measured.
    told["events"] += data.count(b"\ndata: {")
    if first := _POSITION.search(data):
        told["out_of_order"] += int(first[1]) <= key.data[0]
        last = data.rindex(b"id: ")
        key.data[0] = int(data[last + 4 : last + 24].partition(b"\n")[0] or first[1])
    if b"left-out" in data:
        told["left_out"] += sum(map(int, _LEFT_OUT.findall(data)))
    return bool(data)


def main() -> None:
    """Rounds of this measurement alone."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.board", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--watch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--viewers", type=int, default=VIEWERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch:
        print(json.dumps(watch(options.watch, options.viewers)), flush=True)
        return
    from tests.bench.place import running_bench

    with running_bench() as bench:
        for _ in range(options.rounds):
            board_viewers(bench, options.seconds)
    for name, values in bench.figures.items():
        print(f"{name}: {statistics.median(values):,.1f} [{min(values):,.1f}–{max(values):,.1f}]")
    pairs = zip(bench.figures[f"guard with {VIEWERS} viewers"], bench.figures["guard without viewers"], strict=True)
    ratios = [with_them / without for with_them, without in pairs]
    print(
        f"ratio: {statistics.median(ratios):.2f} [{min(ratios):.2f}–{max(ratios):.2f}], wanted ≥ {WANTED}; load {Path('/proc/loadavg').read_text()}"
    )


if __name__ == "__main__":
    main()

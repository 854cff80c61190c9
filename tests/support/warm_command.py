"""A command line whose program is forked from a warm process, for what starts programs by itself: an MCP client, say.

`warm_process.warm_line` gives the line. This file, which is what the line runs, begins with next to nothing: it has the program forked
with its own environment and standard streams, and ends as the program does. What a start itself may do wrong is for tests that start plainly.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping, Sequence


def ask(address: str, argv: list[str], env: Mapping[str, str] | None, streams: Sequence[int]) -> socket.socket:
    """Ask the warm process at `address` for a program with these standard streams.

    Returns the line on which its number and then its exit code are told. When the line is closed, the program is killed.
    """
    ours, its = socket.socketpair()
    with its, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(f"\0{address}")
        request = json.dumps({"argv": argv, "env": env}).encode()
        socket.send_fds(asking, [request], [its.fileno(), *streams])
    return ours


def main(address: str, argv: list[str]) -> int:
    """Have the program forked, hand on signals, wait for its end. The exit status; a signal that ended it ends this too."""
    came: deque[int] = deque()
    woken, wakes = socket.socketpair()  # a signal that comes just before a wait would not end it
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: came.append(number))
    told = ask(address, argv, dict(os.environ), (0, 1, 2))
    _let_go_of_streams()
    text = b""
    numbers: list[bytes] = []
    while len(numbers) < 2:
        ready = select.select([told, woken], [], [])[0]
        if woken in ready:
            woken.recv(100)
        if told in ready:
            part = told.recv(100)
            if not part:
                break
            text += part
            numbers = text.split(b"\n")[:-1]
        while numbers and came:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(numbers[0]), came.popleft())
    status = int(numbers[1]) if len(numbers) == 2 else -signal.SIGKILL
    if status < 0:
        if status != -signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _let_go_of_streams() -> None:
    """Who reads the program's output waits for its end, which comes once nobody else has the streams."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

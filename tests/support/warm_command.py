"""A command line whose program is forked from a warm process, for what starts programs by itself: an MCP client, say.

`warm_process.warm_command` gives the line. This file, which is what the line runs, begins with next to nothing: it has the program forked
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


def main(address: str, argv: list[str]) -> int:
    """Have the program forked, hand on signals, wait for its end. The exit status; a signal that ended it ends this too."""
    came: deque[int] = deque()
    woken, wakes = socket.socketpair()  # a signal that comes just before a wait would not end it
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: came.append(number))
    ours = _asked(address, argv)
    said = b""  # its process's number, and how it ended, a line each
    while said.count(b"\n") < 2:
        ready = select.select([ours, woken], [], [])[0]
        if woken in ready:
            woken.recv(100)
        if ours in ready:
            part = ours.recv(100)
            if not part:
                break
            said += part
        while b"\n" in said and came:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(said.split()[0]), came.popleft())
    status = int(said.split()[1]) if said.count(b"\n") == 2 else -signal.SIGKILL
    if status < 0:
        if status != -signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _asked(address: str, argv: list[str]) -> socket.socket:
    """The line on which it is told of the program. From now on only that has the standard streams: who reads them waits for their end."""
    ours, its = socket.socketpair()
    with its, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.connect(f"\0{address}")
        request = json.dumps({"argv": argv, "env": dict(os.environ)}).encode()
        socket.send_fds(line, [request], [its.fileno(), 0, 1, 2])
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.close(nowhere)
    return ours


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

"""Drops to the server's account, ends with the parent process, and executes the given program.

Run as a script in a fresh interpreter (`process.launch`) and imports nothing of ours. A separate program
and not a `preexec_fn`: code between fork and exec can deadlock in a process that has threads.
Arguments: the starter's process id, user id and group id (or "-"), then the command.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Never returns: the process becomes the command, or ends with status 71 and one line."""
    starter, uid, gid, *command = arguments
    try:
        watch = _system_call()
        if uid != "-":
            _become(int(uid), int(gid))
        # After the change of account, which would clear it. SIGINT is PostgreSQL's fast shutdown.
        watch(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
        if os.getppid() != int(starter):
            sys.exit(71)  # The starter ended before the kernel was told to watch it.
        _restore_signals()
        os.execv(command[0], command)
    except OSError as error:
        print(f"FATAL: cannot start {command[0]} as user {uid}: {error.strerror}", file=sys.stderr)
        sys.exit(71)


def _become(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def _system_call() -> Callable[..., object]:
    """prctl(2), or a function that does nothing where it does not exist. Loaded before the switch of account, which may not read it."""
    if sys.platform != "linux":
        return lambda *_: None
    import ctypes

    prctl: Callable[..., object] = ctypes.CDLL(None).prctl
    return prctl


def _restore_signals() -> None:
    # Python ignores these at start, and what is ignored stays ignored over exec.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)


if __name__ == "__main__":
    main(sys.argv[1:])

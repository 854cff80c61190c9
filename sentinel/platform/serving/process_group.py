"""Runs several servers of one program in processes of their own that start and stop together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


def die_with_parent() -> None:
    """Have the kernel end this process (SIGTERM) when the one that started it dies in any way; where it can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def run_side_by_side(servers: Sequence[Callable[[], None]]) -> None:
    """Run each in a child process until all have ended; signals are passed on. One alone runs right here.

    When one ends by itself the others are told to, and this process exits with 1: whoever started it starts it again.
    """
    if len(servers) == 1:
        servers[0]()
        return
    children: set[int] = set()
    signalled: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        if number != signal.SIGHUP:
            signalled.append(number)
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    for run in servers:
        pid = os.fork()
        if pid == 0:
            _child(run)
        children.add(pid)
    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    failed = False
    while children:
        pid, status = os.wait()
        children.discard(pid)
        if not signalled:
            failed = True
            pass_on(signal.SIGTERM, None)
        failed = failed or os.waitstatus_to_exitcode(status) != 0
    if failed:
        sys.exit(1)


def _child(run: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        for number in _PASSED_ON:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        die_with_parent()
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

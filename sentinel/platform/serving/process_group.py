"""Runs several servers of one program in processes of their own that start and stop together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from sentinel.platform.standard_streams import flush_streams

_PR_SET_PDEATHSIG = 1
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


def die_with_parent(parent: int) -> None:
    """Have the kernel send SIGTERM to this process when `parent`, the process that started it, dies in any way (Linux only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the kernel was told to watch it
        os.kill(os.getpid(), signal.SIGTERM)


def run_side_by_side(servers: Sequence[Callable[[], None]]) -> None:
    """Run each server in a child process until all have ended, passing signals on. A single one runs in this process.

    When one ends by itself the others get SIGTERM, and this process exits with 1, so that its supervisor restarts it.
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
    parent = os.getpid()
    for run in servers:
        pid = os.fork()
        if pid == 0:
            _child(run, parent)
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


def _child(run: Callable[[], None], parent: int) -> NoReturn:
    code = 1
    try:
        for number in _PASSED_ON:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        die_with_parent(parent)
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        flush_streams()
        os._exit(code)

"""The demo's supervisor: a few child processes that live and die with this one.

A child that ends by itself is started again; when this process is told to stop, or dies in any way, they all end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STOP_SECONDS = 1.5
_PR_SET_PDEATHSIG = 1
_RESTART_SECONDS = 1.0


def _die_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass
class _Child:
    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    process: subprocess.Popen[bytes]
    started_at: float


class Processes:
    """Named children, their output in a file each."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: list[_Child] = []
        self._passing: list[subprocess.Popen[bytes]] = []
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start a child that is to stay. Its output goes to `<logs>/<name>.log`."""
        process = self._spawn(name, command, env)
        self._children.append(_Child(name, command, env, process, time.monotonic()))

    def run(
        self, name: str, command: Sequence[str], env: Mapping[str, str], *, stdin: bytes = b"", show: bool = False
    ) -> int:
        """Run a child to its end; its exit code. `show` lets it print here."""
        with (self._logs / f"{name}.log").open("ab") as log:
            output = sys.stderr if show else log
            process = subprocess.Popen(
                command, env=dict(env), stdin=subprocess.PIPE, stdout=None if show else output, stderr=output,
                start_new_session=True, preexec_fn=_die_with_parent,
            )  # fmt: skip
            # Known to `stop`, which may come from another thread in the middle of it.
            self._passing.append(process)
            try:
                process.communicate(stdin)
            finally:
                self._passing.remove(process)
            return process.returncode

    def _spawn(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with (self._logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command, env=dict(env), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=_die_with_parent,
            )  # fmt: skip

    def restart_ended(self) -> list[str]:
        """Start again whatever ended by itself, at most once a second each; the names of those."""
        ended = []
        for child in self._children:
            if child.process.poll() is not None and time.monotonic() - child.started_at > _RESTART_SECONDS:
                child.process = self._spawn(child.name, child.command, child.env)
                child.started_at = time.monotonic()
                ended.append(child.name)
        return ended

    def ended(self) -> str | None:
        """The name of a child that is not running, or None."""
        return next((child.name for child in self._children if child.process.poll() is not None), None)

    def signal(self, name: str, number: int) -> None:
        """Pass a signal on to a child."""
        for child in self._children:
            if child.name == name and child.process.poll() is None:
                child.process.send_signal(number)

    def stop(self) -> None:
        """End all children: ask, wait a moment, then insist. Nothing is left when this returns."""
        for process in tuple(self._passing):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for child in self._children:
            if child.process.poll() is None:
                child.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for child in self._children:
            try:
                child.process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                # Its own session, so its own children end with it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.process.pid, signal.SIGKILL)
                child.process.wait()
            # One that was killed just now may have left children of its own, which nobody else will end.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, signal.SIGKILL)
        self._children.clear()

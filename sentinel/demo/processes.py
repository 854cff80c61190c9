"""The demo's child processes, which end with this one, a wait until they are ready, and the sender of events on demand.

A child that ends by itself is restarted; when this process is asked to stop, or dies in any way, all children end. Once
it is asked to stop, no child is started any more. Their loopback ports are reserved before they listen.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg

from sentinel.core.errors import SentinelError
from sentinel.platform.log_files import bound_log
from sentinel.platform.private_files import open_private, private_folder
from sentinel.platform.serving.process_group import die_with_parent

HOST = "127.0.0.1"
# An HTTP proxy named in the environment must not come between two programs of one machine.
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens URLs of programs on this machine, without a proxy."""
STOP_SECONDS = 1.5
_RESTART_SECONDS = 1.0
_POLL_SECONDS = 0.05
READY_SECONDS = 30.0
_MOST_SAID = 300


class DemoStopped(Exception):
    """The demo was asked to stop. Not a failure."""


def raise_if_stopped(stop: threading.Event) -> None:
    """Raise `DemoStopped` once `stop` is set; called between the stages of a start."""
    if stop.is_set():
        raise DemoStopped


@dataclass
class _Child:
    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    process: subprocess.Popen[bytes]
    started_at: float


class Processes:
    """Named child processes, each with a log file of its output. Thread-safe.

    `start`, `run` and `restart_ended` raise `DemoStopped` once `stop` is set or the method `stop` was called.
    """

    def __init__(self, logs: Path, stop: threading.Event) -> None:
        self._logs = logs
        self._told = stop
        self._children: list[_Child] = []
        self._passing: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._deadline: float | None = None
        private_folder(logs)

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start a child that keeps running, and is restarted if it ends. Its output goes to `<logs>/<name>.log`."""
        with self._lock:
            process = self._spawn(name, command, env)
            self._children.append(_Child(name, command, env, process, time.monotonic()))

    def run(
        self, name: str, command: Sequence[str], env: Mapping[str, str], *, stdin: bytes = b"", show: bool = False
    ) -> int:
        """Run a child to its end and return its exit code. `show` lets it print to this process's own output."""
        with self._lock:
            process = self._spawn(name, command, env, stdin=stdin, show=show)
            # Recorded, so that `stop` in another thread can end it while it runs.
            self._passing.append(process)
        try:
            self._await(process)
        finally:
            with self._lock:
                self._passing.remove(process)
        return process.returncode

    def _await(self, process: subprocess.Popen[bytes]) -> None:
        while not self._should_stop():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
                return
        # Ended by this thread, which must outlive the child: when the thread that started a child ends, the kernel
        # sends the child SIGTERM (`die_with_parent`).
        _end(process, self._terminate_all())
        raise DemoStopped

    def raise_if_stopped(self) -> None:
        """Raise `DemoStopped` once the demo is to stop; called in what this process itself does between two children."""
        if self._should_stop():
            raise DemoStopped

    def _should_stop(self) -> bool:
        return self._told.is_set() or self._deadline is not None

    def _spawn(
        self, name: str, command: Sequence[str], env: Mapping[str, str], *, stdin: bytes = b"", show: bool = False
    ) -> subprocess.Popen[bytes]:
        # Checked under the lock: a child is either known to `stop` or never started.
        self.raise_if_stopped()
        # Its standard input is a file, so that no thread has to feed it.
        with open_private(self._logs / f"{name}.log", append=True) as log, tempfile.TemporaryFile() as given:
            given.write(stdin)
            given.seek(0)
            return subprocess.Popen(
                command, env=dict(env), stdin=given, stdout=None if show else log, stderr=sys.stderr if show else log,
                start_new_session=True, preexec_fn=partial(die_with_parent, os.getpid()),
            )  # fmt: skip

    def restart_ended(self) -> list[str]:
        """Restart the children that ended by themselves, each at most once a second; return their names."""
        ended = []
        for child in self._children:
            if child.process.poll() is not None and time.monotonic() - child.started_at > _RESTART_SECONDS:
                with self._lock:
                    child.process = self._spawn(child.name, child.command, child.env)
                child.started_at = time.monotonic()
                ended.append(child.name)
        return ended

    def bound_logs(self) -> None:
        """Keep the log of each running child short."""
        for child in self._children:
            bound_log(self._logs / f"{child.name}.log")

    def ended(self) -> str | None:
        """The name of a child that is not running, or None."""
        return next((child.name for child in self._children if child.process.poll() is not None), None)

    def signal(self, name: str, number: int) -> None:
        """Pass a signal on to a child."""
        for child in self._children:
            if child.name == name and child.process.poll() is None:
                child.process.send_signal(number)

    def stop(self) -> None:
        """End all children: ask all at once, wait STOP_SECONDS, then kill. None is left when this returns."""
        deadline = self._terminate_all()
        for process in (*(child.process for child in self._children), *self._passing):
            _end(process, deadline)
        self._children.clear()

    def _terminate_all(self) -> float:
        """Ask every running child to end, once; return the moment (monotonic seconds) from which it is killed."""
        with self._lock:
            if self._deadline is None:
                self._deadline = time.monotonic() + STOP_SECONDS
                for child in self._children:
                    child.process.terminate()
                for process in self._passing:
                    # The signal of Ctrl-C, at which a command cleans up, e.g. drops its scratch database.
                    process.send_signal(signal.SIGINT)
            return self._deadline


def _end(process: subprocess.Popen[bytes], deadline: float) -> None:
    """Wait for a process until the deadline, then kill it; kill what is left in its session too."""
    try:
        process.wait(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        _kill_group(process)
        process.wait()
    # Its own children, in its session, have to be killed too.
    _kill_group(process)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def reserve_port(wanted: int = 0) -> tuple[int, socket.socket]:
    """Reserve the wanted port if nothing listens there, else any free one; return it and the socket to close later.

    The socket stays bound without listening: a server that sets `SO_REUSEADDR` can listen on the port all the same, and
    no outgoing connection is assigned it. Outside Linux, where that does not hold, the socket is closed at once and the
    port is only known to be free now. Raises `OSError` where no port is left.
    """
    for port in (wanted, 0):
        holder = socket.socket()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            holder.bind((HOST, port))
            found = int(holder.getsockname()[1])
            if sys.platform != "linux":
                holder.close()
            return found, holder
        holder.close()
    raise OSError("no loopback port is free")


class DemoFailed(SentinelError):
    """A part of the demo did not come up; `detail` names it and its log."""

    code = "demo-failed"


def wait_ready(processes: Processes, addresses: Mapping[str, Sequence[str]], logs: Path, stop: threading.Event) -> None:
    """Return once every address of each child answers 200. Raises `DemoFailed`, or `DemoStopped` once `stop` is set."""
    deadline = time.monotonic() + READY_SECONDS
    for name, url in ((name, url) for name, urls in addresses.items() for url in urls):
        answered, enough = threading.Event(), threading.Event()
        # In a thread: a program that still loads accepts a connection and does not answer; a stop must not wait for it.
        threading.Thread(target=_poll_health, args=(url, answered, enough), daemon=True, name=f"ask-{name}").start()
        try:
            while not answered.wait(_POLL_SECONDS):
                raise_if_stopped(stop)
                if (ended := processes.ended()) is not None:
                    raise DemoFailed(f"{ended} ended at once{_last_words(logs / f'{ended}.log')}")
                if time.monotonic() > deadline:
                    raise DemoFailed(f"{name} did not become ready{_last_words(logs / f'{name}.log')}")
        finally:
            enough.set()


def _last_words(log: Path) -> str:
    """Return where the log is, and its last line, which is mostly the program's own error."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; see {log}" + (f", which ends: {said[:_MOST_SAID]}" if said else "")


def _poll_health(url: str, answered: threading.Event, enough: threading.Event) -> None:
    while not enough.wait(_POLL_SECONDS):
        with contextlib.suppress(urllib.error.URLError, OSError), direct.open(url, timeout=2) as answer:
            if answer.status == 200:
                answered.set()
                return


_LOOK_SECONDS = 3.0
SETTINGS = ("SENTINEL_EXPORT_SLACK_WEBHOOK_URL", "SENTINEL_EXPORT_MAIL_TO", "SENTINEL_EXPORT_DECISION_LOG_URL")
HAS_WEBHOOK = "select exists (select from sentinel.event_endpoints where disabled_at is null and kind = 'webhook')"


class DemoSender:
    """The sender of events, which is started once a webhook or a setting needs it. Checks that every few seconds."""

    def __init__(self, processes: Processes, env: Mapping[str, str], database_url: str) -> None:
        self._processes, self._env, self._database_url = processes, env, database_url
        self._is_started, self._due = False, 0.0

    def start_if_wanted(self) -> None:
        """Start the sender if it is needed and not started yet; may be called often. Raises `DemoStopped` when the processes are to end."""
        if self._is_started or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _LOOK_SECONDS
        if any(os.environ.get(name) for name in SETTINGS) or self._has_webhook():
            self._processes.start("export", [sys.executable, "-m", "sentinel.cli.main", "export"], self._env)
            self._is_started = True

    def _has_webhook(self) -> bool:
        try:
            with psycopg.connect(self._database_url, connect_timeout=2) as connection:
                return connection.execute(HAS_WEBHOOK).fetchone() == (True,)
        except psycopg.Error:
            return False

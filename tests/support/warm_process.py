"""Processes of our commands that begin with everything imported: a second of every start is imports.

`WarmProcess` is a `Popen` whose process is forked from one that has imported the programs, has read and compiled the shipped
policies, and has done nothing else. From then on it is as any other: own arguments, environment and pipes, to be waited for and
killed. What a start itself may do wrong (imports, the interpreter's options) is tried by the tests that start commands the plain way,
most of `tests/acceptance`.

Of other modules, `imported`, the process that is forked from has the environment of the first one asked for with its PYTHONPATH.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from tests.support import warm_command
from tests.support.busy import SYSTEM_READY_SECONDS

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = (
    "worker.retail_refund_agent",
    "worker.cli",
    "worker.refunds.ledger_commands",
    "worker.refunds.workflow.cli",
    "worker.orders.cli",
    "sentinel.cli.main",
    "sentinel.cli.serve",
    "sentinel.authority.app",
    "ops_console.app",
    "sentinel.export.build",
    "worker.orders.serving",
    "worker.orders.app",
    "worker.gates.replay",
    "tests.support.forked_replay",
    "tests.support.many_apps",
)
_REQUEST_BYTES = 1 << 20


class WarmProcess(subprocess.Popen[str]):
    """`Popen([python, script, …])`, `Popen([python, "-m", module, …])` or `Popen([python, "-c", code, …])`, with an `env`.

    Each of the three standard streams is given; text goes through pipes.

    `imported` are the modules to begin with, instead of our programs.
    """

    def __init__(self, args: list[str], *, imported: tuple[str, ...] = IMPORTED, **options: Any) -> None:
        self._imported = imported
        super().__init__(args, **options)

    def _execute_child(self, args: list[str], *rest: Any) -> None:
        env, (p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite) = rest[5], rest[9:15]
        with open(os.devnull) as nothing:
            stdin = p2cread if p2cread >= 0 else nothing.fileno()
            inherited = None if self._imported is IMPORTED else env
            address = _template(args[0], self._imported, inherited)
            ours = warm_command.ask(address, args[1:], env, (stdin, c2pwrite, errwrite))
        for kept, end in ((p2cwrite, p2cread), (c2pread, c2pwrite), (errread, errwrite)):
            if kept >= 0:  # a pipe, of which Popen keeps its end; a file is the caller's
                os.close(end)
        if (nowhere := getattr(self, "_devnull", None)) is not None:
            os.close(nowhere)
        self._told = ours.makefile("rb")
        ours.close()
        self.pid = int(self._told.readline())
        self._child_created = True

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        return self._ended(0)

    def _wait(self, timeout: float | None) -> int:
        ended = self._ended(timeout)
        if ended is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return ended

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            self.returncode = int(self._told.readline() or -signal.SIGKILL)
            self._told.close()
        return self.returncode


def run_warm(
    module: str, *arguments: str, env: Mapping[str, str], stdin: str = "", timeout: float = 150
) -> subprocess.CompletedProcess[str]:
    """Run a module's command to its end, as `subprocess.run` with its output captured."""
    return run_warm_line([sys.executable, "-m", module, *arguments], env=env, stdin=stdin, timeout=timeout)


def run_warm_line(
    command: list[str],
    *,
    env: Mapping[str, str],
    stdin: str = "",
    timeout: float,
    imported: tuple[str, ...] = IMPORTED,
) -> subprocess.CompletedProcess[str]:
    """Run a command line that `WarmProcess` takes to its end, as `subprocess.run` with its output captured."""
    pipe = subprocess.PIPE
    with WarmProcess(
        command, imported=imported, env=dict(env), stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            out, err = process.communicate(stdin, timeout)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)


def warm_line(command: list[str], *, imported: tuple[str, ...], env: Mapping[str, str]) -> list[str]:
    """A command line for what starts programs by itself: as `command`, which `WarmProcess` takes, but begun as a `WarmProcess` is."""
    address = _template(command[0], imported, env)
    return [sys.executable, "-I", "-S", warm_command.__file__, address, *command[1:]]


_starting = threading.Lock()


_templates: dict[tuple[str, tuple[str, ...], str], str] = {}


def _template(python: str, imported: tuple[str, ...], env: Mapping[str, str] | None) -> str:
    """The abstract address of the process that forks."""
    key = (python, imported, (env or {}).get("PYTHONPATH", ""))
    with _starting:
        if key not in _templates:
            _templates[key] = _make_template(python, imported, env)
        return _templates[key]


def _make_template(python: str, imported: tuple[str, ...], env: Mapping[str, str] | None) -> str:
    """Start it; it ends with this process."""
    ours, its = socket.socketpair()
    asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    address = f"sentinel-tests-{uuid.uuid4().hex}"
    asked.bind(f"\0{address}")
    asked.listen()
    clean = env or {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    fds = [its.fileno(), asked.fileno()]
    command = [python, "-m", "tests.support.warm_process", *map(str, fds), *imported]
    with its, asked:
        process = subprocess.Popen(command, env=clean, pass_fds=fds, stdin=subprocess.DEVNULL)
    atexit.register(process.wait)
    atexit.register(ours.close)
    return address


def _serve(line: socket.socket, asked: socket.socket, imported: list[str]) -> None:
    """Fork a program for each request, until the line ends."""
    gc.disable()
    for name in imported:
        __import__(name)
    if (client := sys.modules.get("sentinel.platform.outbound.client")) is not None:
        client.READY_WAIT_SECONDS = SYSTEM_READY_SECONDS  # type: ignore[attr-defined]
    if (many_apps := sys.modules.get("tests.support.many_apps")) is not None:
        many_apps.read_shipped()
    gc.freeze()  # what is imported is shared by all and collected by none
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a keeper's end interests nobody
    while line not in select.select([line, asked], [], [])[0]:
        with asked.accept()[0] as asking:
            request, fds, _, _ = socket.recv_fds(asking, _REQUEST_BYTES, 4)
        if request and not os.fork():
            line.close()
            asked.close()
            _keep(json.loads(request), fds)
        for fd in fds:
            os.close(fd)


def _keep(request: dict[str, Any], fds: list[int]) -> NoReturn:
    """In a process of its own: fork the wanted one, tell its id, and how it ended. Does not come back.

    It is killed when nobody is there any more to be told: a suite that is interrupted leaves no program behind.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    told, *pipes = fds
    pid = os.fork()
    if not pid:
        os.close(told)
        become(request, pipes)
    for fd in pipes:
        os.close(fd)
    with contextlib.suppress(BrokenPipeError):
        os.write(told, f"{pid}\n".encode())
    ended = os.pidfd_open(pid)
    if ended not in select.select([ended, told], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def become(request: dict[str, Any], pipes: list[int]) -> NoReturn:
    """Run the command and end as the interpreter would; see `_end`."""
    for standard, pipe in enumerate(pipes):
        os.dup2(pipe, standard)
        os.close(pipe)
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None  # whoever asked for it while importing had another environment
    _end(_status_of(request["argv"]))


def _status_of(argv: list[str]) -> int:
    """Run the command; its exit status, or the number of Ctrl-C's signal as a negative one."""
    try:
        _run(argv)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _end(status: int) -> NoReturn:
    """Do what the interpreter does at its end, but for clearing every module, which takes thrice as long as a short command.

    Wait for threads, run what is registered for the exit, flush: in this order, as Py_FinalizeEx.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception as error:
            status = 120
            if stream is sys.stdout:
                print(f"Exception ignored in: {stream}\n{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _run(argv: list[str]) -> None:
    if argv[0] == "-m":
        sys.argv = argv[1:]
        sys.modules.pop(argv[1], None)  # what is run is loaded anew, what it imports is there
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    elif argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        exec(argv[1], {"__name__": "__main__"})
    else:
        sys.argv = argv
        sys.path[0] = str(Path(argv[0]).parent)
        runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    _serve(*(socket.socket(fileno=int(fd)) for fd in sys.argv[1:3]), sys.argv[3:])

"""Running an ASGI app under gunicorn: several processes, an event loop in each, clean reload and drain.

The master makes what all processes share before they fork; each process makes its own connections after. SIGHUP asks
every process of a program that has policies to reload them, and keeps the last good ones; SIGTERM drains.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter

from sentinel.core.errors import SentinelError
from sentinel.platform.http.asgi import Edge
from sentinel.platform.serving.connection_bounds import Connections
from sentinel.platform.serving.event_worker import EventWorker
from sentinel.platform.settings import UnsafeConfiguration

# Open files of a process beside its clients' connections: the database, files, the program itself.
_OTHER_FILES = 500


class CannotServe(SentinelError):
    """The address cannot be listened on; `detail` is one line."""

    code = "cannot-serve"


def require_free_port(host: str, port: int, variable: str) -> None:
    """Raise `CannotServe` when something already listens there; `variable` is what to change."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            what = "is already in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
            raise CannotServe(f"port {port} on {host} {what}; choose another with {variable}") from None


def require_open_files(count: int, variable: str) -> None:
    """Let each process open `count` files, or raise `CannotServe` where the machine does not; `variable` is what to lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise CannotServe(
            f"{variable} takes {count} open files and this machine allows {hard}; lower it or raise the limit"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a server listens, and how many connections each of its processes holds there, in all and of one address.

    `health` is an address of its own for /healthz, /readyz and /metrics, which is nowhere else; without a port there is no /metrics.
    Behind proxies, which are one address, one address may have all. The names are those of the settings to change.
    """

    host: str
    port: int
    connections: int
    connections_per_address: int
    port_name: str
    health_name: str
    connections_name: str
    health: tuple[str, int] = ("", 0)
    behind_proxies: bool = False

    @property
    def url(self) -> str:
        """Its address in the log."""
        return f"http://{self.host}:{self.port}"

    @property
    def bounds(self) -> tuple[int, int]:
        """Connections of a process: in all, of one address."""
        return self.connections, self.connections if self.behind_proxies else self.connections_per_address

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Every (host, port) to listen on."""
        return [(self.host, self.port), *([self.health] if self.health[1] else [])]

    @property
    def named_addresses(self) -> list[tuple[str, tuple[str, int]]]:
        """The same, each with the setting that says its port."""
        return list(zip((self.port_name, self.health_name), self.addresses, strict=False))


def require_listeners(*listeners: Listener) -> None:
    """Raise what keeps a program from serving on these, each with the setting to change.

    `UnsafeConfiguration` where two of their addresses are one, or both addresses of one listener have one port, by which its server tells
    them apart; `CannotServe` where a port is taken, or the machine does not allow so many open files.
    """
    named = [(listener, *one) for listener in listeners for one in listener.named_addresses]
    for (listener, first, place), (another, second, other) in combinations(named, 2):
        if place[1] == other[1] and (listener is another or _meet(place[0], other[0])):
            raise UnsafeConfiguration(f"{second}: must be another port than {first}, which is {place[1]} too")
    for _, name, place in named:
        require_free_port(*place, name)
    for listener in listeners:
        require_open_files(listener.connections + _OTHER_FILES, listener.connections_name)


def _meet(one: str, other: str) -> bool:
    """Whether who has a port of one host has it of the other too: 0.0.0.0 is all addresses of IPv4, and :: those of both families."""
    hosts = {"127.0.0.1" if host == "localhost" else host for host in (one, other)}
    of_ipv4 = not any(":" in host for host in hosts)
    return len(hosts) == 1 or "::" in hosts or (of_ipv4 and "0.0.0.0" in hosts)  # noqa: S104 - nothing is bound here


class _Arbiter(Arbiter):  # type: ignore[misc]
    """gunicorn's master, with SIGHUP meaning "reload policies" instead of "replace the processes"."""

    def handle_hup(self) -> None:
        """Tell the master's own copy first, so that a process started later has the same policies.

        Without policies it means nothing: the signal would end the processes, which have no handler for it.
        """
        on_reload = self.app.on_reload
        if on_reload is None:
            return
        on_reload()
        for pid in list(self.WORKERS):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGHUP)


class Server(BaseApplication):  # type: ignore[misc]
    """A gunicorn server around `make_app(worker)`, an ASGI app made once in each process after the fork."""

    def __init__(
        self, make_app: Callable[[Any], Edge], listener: Listener, *, processes: int, graceful_seconds: int = 20,
        on_reload: Callable[[], None] | None = None, on_worker_exit: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self._make_app = make_app
        self._listener = listener
        self._options = {
            "bind": [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in listener.addresses],
            "workers": processes,
            "worker_class": EventWorker,
            "asgi_lifespan": "off",
            "timeout": 60,
            "graceful_timeout": graceful_seconds,
            "control_socket_disable": True,
            "accesslog": None,
            "loglevel": "warning",
            "forwarded_allow_ips": "",
            "backlog": 2048,
            "post_worker_init": self._after_fork,
            "child_exit": lambda server, worker: _forget(worker),
            "worker_exit": lambda server, worker: on_worker_exit() if on_worker_exit else None,
        }
        self.on_reload = on_reload
        EventWorker.share_counts()
        super().__init__()

    def load_config(self) -> None:
        """Take the options above; no file, no command line, no environment."""
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """gunicorn's hook for the app: none yet, because `_after_fork` makes it once the worker process is there."""
        return None

    def _after_fork(self, worker: Any) -> None:
        worker.connections = Connections(*self._listener.bounds)
        worker.asgi = self._make_app(worker)
        # What is loaded now stays for good: collecting it again and again would only stop requests for milliseconds.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)

    def run(self) -> None:
        """Serve until asked to stop."""
        try:
            _Arbiter(self).run()
        except RuntimeError as error:
            sys.stderr.write(f"Error: {error}\n")
            sys.exit(1)


def _forget(worker: Any) -> None:
    from prometheus_client import multiprocess

    worker.forget()

    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        multiprocess.mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def metrics_folder() -> Iterator[None]:
    """A fresh folder in which the processes share their counters; enter it before importing the metrics.

    It goes with the block of the process that made it.
    """
    folder, maker = tempfile.mkdtemp(prefix="sentinel-metrics-"), os.getpid()
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    try:
        yield
    finally:
        # A process forked inside the block unwinds through it as it ends: the folder is still its parent's and siblings'.
        if os.getpid() == maker:
            # Otherwise metrics of this process would later point to a deleted folder.
            os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
            shutil.rmtree(folder, ignore_errors=True)

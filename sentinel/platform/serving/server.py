"""Running an ASGI app under gunicorn: several processes, an event loop in each, clean reload and drain.

The master makes what all processes share before they fork; each process makes its own connections after. SIGHUP makes
every process of a program that has policies reload them, or keep the last good ones; SIGTERM drains.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
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
    """Raise `CannotServe` when the port is in use or cannot be bound, or the host is not one of this machine's; names `variable`, the port's setting."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise CannotServe(
                    f"{host} is not an address of this machine; change the host set beside {variable}"
                ) from None
            what = "is already in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
            raise CannotServe(f"port {port} on {host} {what}; choose another with {variable}") from None


def require_open_files(count: int, variable: str) -> None:
    """Let each process open `count` files, or raise `CannotServe` if the machine forbids it; `variable` is the setting to lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise CannotServe(
            f"{variable} needs {count} open files, and this machine allows {hard}; lower the setting or raise the limit"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a server listens, and how many connections each of its processes holds there, in total and per address.

    `health` is a separate (host, port) for /healthz, /readyz and /metrics; /metrics is served nowhere else, so with
    port 0 there is none. With `behind_proxies` one address may have all connections, because all clients share the
    proxies' address. `port_name`, `health_name` and `connections_name` are the settings that errors name.
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
        """The address as the log shows it."""
        return f"http://{_host_and_port(self.host, self.port)}"

    @property
    def bounds(self) -> tuple[int, int]:
        """How many connections a process holds: (in total, from one address)."""
        return self.connections, self.connections if self.behind_proxies else self.connections_per_address

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Every (host, port) to listen on."""
        return [(self.host, self.port), *([self.health] if self.health[1] else [])]

    @property
    def named_addresses(self) -> list[tuple[str, tuple[str, int]]]:
        """The `addresses`, each with the name of the setting for its port."""
        return list(zip((self.port_name, self.health_name), self.addresses, strict=False))


def _host_and_port(host: str, port: int) -> str:
    """An address as URLs write it, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def require_listeners(*listeners: Listener) -> None:
    """Raise when a program cannot serve on these listeners; the error names the setting to change.

    Raises `UnsafeConfiguration` when two addresses overlap, or when both addresses of one listener have the same port,
    by which its server tells them apart; `CannotServe` when a port is in use, or too few open files are allowed.
    """
    named = [(listener, *one) for listener in listeners for one in listener.named_addresses]
    for (listener, first, place), (another, second, other) in combinations(named, 2):
        if place[1] == other[1] and (listener is another or _meet(place[0], other[0])):
            raise UnsafeConfiguration(f"{second}: must be another port than {first}, which is also {place[1]}")
    for _, name, place in named:
        require_free_port(*place, name)
    for listener in listeners:
        require_open_files(listener.connections + _OTHER_FILES, listener.connections_name)


def _meet(one: str, other: str) -> bool:
    """Whether a port of one host is also a port of the other: 0.0.0.0 is all IPv4 addresses, and :: all of both families."""
    hosts = {"127.0.0.1" if host == "localhost" else host for host in (one, other)}
    of_ipv4 = not any(":" in host for host in hosts)
    return len(hosts) == 1 or "::" in hosts or (of_ipv4 and "0.0.0.0" in hosts)  # noqa: S104 - nothing is bound here


class _Arbiter(Arbiter):  # type: ignore[misc]
    """gunicorn's master, with SIGHUP meaning "reload policies" instead of "replace the processes"."""

    def handle_hup(self) -> None:
        """Reload the policies in the master, then signal the processes. Without policies SIGHUP is ignored.

        The master's own copy comes first, so that a process started later has the same policies. Passed on without
        policies, the signal would end the processes, which have no handler for it.
        """
        on_reload = self.app.on_reload
        if on_reload is None:
            return
        on_reload()
        for pid in list(self.WORKERS):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGHUP)

    def spawn_worker(self) -> Any:
        """Start a process. A SIGHUP that it is sent before its event loop runs waits until then.

        Otherwise the master's handler, which the process begins with, would take it, and the process keep old policies.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
        try:
            return super().spawn_worker()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))


class Server(BaseApplication):  # type: ignore[misc]
    """A gunicorn server around `make_app(worker)`, an ASGI app made once in each process after the fork."""

    def __init__(
        self, make_app: Callable[[Any], Edge], listener: Listener, *, processes: int, graceful_seconds: int = 20,
        on_reload: Callable[[], object] | None = None, on_worker_exit: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self._make_app = make_app
        self._listener = listener
        self._options = {
            "bind": [_host_and_port(*address) for address in listener.addresses],
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
        """Apply the options above alone; no file, command line or environment is read."""
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Return no app from gunicorn's hook: `_after_fork` makes it in each worker process."""
        return None

    def _after_fork(self, worker: Any) -> None:
        worker.connections = Connections(*self._listener.bounds)
        worker.asgi = self._make_app(worker)
        # Once the loop runs: before, it sees no signal, although it has a handler for it.
        worker.loop.call_soon(signal.pthread_sigmask, signal.SIG_UNBLOCK, (signal.SIGHUP,))
        # Objects loaded so far are never garbage: checking them again and again would only pause requests.
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

    The folder is deleted when the block ends in the process that made it.
    """
    folder, maker = tempfile.mkdtemp(prefix="sentinel-metrics-"), os.getpid()
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    # Locked as long as it is used: systemd-tmpfiles clears /tmp, a unit's own too, of what is days old and not locked.
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(held, fcntl.LOCK_SH)
        yield
    finally:
        os.close(held)
        # A process forked inside the block unwinds through it as it ends: the folder is still its parent's and siblings'.
        if os.getpid() == maker:
            # Otherwise metrics of this process would later point to a deleted folder.
            os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
            shutil.rmtree(folder, ignore_errors=True)

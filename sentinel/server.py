"""Running an app under gunicorn: several processes, threads for requests, clean reload and drain.

The master makes what all processes share before they fork; each process makes its own connections after. SIGHUP asks
every process to reload its policies and keeps the last good ones; SIGTERM drains.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.workers.gthread import ThreadWorker

from sentinel.connection_counts import SharedCounts
from sentinel.core.errors import SentinelError


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


class HandedOver(OSError):
    """Raised by a response that took its connection: what has been sent stays sent, and nobody closes it but the taker.

    An `OSError` of a client that is gone, which is what gunicorn lets pass without a word.
    """

    def __init__(self) -> None:
        super().__init__(errno.EPIPE, "the connection was handed over")


def take_connection(environ: Mapping[str, Any]) -> socket.socket | None:
    """The connection of a request that `Server` serves, for a response that keeps it and then raises `HandedOver`.

    None under any other server. Call it in the response's iterator, once the headers are out.
    """
    held = environ.get("gunicorn.socket")
    return socket.socket(fileno=held.detach()) if isinstance(held, socket.socket) else None


class _Arbiter(Arbiter):  # type: ignore[misc]
    """gunicorn's master, with SIGHUP meaning "reload policies" instead of "replace the processes"."""

    def handle_hup(self) -> None:
        """Tell the master's own copy first, so that a process started later has the same policies."""
        on_reload = self.app.on_reload
        if on_reload is not None:
            on_reload()
        for pid in list(self.WORKERS):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGHUP)


class BalancedThreads(SharedCounts, ThreadWorker):  # type: ignore[misc]
    """gunicorn's thread worker for clients that keep their connections and send request after request: taken in turns."""

    HOLD_BACK_SECONDS = 0.005
    STAY_MILLISECONDS = 20

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.take_slot(arguments[0])
        self._held_back_at: float | None = None
        super().__init__(*arguments, **named)

    def accept(self, listener: Any) -> None:
        """Accept, unless another has fewer; after a few milliseconds in any case, for the other may be stuck."""
        if self.has_more_than_another():
            now = time.monotonic()
            self._held_back_at = self._held_back_at or now
            if now - self._held_back_at < self.HOLD_BACK_SECONDS:
                time.sleep(0.0002)
                return
        self._held_back_at = None
        super().accept(listener)

    def handle(self, conn: Any) -> Any:
        """Serve a request, and the client's next ones while they follow at once.

        A busy client's connection stays with its thread, as long as there is a thread for every connection: going back
        to the poller between two requests would cost a quarter of this process's time.
        """
        while (kept := super().handle(conn)) is True and self._worth_staying(conn):
            pass
        return kept

    def finish_request(self, conn: Any, fs: Any) -> None:
        """Forget a connection that its response handed over; it is not ours to close any more."""
        if conn.sock.fileno() == -1:
            self.nr_conns -= 1
            return
        super().finish_request(conn, fs)

    def _worth_staying(self, conn: Any) -> bool:
        if conn.is_http2 or not self.alive or self.nr_conns >= self.cfg.threads:
            return False
        if conn.parser.unreader.buf.getvalue():
            return True
        ready = select.poll()
        ready.register(conn.sock, select.POLLIN)
        return bool(ready.poll(self.STAY_MILLISECONDS))


class Server(BaseApplication):  # type: ignore[misc]
    """A gunicorn server around `make_app(worker)`, called once in each process after the fork.

    The app is a WSGI one for `BalancedThreads` and an ASGI one for `EventWorker`.
    """

    def __init__(
        self, make_app: Callable[[Any], Any], *, host: str, port: int, processes: int, threads: int,
        graceful_seconds: int = 20, on_reload: Callable[[], None] | None = None,
        on_worker_exit: Callable[[], None] | None = None, worker_class: type[SharedCounts] = BalancedThreads,
    ) -> None:  # fmt: skip
        self._make_app = make_app
        self._options = {
            "bind": [f"[{host}]:{port}" if ":" in host else f"{host}:{port}"],
            "workers": processes,
            "threads": threads,
            "worker_class": worker_class,
            "asgi_lifespan": "off",
            "keepalive": 30,
            "timeout": 60,
            "graceful_timeout": graceful_seconds,
            "control_socket_disable": True,
            "accesslog": None,
            "loglevel": "warning",
            "forwarded_allow_ips": "",
            "limit_request_line": 4094,
            "limit_request_fields": 50,
            "limit_request_field_size": 8190,
            "worker_connections": 1000,
            "backlog": 512,
            "post_worker_init": self._after_fork,
            "child_exit": lambda server, worker: _forget(worker),
            "worker_exit": lambda server, worker: on_worker_exit() if on_worker_exit else None,
        }
        self.on_reload = on_reload
        worker_class.share_counts()
        super().__init__()

    def load_config(self) -> None:
        """Take the options above; no file, no command line, no environment."""
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Called in each process; `_after_fork` puts the real app in, because it wants the worker."""
        return lambda environ, start_response: []

    def _after_fork(self, worker: Any) -> None:
        # Each kind of worker calls its app by its own name.
        worker.wsgi = worker.asgi = self._make_app(worker)
        # What is loaded now stays for good: collecting it again and again would only stop requests for milliseconds.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)

    def run(self) -> None:
        """Serve until told to stop."""
        try:
            _Arbiter(self).run()
        except RuntimeError as error:
            sys.stderr.write(f"Error: {error}\n")
            sys.exit(1)


def _forget(worker: Any) -> None:
    from prometheus_client import multiprocess

    worker.forget(worker.age)

    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        multiprocess.mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def metrics_folder() -> Iterator[None]:
    """A fresh folder in which the processes share their counters; enter it before importing the metrics."""
    folder = tempfile.mkdtemp(prefix="sentinel-metrics-")
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    try:
        yield
    finally:
        # Left behind it would send whoever counts in this process to a folder that is gone.
        os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
        shutil.rmtree(folder, ignore_errors=True)

"""Starts the embedded server or joins a running one: one server per data folder.

The process that starts it (the keeper) holds `keeper.lock` and is its parent; on Linux the server ends with that
process. A command that joins holds a shared lock on `users.lock`, so that a short-lived keeper lets it finish first. A
program that lasts holds `owner.lock`; while a command keeps the server, a worker's loop say, it joins without the
shared lock, and starts the server itself once that command has ended. Every decision is taken under `start.lock`.
`supervised` restarts a server that ends by itself (full disk, OOM killer, `kill`), at the same address.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from sentinel.platform.log_files import bound_log
from sentinel.platform.ongoing_failures import OngoingFailures
from sentinel.store.embedded import locks, process
from sentinel.store.embedded.account import Account, server_account
from sentinel.store.embedded.binaries import Binaries, find_binaries, usable_binaries
from sentinel.store.embedded.child import start_server
from sentinel.store.embedded.cluster import ensure_cluster
from sentinel.store.embedded.connection import DATABASE, Address
from sentinel.store.embedded.failures import EmbeddedError, StartGivenUp, never_stop, postgres_errors_in_one_line
from sentinel.store.embedded.layout import (
    Layout,
    choose_home,
    data_folders,
    delete_socket_dir,
    make_base,
    make_socket_dir,
    open_ours,
)
from sentinel.store.embedded.logins import SUPERUSER, Passwords, ensure_logins
from sentinel.store.embedded.options import server_options

_START_LOCK_SECONDS = 60.0
_HANDOVER_SECONDS = 10.0
_SHORT_COMMAND_SECONDS = 2.0
# Ctrl-C promises an end within three seconds; a short command can afford to let others finish.
_LINGER_OWN_SECONDS = 0.2
_LINGER_SHARED_SECONDS = 10.0
_POLL_SECONDS = 0.02
_WATCH_SECONDS = 0.5
_RESTART_SECONDS = 5.0
_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class RunningServer:
    """A server that answers. `pid` is its postmaster process."""

    address: Address
    data_dir: Path
    pid: int
    started_by_us: bool

    @property
    def socket_dir(self) -> Path:
        """The folder of its socket."""
        return self.address.socket_dir

    @property
    def admin_url(self) -> str:
        """The superuser's connection URL: for migrations, never for a program that stays."""
        return self.url(user=SUPERUSER)

    def url(self, *, user: str, database: str = DATABASE) -> str:
        """The connection URL of a login, with its secret. Raises `EmbeddedError` when the secret cannot be read."""
        return self.address.url(user, database)


@contextmanager
def running(
    base_dir: Path, *, own: bool = False, settings: Mapping[str, str] = _NO_SETTINGS
) -> Iterator[RunningServer]:
    """A running server for the block, started or joined; see `Embedded` for `own` and `settings`."""
    embedded = Embedded(base_dir, own=own, settings=settings)
    server = embedded.start()
    try:
        yield server
    finally:
        embedded.stop()


class Embedded:
    """The server of one base folder, as an object. Not for use by two threads at once.

    `own=True` (a lasting program): we run it ourselves; `start` raises `EmbeddedError` when another such
    program does. A command that keeps the server gets 2 s to end, then we join it; that server ends
    with the command, and the next `start` runs our own at the same address (`supervised` watches for that).
    `own=False`: join a running server, else start one and stop it afterwards. `settings` add to or replace
    the defaults when we start it. A start ends early, with `StartGivenUp`, once `should_stop` returns True.
    """

    def __init__(
        self, base_dir: Path, *, own: bool = False, settings: Mapping[str, str] = _NO_SETTINGS,
        should_stop: Callable[[], bool] = never_stop,
    ) -> None:  # fmt: skip
        self._layout = Layout.of(base_dir)
        self._passwords = Passwords(self._layout.passwords)
        self._own = own
        self._settings = dict(settings)
        self._should_stop = should_stop
        self._keeper: locks.FileLock | None = None
        self._owner: locks.FileLock | None = None
        self._share: locks.FileLock | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._server: RunningServer | None = None
        self._socket_dir: Path | None = None
        self._starter = 0

    def start(self) -> RunningServer:
        """Start or join the server, also again after it died, and return it. Raises `EmbeddedError`."""
        if self._server is not None and self.is_alive():
            return self._server
        if self._share is not None:
            self._share.close()
        with postgres_errors_in_one_line(self._layout.run_dir):
            make_base(self._layout)
            try:
                self._server = self._start_or_join()
            except BaseException:
                self._release()
                raise
        self._socket_dir = self._server.socket_dir
        return self._server

    def stop(self) -> None:
        """Stop the server if we started it, else only leave it. Harmless when called twice, or in a forked copy."""
        # A worker forked inside our block unwinds through it: it must not stop its parent's server.
        if self._process is None or not self._is_starter():
            self._release()
            return
        start_lock = self._start_lock_after_others()
        try:
            process.stop_child(self._process)
            if self._server is not None:
                delete_socket_dir(self._server.socket_dir)
        finally:
            self._release()
            if start_lock is not None:
                start_lock.close()

    def kill(self) -> None:
        """End the server as a crash would (SIGKILL); `start` recovers it. Raises `EmbeddedError` if we did not start it."""
        if self._process is None:
            raise EmbeddedError("only the process that started the server can kill it")
        self._process.kill()
        self._process.wait()

    def is_alive(self) -> bool:
        """True while the server process lives."""
        if self._process is not None and self._is_starter():
            return self._process.poll() is None
        return self._server is not None and process.may_belong_to(self._server.pid, self._server.data_dir)

    def bound_log(self) -> None:
        """Keep the running server's log short."""
        bound_log(self._layout.log, open_ours)

    def _is_starter(self) -> bool:
        """Whether this process started the server: False in a process that was forked from the starter."""
        return self._starter == os.getpid()

    def _release(self) -> None:
        for lock in (self._share, self._keeper, self._owner):
            if lock is not None:
                lock.close()
        self._share = self._keeper = self._owner = self._process = self._server = None

    # Deciding

    def _start_or_join(self) -> RunningServer:
        began = time.monotonic()
        while True:
            start_lock = locks.wait_lock(
                self._layout.run_dir / locks.START_LOCK, _START_LOCK_SECONDS, should_stop=self._should_stop
            )
            if self._should_stop():
                if start_lock is not None:
                    start_lock.close()
                raise StartGivenUp
            if start_lock is None:
                raise EmbeddedError(
                    f"another program has been starting the database in {self._layout.run_dir} for too long"
                )
            waited = time.monotonic() - began
            try:
                server = self._decide(waited)
            finally:
                start_lock.close()
            if server is not None:
                return server
            if waited > _HANDOVER_SECONDS:
                raise self._no_handover()
            time.sleep(_POLL_SECONDS)

    def _decide(self, waited: float) -> RunningServer | None:
        """Start the server if none runs, else join it if allowed; None means try again. Call with the start lock held."""
        if self._own:
            self._become_only_owner()
        path = self._layout.run_dir / locks.KEEPER_LOCK
        if self._keeper is None:
            self._keeper = locks.try_lock(path)
        if self._keeper is not None:
            self._keeper.note(str(os.getpid()))
            return self._run()
        return self._join() if not self._own or waited > _SHORT_COMMAND_SECONDS else None

    def _become_only_owner(self) -> None:
        path = self._layout.run_dir / locks.OWNER_LOCK
        if self._owner is None:
            self._owner = locks.try_lock(path)
        if self._owner is None:
            raise EmbeddedError(
                f"already running (process {_recorded_pid(path)}) on {self._layout.base}: "
                "stop that one first, or give another folder with SENTINEL_DATA_DIR"
            )
        self._owner.note(str(os.getpid()))

    def _no_handover(self) -> EmbeddedError:
        pid = _recorded_pid(self._layout.run_dir / locks.KEEPER_LOCK)
        return EmbeddedError(
            f"process {pid} keeps the database of {self._layout.base} and its server does not answer: end that process"
        )

    def _join(self) -> RunningServer | None:
        """The server that another process keeps, or None while it does not answer at its address.

        Call with the start lock held, after the keeper's lock could not be taken.
        """
        for data_dir in data_folders(self._layout.home()).values():
            pid, socket_dir = process.live_server(data_dir), process.recorded_socket_dir(data_dir)
            if self._own and socket_dir not in self._layout.socket_dirs():
                continue  # We could not start one at that address when this one has ended.
            if pid is None or socket_dir is None:
                continue
            address = Address(socket_dir, self._passwords)
            if address.answers():
                if not self._own:
                    self._share = locks.try_lock(self._layout.run_dir / locks.USERS_LOCK, shared=True)
                return RunningServer(address, data_dir, pid, started_by_us=False)
        return None

    def _start_lock_after_others(self) -> locks.FileLock | None:
        """Wait for joined commands to end, for a limited time, and return the start lock; None if it could not be taken."""
        deadline = time.monotonic() + (_LINGER_OWN_SECONDS if self._own else _LINGER_SHARED_SECONDS)
        while True:
            start_lock = locks.wait_lock(self._layout.run_dir / locks.START_LOCK, 1.0)
            nobody = locks.try_lock(self._layout.run_dir / locks.USERS_LOCK)
            if nobody is not None:
                nobody.close()
            if nobody is not None or time.monotonic() > deadline:
                return start_lock
            if start_lock is not None:
                start_lock.close()
            time.sleep(_POLL_SECONDS)

    # Running

    def _run(self) -> RunningServer:
        account, data_dir, binaries = self._prepare()
        process.clear_leftovers(data_dir)
        if self._should_stop():
            raise StartGivenUp
        ensure_logins(data_dir, self._passwords, binaries, account)
        socket_dir = make_socket_dir(self._layout, account, known=self._socket_dir)
        options = server_options(socket_dir, self._settings)
        command = [str(binaries.bin_dir / "postgres"), "-D", str(data_dir), *options]
        address = Address(socket_dir, self._passwords)
        try:
            self._process = start_server(command, account, address, self._layout.log, should_stop=self._should_stop)
        except BaseException:
            delete_socket_dir(socket_dir)
            raise
        self._starter = os.getpid()
        return RunningServer(address, data_dir, self._process.pid, started_by_us=True)

    def _prepare(self) -> tuple[Account, Path, Binaries]:
        found = find_binaries()
        present = data_folders(self._layout.home())
        owner = next((path.stat().st_uid for path in present.values()), None)
        account = server_account(owner)
        home = choose_home(self._layout, account)
        binaries = usable_binaries(found, account, home)
        return account, ensure_cluster(home, binaries, account, should_stop=self._should_stop), binaries


def _recorded_pid(path: Path) -> str:
    words = path.read_text().split()
    return words[0] if words else "unknown"


@contextmanager
def supervised(base_dir: Path, *, should_stop: Callable[[], bool] = never_stop) -> Iterator[RunningServer]:
    """Run the server as `running(base_dir, own=True)` does, and restart it whenever it ends: for programs that last.

    This includes a server that a command kept and that ended with it: the restarted one is ours. Raises `EmbeddedError`
    when the first start fails. Any start is given up once `should_stop` returns True; the first then raises
    `StartGivenUp`.
    """
    ended = threading.Event()
    embedded = Embedded(base_dir, own=True, should_stop=lambda: ended.is_set() or should_stop())
    server = embedded.start()
    watcher = threading.Thread(target=_watch, args=(embedded, ended), name="embedded-watch", daemon=True)
    watcher.start()
    try:
        yield server
    finally:
        ended.set()
        watcher.join()
        embedded.stop()


def _watch(embedded: Embedded, ended: threading.Event) -> None:
    import structlog  # commands that run a server for a moment log nothing and need not load it

    log = structlog.get_logger("sentinel.embedded")
    failures = OngoingFailures()
    is_down = False
    while not ended.wait(_RESTART_SECONDS if is_down else _WATCH_SECONDS):
        if embedded.is_alive():
            is_down = False
            embedded.bound_log()
            continue
        if not is_down:
            log.warning("database_ended", what_next="it is started again")
        try:
            embedded.start()
        except StartGivenUp:
            return
        except Exception as error:  # of any kind: nobody else starts the database again
            if failures.should_log("restart", str(error)):
                log.error("database_restart_failed", cause=str(error), again_in_seconds=_RESTART_SECONDS)
            is_down = True
        else:
            is_down = False
            failures.recovered("restart")
            log.info("database_restarted")

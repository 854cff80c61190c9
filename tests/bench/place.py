"""What `make bench` measures on: an own PostgreSQL, an authority on it, and what each of their programs spends."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from sentinel.authority.keys import WORKER_SCOPES, issue_key
from sentinel.store.database import AUTHORITY, CONSOLE, ORDERS, WORKER, Pool, with_role
from sentinel.store.embedded import Embedded, RunningServer, remove
from sentinel.store.migrate import migrate
from tests.bench import minimal
from tests.bench.cpu import machine_cpu_seconds, tree_cpu_seconds, yardstick_us
from tests.bench.generator import Measured, WrongAnswers, generate
from tests.bench.templates import Template
from tests.support.fixtures import SECRET, add_tenant
from tests.support.ports import free_port
from tests.support.roomy import roomy_policies

SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "16GB", "min_wal_size": "16GB", "checkpoint_timeout": "1d"}
"""No checkpoint falls into a run: the full pages that follow one would be in some measurements and not in others."""
LOG_SEGMENTS = 500
"""Of 16 MiB, made beforehand: more than a run of three rounds writes."""
WARM_SECONDS = 1
AUTHORITY_PROGRAM, POSTGRESQL, LOAD = "authority", "PostgreSQL", "load"
WORKER_PROGRAM = "worker"


@dataclass
class Bench:
    """A running authority on its own database, and every figure that was taken there, a list of the rounds' by name."""

    server: RunningServer
    port: int
    authority_pid: int
    tenant_id: uuid.UUID
    key: str
    policies: Path
    minimal_url: str
    figures: dict[str, list[float]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The administrator's address."""
        return self.server.admin_url

    @property
    def worker_url(self) -> str:
        """The refund worker's address."""
        return self.server.url(user=WORKER)

    @property
    def orders_url(self) -> str:
        """The order intake's address."""
        return self.server.url(user=ORDERS)

    def note(self, name: str, value: float) -> None:
        """Keep one round's figure."""
        self.figures.setdefault(name, []).append(value)

    def keep(self, name: str, measured: Measured, spent: Mapping[str, float], wal_bytes: float | None = None) -> None:
        """Keep what one measurement saw, and what each request cost each program."""
        self.note(name, measured.per_second)
        self.note(f"{name} p50", measured.p50_ms)
        self.note(f"{name} p99", measured.p99_ms)
        for program, seconds in {**spent, LOAD: measured.cpu_seconds}.items():
            self.note(f"{name} {program} µs", measured.each(1e6 * seconds))
        if wal_bytes is not None:
            self.note(f"{name} WAL B", measured.each(wal_bytes))

    def keep_rows(self, name: str, rows: int, seconds: float, spent: Mapping[str, float], wal_bytes: float) -> None:
        """Keep how many rows the worker did a second, and what each cost each program."""
        self.note(name, rows / seconds)
        for program, cpu in spent.items():
            self.note(f"{name} {program} µs", 1e6 * cpu / rows)
        self.note(f"{name} WAL B", wal_bytes / rows)

    def guard(self, name: str, make: Callable[[str], Template], *, connections: int, seconds: int) -> None:
        """One closed loop over the authority, after a warm-up with requests of its own."""
        template = make(self.key)
        generate(
            self.port, template if template.wrap else make(self.key), connections=connections, seconds=WARM_SECONDS
        )
        before, everything, began = self.spent(), machine_cpu_seconds() - time.process_time(), time.monotonic()
        measured = generate(self.port, template, connections=connections, seconds=seconds)
        spent, wal_bytes = self.spent_since(before)
        everything = machine_cpu_seconds() - time.process_time() - everything
        seconds_passed = time.monotonic() - began
        self.keep(name, measured, spent, wal_bytes)
        ours = sum(spent.values()) + (measured.cpu_seconds if measured.apart else 0.0)
        self.note(f"{name} others %", 100 * max(0.0, everything - ours) / (os.cpu_count() or 1) / seconds_passed)
        self.note(f"{name} yardstick µs", yardstick_us())

    def spent(self) -> dict[str, float]:
        """CPU seconds so far of the authority and of PostgreSQL with all their processes, and bytes of write-ahead log."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8").fetchone()
        assert row is not None
        return {
            AUTHORITY_PROGRAM: tree_cpu_seconds(self.authority_pid),
            POSTGRESQL: tree_cpu_seconds(self.server.pid),
            "WAL": row[0],
        }

    def spent_since(self, before: Mapping[str, float]) -> tuple[dict[str, float], float]:
        """(CPU seconds by program, bytes of write-ahead log) since `before` was taken of `spent`."""
        after = self.spent()
        return {name: after[name] - before[name] for name in (AUTHORITY_PROGRAM, POSTGRESQL)}, after["WAL"] - before[
            "WAL"
        ]

    def new_key(self) -> None:
        """From now on ask with another key: one may have a million permits out."""
        pool = Pool(with_role(self.url, CONSOLE), size=1)
        try:
            self.key = issue_key(pool, self.tenant_id, agent_id=None, scopes=WORKER_SCOPES).key
        finally:
            pool.close()

    @contextlib.contextmanager
    def row_by_row(self) -> Iterator[None]:
        """For the time of the block the authority asked is one beside the other, that commits each guard alone."""
        port, own = free_port(), (self.port, self.authority_pid)
        with running_authority(self.server, port, self.policies, "tests.bench.row_by_row") as process:
            self.port, self.authority_pid = port, process.pid
            try:
                yield
            finally:
                self.port, self.authority_pid = own

    @contextlib.contextmanager
    def without_waiting_for_the_disk(self, probe: Template) -> Iterator[None]:
        """For the time of the block the authority's commits are answered before they are on disk (`synchronous_commit = off`)."""
        self._reconnect("set synchronous_commit = off", "off", probe)
        try:
            yield
        finally:
            self._reconnect("reset synchronous_commit", "on", probe)

    def _reconnect(self, terms: str, wanted: str, probe: Template) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"alter role {AUTHORITY} {terms}".encode())
            connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", [AUTHORITY])
        with psycopg.connect(self.server.url(user=AUTHORITY), autocommit=True) as connection:
            row = connection.execute("show synchronous_commit").fetchone()
        if row != (wanted,):
            raise SystemExit(f"synchronous_commit is {row}, not {wanted}")
        # Until the authority has noticed and connected anew.
        for number in range(100):
            with contextlib.suppress(OSError):
                if all(ask(self.port, probe.at(number * 10 + place)) for place in range(10)):
                    return
            time.sleep(0.1)
        raise WrongAnswers("the authority did not find its database again")


def ask(port: int, request: bytes) -> dict[str, object]:
    """One answer's body. Raises `OSError` for another status than 200."""
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    address = f"http://127.0.0.1:{port}{lines[0].split()[1]}"
    with urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=10) as answer:
        said: dict[str, object] = json.load(answer)
    return said


@contextlib.contextmanager
def running_authority(
    server: RunningServer, port: int, policies: Path, module: str = "sentinel.cli.main"
) -> Iterator[subprocess.Popen[bytes]]:
    """`sentinel serve` with room for one caller to ask as fast as it can."""
    with (policies.parent / f"authority-{port}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "serve", "--port", str(port), "--graceful-seconds", "1"], stdout=log, stderr=log,
            env={**os.environ, "SENTINEL_DATABASE_URL": server.url(user=AUTHORITY), "SENTINEL_SECRET_KEYS": SECRET,
                 "SENTINEL_POLICIES_DIR": str(policies), "SENTINEL_PERMIT_SECONDS": "3600", "SENTINEL_OPEN_PERMITS_PER_KEY": "1000000",
                 "SENTINEL_OPEN_QUESTIONS_PER_KEY": "1000000",
                 "SENTINEL_RATE_PER_SECOND": "1000000", "SENTINEL_RATE_BURST": "1000000", "SENTINEL_PROCESSES": "1"},
        )  # fmt: skip
    try:
        _wait(process, f"http://127.0.0.1:{port}/readyz")
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    for _ in range(600):
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.05)
    raise SystemExit("the authority did not become ready")


def make_log_segments(admin_url: str) -> None:
    """Fill and recycle segments of the write-ahead log, as a database that has run for a while has them.

    Where there is none left, who commits makes the next one by itself: 16 MiB of zeros, 40 ms in which nobody else commits.
    """
    with psycopg.connect(admin_url, autocommit=True) as connection:
        for _ in range(LOG_SEGMENTS):
            connection.execute("select pg_logical_emit_message(false, 'bench', ''), pg_switch_wal()")
        connection.execute("checkpoint")


@contextlib.contextmanager
def running_bench() -> Iterator[Bench]:
    """An own PostgreSQL, migrated, with one tenant, and an authority; nothing of it is left behind."""
    folder = Path(tempfile.mkdtemp(prefix="sentinel-bench-"))
    folder.chmod(0o711)  # the server's account reaches what is in it
    base = folder / "var"
    embedded = Embedded(base, own=True, settings=SETTINGS)
    server = embedded.start()
    try:
        migrate(server.admin_url)
        make_log_segments(server.admin_url)
        tenant_id, key, _ = add_tenant(server.admin_url, "bench")
        minimal_url = minimal.create(server.admin_url)
        port, policies = free_port(), roomy_policies(base, accounts=True)
        with running_authority(server, port, policies) as process:
            yield Bench(server, port, process.pid, tenant_id, key, policies, minimal_url)
    finally:
        embedded.stop()
        remove(base)
        shutil.rmtree(folder, ignore_errors=True)

"""pgbench over the smallest durable guard transaction (`minimal_guard.sql`), in a database of its own on the same server."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from sentinel.store.embedded import find_binaries
from tests.bench.generator import Measured, children_cpu_seconds
from tests.bench.templates import ACCOUNTS

SCHEMA = Path(__file__).parent / "minimal_guard.sql"
DATABASE = "bench_minimal"
SESSIONS = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'pgbench'"
CAP_MINOR = 10**12
BODY_BYTES = 1024


def create(admin_url: str) -> str:
    """Make the database; its address."""
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute(f"create database {DATABASE}".encode())
    url = make_conninfo(admin_url, dbname=DATABASE)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SCHEMA.read_bytes())
    return url


Spent = Mapping[str, float]


def run(
    url: str, *, clients: int, seconds: int, spent: Callable[[], Spent], hot: bool = False
) -> tuple[Measured, dict[str, float]]:
    """One pgbench run of prepared calls, and how much each figure of `spent` grew while it was measured.

    The time in which its sessions begin is not measured, but counts for pgbench: 128 of them take a second, on a busy machine ten.
    """
    account = f"'hot_{os.urandom(4).hex()}'" if hot else "'acct_' || :account::int"
    for spare in (2 + clients // 32, 10 + clients // 8, 60):
        call = f"bench_minimal.guard('{os.urandom(4).hex()}' || :key::bigint, {account}, 1, {CAP_MINOR}, '{'x' * BODY_BYTES}')"
        if found := _run(url, clients, seconds, spare, call, spent):
            return found
    raise SystemExit("pgbench never had its sessions long enough to be measured")


def _run(
    url: str, clients: int, seconds: int, spare: int, call: str, spent: Callable[[], Spent]
) -> tuple[Measured, dict[str, float]] | None:
    """None where it ended before it had been watched for `seconds`."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "guard.sql"
        script.write_text(
            f"\\set key random(1, 140737488355328)\n\\set account random(1, {ACCOUNTS})\nselect {call};\n"
        )
        used = children_cpu_seconds()
        process = subprocess.Popen(
            [str(find_binaries().bin_dir / "pgbench"), "-n", "-M", "prepared", "-c", str(clients), "-j", "1", "-T", str(seconds + spare),
             "--log", f"--log-prefix={folder}/times", "-f", str(script), url],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            _wait_for_sessions(url, clients)
            window, grown = _watched(seconds, spent)
            was_watched = process.poll() is None
            said, _ = process.communicate()
        finally:
            process.kill()
            process.wait()
        if process.returncode or "failed transactions: 0 " not in said:
            raise SystemExit(f"pgbench failed: {said.splitlines()[-3:]}")
        log = "".join(path.read_text() for path in Path(folder).glob("times.*"))
        return (_from_log(log, window, children_cpu_seconds() - used), grown) if was_watched else None


def _wait_for_sessions(url: str, clients: int) -> None:
    """Until all sessions are there, and a moment longer."""
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(200):
            row = connection.execute(SESSIONS).fetchone()
            if row and row[0] >= clients:
                break
            time.sleep(0.05)
    time.sleep(0.5)


def _watched(seconds: int, spent: Callable[[], Spent]) -> tuple[tuple[float, float], dict[str, float]]:
    """(when it was watched from and to, how much was spent meanwhile)."""
    before, began = spent(), time.time()
    time.sleep(seconds)
    after, ended = spent(), time.time()
    return (began, ended), {name: after[name] - before[name] for name in after}


def _from_log(log: str, window: tuple[float, float], cpu_seconds: float) -> Measured:
    """What pgbench's log of each transaction says: client, number, microseconds it took, script, and when it ended."""
    rows = re.findall(r"^\d+ \d+ (\d+) \d+ (\d+) (\d+)", log, re.MULTILINE)
    took = sorted(int(micros) / 1000 for micros, at, part in rows if window[0] <= int(at) + int(part) / 1e6 < window[1])
    p50, p99 = (took[min(len(took) - 1, int(share * len(took)))] for share in (0.50, 0.99))
    return Measured(len(took), window[1] - window[0], p50, p99, cpu_seconds * len(took) / len(rows))

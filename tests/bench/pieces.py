"""Parts of a guard timed apart: `make bench BENCH=pieces`, or `python -m tests.bench.pieces sql` for one of them.

`sql`: what one guard costs PostgreSQL, by batch size: CPU time of the backend (the kernel's account, schedstat), bytes of
write-ahead log, heap rows and index entries. The rows are those that `decided_row` makes for the shipped refund policy with
room in its totals. An own PostgreSQL in memory; the sequencer's work is measured apart.
`bytes`: what it costs the authority from bytes to row and from row to bytes (`pieces_bytes.py`).
`edge`: what a request costs the server that does nothing with it (`pieces_edge.py`).
`adapters`, only where it is named: what each adapter costs over a bare tool call (`pieces_adapters.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from sentinel.authority.api.guard import GUARD, to_operation
from sentinel.authority.app import build_authority
from sentinel.authority.engine import Authority, Caller
from sentinel.authority.guard import decided_row
from sentinel.authority.guard_rows import GuardRow
from sentinel.authority.keys import WORKER_SCOPE
from sentinel.authority.settings import Settings
from sentinel.policy.library import ReloadablePolicies
from sentinel.store.database import AUTHORITY
from sentinel.store.embedded import Embedded, remove
from sentinel.store.migrate import migrate
from tests.bench import pieces_adapters, pieces_bytes, pieces_edge
from tests.support.commits import record_decisions
from tests.support.fixtures import SECRET, add_tenant, guard_body
from tests.support.roomy import roomy_policies

ACCOUNTS = 100_000
MEMORY = Path("/dev/shm")  # an own folder is made in it

Row = GuardRow


class OneConnection:
    """A pool of one connection, so that its backend's time is all the time there is."""

    def __init__(self, url: str) -> None:
        self.one = psycopg.connect(url, autocommit=True)
        self.one.prepare_threshold = 0

    @contextlib.contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """The connection."""
        yield self.one

    watch = staticmethod(contextlib.nullcontext)
    """Nobody waits here longer than the database does."""


@dataclass
class Place:
    """A migrated database with a tenant, and what makes and records rows."""

    admin: psycopg.Connection[Any]
    pool: OneConnection
    authority: Authority
    caller: Caller
    run: str
    numbers: Iterator[int]

    def rows(self, number: int, value: str = "0.01", **more: Any) -> list[Row]:
        """Decided rows of fresh keys over many accounts."""
        made = []
        for _ in range(number):
            account = random.randint(1, ACCOUNTS)  # which account asks
            key = f"{self.run}{next(self.numbers)}"
            body = GUARD.of_object(
                guard_body(key, value=value, params={"account_ref": f"acct_{account}", "refund_id": f"rf_{key}"})
            )
            operation = to_operation(body, body.idempotency_key)
            made.append(decided_row(self.authority, self.caller, operation, has_start_step=True, elapsed_ms=1, **more))
        return made


@contextlib.contextmanager
def place() -> Iterator[Place]:
    """A fresh PostgreSQL in memory, migrated; gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="sentinel-pieces-", dir=MEMORY if MEMORY.is_dir() else None))
    folder.chmod(0o755)
    base = folder / "var"
    server = Embedded(base, own=True, settings={"shared_buffers": "512MB", "max_wal_size": "8GB", "autovacuum": "off"})
    running = server.start()
    try:
        migrate(running.admin_url)
        tenant_id, _, _ = add_tenant(running.admin_url, "pieces")
        policies = ReloadablePolicies(roomy_policies(folder))
        pool = OneConnection(running.url(user=AUTHORITY))
        authority = build_authority(Settings(database_url=running.url(user=AUTHORITY), secret_keys=(SECRET,)), policies)
        caller = Caller(tenant_id, uuid.uuid4(), uuid.uuid4(), None, frozenset({WORKER_SCOPE}), None)
        admin = psycopg.connect(running.admin_url, autocommit=True)
        with admin, pool.one, contextlib.closing(authority.pool):
            yield Place(admin, pool, authority, caller, os.urandom(3).hex(), itertools.count())
    finally:
        server.stop()
        remove(base)
        shutil.rmtree(folder, ignore_errors=True)


def cpu_ns(pid: int) -> int:
    """CPU time of a process so far, in nanoseconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def wal_bytes(admin: psycopg.Connection[Any]) -> int:
    """Bytes of write-ahead log so far."""
    return int(admin.execute("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')").fetchone()[0])  # type: ignore[index]


WRITTEN = """
select coalesce(sum(n_tup_ins + n_tup_upd), 0)::bigint from pg_stat_xact_user_tables
"""


def measure(here: Place, name: str, call: Callable[[Sequence[Row]], Any], batches: list[list[Row]], warm: int) -> None:
    """Print what a row costs the backend, without the first `warm` batches."""
    pid = here.pool.one.info.backend_pid
    for batch in batches[:warm]:
        call(batch)
    cpu, wal = cpu_ns(pid), wal_bytes(here.admin)
    for batch in batches[warm:]:
        call(batch)
    rows = sum(len(batch) for batch in batches[warm:])
    cpu, wal = cpu_ns(pid) - cpu, wal_bytes(here.admin) - wal
    print(f"{name:36} backend CPU {cpu / rows / 1000:7.1f} us   WAL {wal / rows:6.0f} B   a row (n={rows})", flush=True)


def sequence(here: Place, most: int) -> None:
    """Print what the sequencer costs an event."""
    here.admin.execute("set synchronous_commit = on")
    pid, done = here.admin.info.backend_pid, 0
    cpu, wal = cpu_ns(pid), wal_bytes(here.admin)
    while some := here.admin.execute("select sentinel.sequence_events(%s)", [most]).fetchone()[0]:  # type: ignore[index]
        done += some
    cpu, wal = cpu_ns(pid) - cpu, wal_bytes(here.admin) - wal
    print(
        f"sequence_events({most}): CPU {cpu / max(1, done) / 1000:.1f} us   WAL {wal / max(1, done):.0f} B   an event (n={done})",
        flush=True,
    )


def guards(here: Place, sizes: Sequence[int], number: int) -> None:
    """Plain ALLOW rows in batches of each size."""
    for size in sizes:
        many = max(20, number // size)
        batches = [here.rows(size) for _ in range(many + 10)]
        measure(here, f"guard, batch {size}", lambda rows: record_decisions(here.pool, rows), batches, 10)  # type: ignore[arg-type]
        sequence(here, 500)


PIECES = ("sql", "bytes", "edge")


def main() -> None:
    """Measure the pieces that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "pieces", nargs="*", metavar="piece", help=f"of {', '.join(PIECES)}, adapters; all but the last without"
    )
    parser.add_argument("--sizes", default="1,8,32,64,128", help="rows of a batch, of sql")
    parser.add_argument("--number", type=int, default=1600, help="guards of each measurement of sql and bytes")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of adapters")
    parser.add_argument("--seconds", type=int, default=3, help="seconds of each measurement of edge")
    options = parser.parse_args()
    wanted = options.pieces or PIECES
    if unknown := set(wanted) - {*PIECES, "adapters"}:
        parser.error(f"no such piece: {', '.join(sorted(unknown))}")
    if "sql" in wanted:
        with place() as here:
            guards(here, [int(size) for size in options.sizes.split(",")], options.number)
    if "bytes" in wanted:
        pieces_bytes.main()
    if "edge" in wanted:
        pieces_edge.measure(options.seconds)
    if "adapters" in wanted:
        pieces_adapters.measure(options.rounds)


if __name__ == "__main__":
    sys.exit(main())

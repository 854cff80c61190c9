"""`make bench`: what the authority and the worker do beside what the database could do, interleaved in one run.

(a) pgbench runs the very transaction of a guard; (b) guards over HTTP; (c) refunds end to end by one worker; (d) checks;
(e) orders, first deliveries and repeats. PostgreSQL, the authority, the intake and the load generator share this machine. Absolute figures are this machine's; the ratios,
taken round by round, are the result.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import orjson
import psycopg

from sentinel.authority.decisions import batch_of
from sentinel.authority.engine import Authority, Caller
from sentinel.authority.guard import decided_row
from sentinel.authority.keys import WORKER_SCOPE
from sentinel.core.operation import build_operation
from sentinel.core.permit import PermitSigner
from sentinel.policy.library import ReloadablePolicies
from sentinel.store.database import AUTHORITY, ORDERS, WORKER
from sentinel.store.embedded import Embedded, find_binaries, remove
from sentinel.store.migrate import migrate
from tests.bench import orders as order_load
from tests.bench.board import board_viewers
from tests.bench.load import LoadResult, request_bytes, run_load
from tests.support.fixtures import SECRET, add_tenant, guard_body
from tests.support.ports import free_port
from tests.support.roomy import roomy_policies

OUT = Path(__file__).parent / "out"
ACCOUNTS = 20_000


@dataclass
class Bench:
    """A running authority on its own database, and where to find it."""

    url: str
    worker_url: str
    orders_url: str
    port: int
    tenant_id: uuid.UUID
    key: str
    policies: Path
    figures: dict[str, list[float]] = field(default_factory=dict)

    def note(self, name: str, value: float) -> None:
        """Keep one round's figure."""
        self.figures.setdefault(name, []).append(value)


def guard_requests(bench: Bench, *, hot: bool = False, path: str = "/api/sentinel/action/guard") -> Iterator[bytes]:
    """Endless distinct guard (or check) requests of one cent each."""
    run, hot_account = os.urandom(4).hex(), f"hot_{os.urandom(4).hex()}"
    for number in itertools.count():
        account = hot_account if hot else f"acct_{number % ACCOUNTS}"
        body = guard_body(f"{run}{number}", value="0.01", params={"account_ref": account})
        if not path.endswith("guard"):
            body = {name: body[name] for name in ("agent_id", "action", "params")}
        yield request_bytes(path, orjson.dumps(body), {"X-API-Key": bench.key})


def http(bench: Bench, name: str, seconds: float, *, connections: int, **how: object) -> None:
    """One closed-loop HTTP run."""
    # Made before the clock runs: the generator shares the processors with what it measures.
    prepared = list(itertools.islice(guard_requests(bench, **how), int(seconds * 4000)))  # type: ignore[arg-type]
    result: LoadResult = run_load(("127.0.0.1", bench.port), iter(prepared), connections=connections, seconds=seconds)
    wrong = {status: n for status, n in result.statuses.items() if status != 200}
    if wrong:
        raise SystemExit(f"{name}: answers other than 200: {wrong}")
    bench.note(name, result.per_second)
    bench.note(f"{name} p50", result.percentile(0.50))
    bench.note(f"{name} p99", result.percentile(0.99))


def pgbench_script(bench: Bench, folder: Path, *, hot: bool) -> Path:
    """The guard's own statement with fresh ids in each call, as a pgbench script."""
    holder = ReloadablePolicies(bench.policies)
    authority = Authority(
        pool=None,
        decisions=None,
        starts=None,
        reports=None,
        checks=None,
        policies=holder,
        permits=PermitSigner([SECRET]),
        clock=lambda: datetime.now(UTC),
    )  # type: ignore[arg-type]
    caller = Caller(bench.tenant_id, uuid.uuid4(), uuid.uuid4(), None, frozenset({WORKER_SCOPE}), None)
    fields = guard_body("KEYNNN", value="0.01", params={"account_ref": "HOT" if hot else "acct_AAA"})
    body = {name: fields[name] for name in ("agent_id", "action", "idempotency_key", "resource", "risk_class")}
    operation = build_operation(**body, params=fields["params"])
    row = decided_row(authority, caller, operation, has_start_step=True, elapsed_ms=0)
    for place, name in enumerate(("operation_id", "event_id", "second_event_id", "permit_id", "approval_id")):
        setattr(row, name, f"0000000{place}-0000-7000-8000-@N@")
    text = orjson.dumps(batch_of([row])).decode()
    # pgbench takes ":name" for a variable, even inside a literal: a space after a colon between name and value, an escape
    # for one inside a string.
    text = re.sub(r'(?<!\\)":(?=\w)', '": ', text)
    text = re.sub(r":(?=\w)", r"\\u003a", text)
    text = (
        text.replace("NNN", "@N@").replace("AAA", "@A@").replace("HOT", f"hot{os.urandom(3).hex()}").replace("'", "''")
    )
    script = folder / f"guard_{'hot' if hot else 'many'}.sql"
    script.write_text(
        "\\set n random(1, 140737488355328)\n\\set a random(1, " + str(ACCOUNTS) + ")\n"
        f"select result from sentinel.record_decisions(replace(replace('{text}', '@N@', lpad(to_hex((:n)::bigint), 12, '0')), '@A@', (:a)::int::text)::jsonb);\n"
    )
    return script


def pgbench(bench: Bench, name: str, seconds: float, script: Path, *, clients: int) -> None:
    """One pgbench run as the authority's role."""
    found = subprocess.run(
        [str(find_binaries().bin_dir / "pgbench"), "-n", "-M", "prepared", "-c", str(clients), "-j", "1", "-T", str(max(1, round(seconds))),
         "-f", str(script), bench.url],
        env={**os.environ, "PGOPTIONS": f"-c role={AUTHORITY}"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    tps = re.search(r"tps = ([0-9.]+)", found.stdout)
    if found.returncode or tps is None:
        raise SystemExit(f"pgbench failed: {found.stderr.strip().splitlines()[-3:]}")
    bench.note(name, float(tps[1]))
    latency = re.search(r"latency average = ([0-9.]+)", found.stdout)
    bench.note(f"{name} avg ms", float(latency[1]) if latency else float("nan"))


ROWS = """
insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, account_ref, risk)
select %(tenant)s, %(run)s || n, 'rf_' || %(run)s || n, 100, 'USD', 'acct_' || %(run)s || n,
  '{"duplicate_refund": false, "stale_window": false, "suspicious_reason": false, "customer_attempts_24h": 1}'
from generate_series(1, %(rows)s) n
"""
SWITCHES = """
insert into sentinel.switches (tenant_id, name, is_on, canary_percent, changed_at, changed_by, reason)
select %(tenant)s, name, true, 100, clock_timestamp(), 'bench', 'bench'
from unnest(array['small_refund.enabled', 'small_refund.refund_fee']) as name
on conflict do nothing
"""
FEES = """
with orders as (
  insert into refunds.orders (tenant_id, channel, order_ref, account_ref, ordered_at, delivered_at, paid_minor, currency, shipping_fee_minor)
  select %(tenant)s, 'private', 'o_' || %(run)s || n, 'acct_' || %(run)s || n, now() - interval '3 days', now() - interval '1 day', 9000, 'USD', 490
  from generate_series(1, %(rows)s) n)
insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, account_ref, channel, scenario, order_ref)
select %(tenant)s, %(run)s || n, 'rf_' || %(run)s || n, 490, 'USD', 'acct_' || %(run)s || n, 'private', 'fee', 'o_' || %(run)s || n
from generate_series(1, %(rows)s) n
"""
ANSWER = """
select count(*) filter (where refunds.answer_confirmation(tenant_id, confirmation_id, digest, 'confirm') = 'confirmed')
from refunds.confirmations where tenant_id = %(tenant)s and ledger_entry_id like %(like)s and status = 'pending'
"""
ASKED = """
select count(*) filter (where to_status = 'APPROVAL_REQUIRED'), extract(epoch from max(occurred_at) - min(occurred_at))::float
from refunds.ledger_events where ledger_entry_id like %(like)s
"""
SETTLED = """
select count(*), extract(epoch from max(o.acknowledged_at) - min(e.occurred_at))::float
from refunds.ledger_events e join refunds.outbox o using (tenant_id, ledger_entry_id)
where e.ledger_entry_id like %(like)s and e.from_status = 'APPROVAL_REQUIRED' and o.acknowledged_at is not null
"""
WORKED = """
select count(*), extract(epoch from max(o.acknowledged_at) - min(e.occurred_at))::float
from refunds.ledger_events e join refunds.outbox o using (tenant_id, ledger_entry_id)
where e.ledger_entry_id like %(like)s and e.to_status = 'GUARDING' and o.acknowledged_at is not null
"""


def refunds(bench: Bench, rows: int) -> None:
    """NEW rows through one worker process, from the first claim to the last acknowledged report."""
    run = f"b{os.urandom(4).hex()}_"
    with psycopg.connect(bench.url, autocommit=True) as connection:
        connection.execute(ROWS, {"tenant": bench.tenant_id, "run": run, "rows": rows})
        connection.execute("analyze refunds.ledger_entries")
    run_worker(bench)
    with psycopg.connect(bench.url, autocommit=True) as connection:
        done, seconds = connection.execute(WORKED, {"like": run + "%"}).fetchone() or (0, 1.0)
    if done != rows:
        raise SystemExit(f"refunds: {done} of {rows} rows were executed and reported")
    bench.note("refunds/s", rows / seconds)


def run_worker(bench: Bench) -> None:
    """One worker process over what is due."""
    with tempfile.TemporaryDirectory() as outbox:
        subprocess.run(
            [sys.executable, "-m", "worker.retail_refund_agent", "--once", "--json"], check=True, stdout=subprocess.DEVNULL,
            env={**os.environ, "SENTINEL_URL": f"http://127.0.0.1:{bench.port}", "WORKER_DATABASE_URL": bench.worker_url,
                 "SENTINEL_REFUND_AGENT_API_KEY": bench.key, "SENTINEL_TENANT_ID": str(bench.tenant_id),
                 "CONFIRM_SECRETS": SECRET, "WORKER_OUTBOX_DIR": outbox},
        )  # fmt: skip


def private_fees(bench: Bench, rows: int) -> None:
    """Private fees through the whole workflow: until the customers are asked, and from their answers to the last report.

    The rate counts both runs' work; the customers' own time, between the two, is theirs.
    """
    run = f"f{os.urandom(4).hex()}_"
    fields = {"tenant": bench.tenant_id, "run": run, "rows": rows, "like": run + "%"}
    with psycopg.connect(bench.url, autocommit=True) as connection:
        connection.execute(SWITCHES, fields)
        connection.execute(FEES, fields)
        connection.execute("analyze refunds.ledger_entries")
        connection.execute("analyze refunds.orders")
        run_worker(bench)
        asked, first = connection.execute(ASKED, fields).fetchone() or (0, 1.0)
        confirmed = connection.execute(ANSWER, fields).fetchone()
        run_worker(bench)
        done, second = connection.execute(SETTLED, fields).fetchone() or (0, 1.0)
    if (asked, confirmed, done) != (rows, (rows,), rows):
        raise SystemExit(f"private fees: of {rows} rows {asked} were asked, {confirmed} confirmed, {done} executed")
    bench.note("private fees/s", rows / (first + second))


def orders(bench: Bench, seconds: float) -> None:
    """Orders through an intake: first deliveries, and the same ones again."""
    place = order_load.Place(bench.orders_url, bench.port, bench.tenant_id, bench.key)
    for name, result in zip(("orders 24", "redelivery 24"), order_load.measure(place, seconds), strict=True):
        bench.note(name, result.per_second)
        bench.note(f"{name} p50", result.percentile(0.50))
        bench.note(f"{name} p99", result.percentile(0.99))


@contextlib.contextmanager
def running_authority() -> Iterator[Bench]:
    """An own PostgreSQL, migrated, with one tenant, and `sentinel serve` on a free port."""
    base = Path(tempfile.gettempdir()) / f"sentinel-bench-{os.getpid()}"
    server = Embedded(base, own=True, settings={"shared_buffers": "512MB", "max_wal_size": "8GB"})
    running = server.start()
    process: subprocess.Popen[bytes] | None = None
    try:
        migrate(running.admin_url)
        tenant_id, key, _ = add_tenant(running.admin_url, "bench")
        port, policies = free_port(), roomy_policies(base)
        with (base / "authority.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "sentinel.cli.main", "serve", "--port", str(port), "--graceful-seconds", "1"], stdout=log, stderr=log,
                env={**os.environ, "SENTINEL_DATABASE_URL": running.url(user=AUTHORITY), "SENTINEL_SECRET_KEYS": SECRET,
                     "SENTINEL_POLICIES_DIR": str(policies), "SENTINEL_PERMIT_SECONDS": "3600", "SENTINEL_OPEN_PERMITS_PER_KEY": "1000000", "SENTINEL_RATE_PER_SECOND": "100000", "SENTINEL_RATE_BURST": "100000"},
            )  # fmt: skip
        _wait(f"http://127.0.0.1:{port}/readyz")
        yield Bench(
            running.admin_url, running.url(user=WORKER), running.url(user=ORDERS), port, tenant_id, key, policies
        )
    finally:
        if process is not None:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=10)
        server.stop()
        remove(base)
        shutil.rmtree(base, ignore_errors=True)


def _wait(url: str) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.05)
    raise SystemExit("the authority did not become ready")


def plan(bench: Bench, folder: Path, seconds: float, rows: int) -> list[tuple[str, Callable[[], None]]]:
    """Every measurement, in the order of one round."""
    many, hot = pgbench_script(bench, folder, hot=False), pgbench_script(bench, folder, hot=True)
    return [
        ("pgbench 1", lambda: pgbench(bench, "pgbench 1", seconds, many, clients=1)),
        ("guard 1", lambda: http(bench, "guard 1", seconds, connections=1)),
        ("guard 8", lambda: http(bench, "guard 8", seconds, connections=8)),
        ("pgbench 32", lambda: pgbench(bench, "pgbench 32", seconds, many, clients=32)),
        ("guard 32", lambda: http(bench, "guard 32", seconds, connections=32)),
        ("guard 32 hot", lambda: http(bench, "guard 32 hot", seconds, connections=32, hot=True)),
        ("pgbench 32 hot", lambda: pgbench(bench, "pgbench 32 hot", seconds, hot, clients=32)),
        ("check 32", lambda: http(bench, "check 32", seconds, connections=32, path="/api/sentinel/action/check")),
        ("refunds/s", lambda: refunds(bench, rows)),
        ("private fees/s", lambda: private_fees(bench, rows)),
        ("orders 24", lambda: orders(bench, seconds)),
        ("guard with 500 viewers", lambda: board_viewers(bench, seconds)),
    ]


RATIOS = (
    ("guard 32 / pgbench 32", "guard 32", "pgbench 32", 0.25),
    ("guard 32 hot / guard 32", "guard 32 hot", "guard 32", 0.6),
    ("guard 32 hot / pgbench 32 hot", "guard 32 hot", "pgbench 32 hot", None),
    ("check 32 / guard 32", "check 32", "guard 32", None),
    ("redelivery 24 / orders 24", "redelivery 24", "orders 24", 3.0),
    ("guard with 500 viewers / without", "guard with 500 viewers", "guard without viewers", 0.9),
)
BOUNDS = (
    ("guard 32 p99", "≤", 60.0, "ms"),
    ("refunds/s", "≥", 400.0, "rows/s"),
    ("private fees/s", "≥", 300.0, "rows/s"),
    ("orders 24", "≥", 300.0, "orders/s"),
    ("orders 24 p99", "≤", 150.0, "ms"),
)


def report(bench: Bench, rounds: int, seconds: float) -> str:
    """The tables, as they go into RESULTS.md."""
    figures = bench.figures
    lines = [
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} processors, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, PostgreSQL {find_binaries().version}; {rounds} rounds of {seconds:g} s, medians [min–max].",
        "", "| measured | per second | p50 ms | p99 ms |", "|---|---:|---:|---:|",
    ]  # fmt: skip
    for name in [n for n in figures if not re.search(r" (p50|p99|avg ms)$", n)]:
        p50 = figures.get(f"{name} p50") or figures.get(f"{name} avg ms")
        lines.append(
            f"| {name} | {_spread(figures[name], 0)} | {_spread(p50, 1)} | {_spread(figures.get(f'{name} p99'), 1)} |"
        )
    lines += ["", "| ratio, round by round | median | at least |", "|---|---:|---:|"]
    for title, one, other, least in RATIOS:
        ratios = [a / b for a, b in zip(figures[one], figures[other], strict=True)]
        lines.append(f"| {title} | {_spread(ratios, 2)} | {least or '–'} |")
    for name, sign, bound, unit in BOUNDS:
        lines.append(f"| {name} | {_spread(figures[name], 0)} {unit} | {sign} {bound:g} |")
    return "\n".join(lines) + "\n"


def _spread(values: list[float] | None, digits: int) -> str:
    if not values:
        return "–"
    return f"{statistics.median(values):,.{digits}f} [{min(values):,.{digits}f}–{max(values):,.{digits}f}]"


def main() -> None:
    """Run the rounds, print and keep the tables."""
    parser = argparse.ArgumentParser(prog="make bench BENCH=…", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--only", help="only measurements whose name contains this")
    options = parser.parse_args()
    with running_authority() as bench, tempfile.TemporaryDirectory() as folder:
        steps = plan(bench, Path(folder), options.seconds, options.rows)
        for number in range(1, options.rounds + 1):
            for name, step in steps:
                if options.only is None or options.only in name:
                    step()
                    print(f"round {number}: {name}: {bench.figures[name][-1]:,.0f}/s", file=sys.stderr, flush=True)
        if options.only == "orders":
            print({name: [round(value, 1) for value in values] for name, values in bench.figures.items()})
        if options.only is None:
            text = report(bench, options.rounds, options.seconds)
            OUT.mkdir(exist_ok=True)
            (OUT / "latest.md").write_text(text)
            (OUT / "latest.json").write_text(json.dumps(bench.figures, indent=1))
            print(text)


if __name__ == "__main__":
    main()

"""The refund worker under load: rows of the ledger to executions, alone and through the whole workflow."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import psycopg

from tests.bench.generator import children_cpu_seconds
from tests.bench.place import WORKER_PROGRAM, Bench
from tests.support.fixtures import SECRET

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

LOOK = "analyze refunds.ledger_events, refunds.outbox"
"""Before the trails of a new database are joined, or they are compared each with each."""


def refunds(bench: Bench, rows: int) -> None:
    """NEW rows through one worker process, from the first claim to the last acknowledged report."""
    run = f"b{os.urandom(4).hex()}_"
    with psycopg.connect(bench.url, autocommit=True) as connection:
        connection.execute(ROWS, {"tenant": bench.tenant_id, "run": run, "rows": rows})
        connection.execute("analyze refunds.ledger_entries")
    before = bench.spent()
    worker = run_worker(bench)
    spent, wal_bytes = bench.spent_since(before)
    with psycopg.connect(bench.url, autocommit=True) as connection:
        connection.execute(LOOK)
        done, seconds = connection.execute(WORKED, {"like": run + "%"}).fetchone() or (0, 1.0)
    if done != rows:
        raise SystemExit(f"refunds: {done} of {rows} rows were executed and reported")
    bench.keep_rows("refunds/s", rows, seconds, {**spent, WORKER_PROGRAM: worker}, wal_bytes)


def run_worker(bench: Bench) -> float:
    """One worker process over what is due: its CPU seconds, those of its start among them."""
    before = children_cpu_seconds()
    with tempfile.TemporaryDirectory() as outbox:
        subprocess.run(
            [sys.executable, "-m", "worker.retail_refund_agent", "--once", "--json"], check=True, stdout=subprocess.DEVNULL,
            env={**os.environ, "SENTINEL_URL": f"http://127.0.0.1:{bench.port}", "WORKER_DATABASE_URL": bench.worker_url,
                 "SENTINEL_REFUND_AGENT_API_KEY": bench.key, "SENTINEL_TENANT_ID": str(bench.tenant_id),
                 "CONFIRM_SECRETS": SECRET, "WORKER_OUTBOX_DIR": outbox},
        )  # fmt: skip
    return children_cpu_seconds() - before


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
        before = bench.spent()
        worker = run_worker(bench)
        asked, first = connection.execute(ASKED, fields).fetchone() or (0, 1.0)
        confirmed = connection.execute(ANSWER, fields).fetchone()
        worker += run_worker(bench)
        spent, wal_bytes = bench.spent_since(before)
        connection.execute(LOOK)
        done, second = connection.execute(SETTLED, fields).fetchone() or (0, 1.0)
    if (asked, confirmed, done) != (rows, (rows,), rows):
        raise SystemExit(f"private fees: of {rows} rows {asked} were asked, {confirmed} confirmed, {done} executed")
    bench.keep_rows("private fees/s", rows, first + second, {**spent, WORKER_PROGRAM: worker}, wal_bytes)

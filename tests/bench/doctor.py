"""How long `sentinel doctor` takes with 100,000 operations: `python -m tests.bench.doctor`.

An own PostgreSQL with operations that the authority itself decided, started and heard reports of, in sets; beside each of
those that a worker would have asked for, a row of the ledger with its trail, its order and, where paid, its execution. The
doctor must find it sound. The figure is the command's whole time; below it stand the invariants that take longest.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from sentinel.authority.api.guard import GUARD, to_operation
from sentinel.authority.decisions import REPORT_OUTCOMES
from sentinel.authority.guard import decided_row, report_row
from sentinel.authority.housekeeping import sequence_events
from sentinel.platform.resources import invariants_sql
from sentinel.store.embedded import remove, running
from sentinel.store.invariants import check_invariant, read_invariants
from sentinel.store.migrate import migrate
from tests.support.commits import commit_rows, record_decisions
from tests.support.fixtures import Fixtures, guard_body, make_fixtures
from tests.support.harness import caller_of
from tests.support.roomy import roomy_policies

OPERATIONS = 100_000
WANTED_SECONDS = 60.0
SET = 200
VALUES = (40, 40, 40, 40, 40, 40, 40, 3, 200, 2000)
"""Of ten operations seven are paid, one permit lies about, one waits for a person and one is denied."""
PAID = 7
ASKED_BY_WORKER = (*range(PAID), 8)

LEDGER = """
set session_replication_role = replica;
create temp table made as
  select o.tenant_id, substr(o.idempotency_key, 8) as entry, o.operation_id, o.amount_minor, o.currency, o.created_at,
    s.decision_event_id, s.decision, s.reason_code, s.approval_id, s.start_id, s.start_event_id, s.started_at, s.status = 'completed' as paid
  from sentinel.operations o join sentinel.operation_states s using (tenant_id, operation_id)
  where o.idempotency_key like 'refund:%';
insert into refunds.orders (tenant_id, order_ref, ordered_at, paid_minor, currency)
  select tenant_id, 'ord_' || entry, created_at, 100000, currency from made;
insert into refunds.order_budgets (tenant_id, channel, source, order_ref, currency, paid_minor, executed_minor, reserved_minor)
  select tenant_id, 'retail', '', 'ord_' || entry, currency, 100000, case when paid then amount_minor else 0 end,
  case when paid then 0 else amount_minor end from made;
insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, status, last_event, event_number, amount_minor, currency,
  account_ref, order_ref, budget_part, claim_epoch, operation_id, decision_event_id, decision, reason_code, approval_id, waiting_for, start_id)
  select tenant_id, entry, 'rf_' || entry, case when paid then 'EXECUTED' else 'APPROVAL_REQUIRED' end,
  case when paid then 'executed' else 'approval_required' end, case when paid then 3 else 2 end, amount_minor, currency, 'acct_' || entry,
  'ord_' || entry, case when paid then 'executed' else 'reserved' end, 1, operation_id, decision_event_id, decision, reason_code, approval_id,
  case when not paid then 'operator' end, start_id from made;
insert into refunds.ledger_events (tenant_id, ledger_entry_id, from_status, event, to_status, claim_epoch)
  select tenant_id, entry, step.was, step.event, step.becomes, 1 from made cross join lateral (values
    (1, true, 'NEW', 'claimed', 'GUARDING'), (2, paid, 'GUARDING', 'allowed', 'ALLOWED'), (3, paid, 'ALLOWED', 'executed', 'EXECUTED'),
    (2, not paid, 'GUARDING', 'approval_required', 'APPROVAL_REQUIRED')) as step (number, holds, was, event, becomes)
  where step.holds order by created_at, entry, step.number;
insert into refunds.executions (tenant_id, execution_id, ledger_entry_id, refund_id, amount_minor, currency, operation_id, start_id,
  start_event_id, claim_epoch, executed_at)
  select tenant_id, gen_random_uuid(), entry, 'rf_' || entry, amount_minor, currency, operation_id, start_id, start_event_id, 1,
  started_at from made where paid;
insert into refunds.workers (tenant_id, worker_id, agent_id, mode, status)
  select distinct tenant_id, 'w', 'retail-refund-agent', 'loop', 'stopped' from made;
reset session_replication_role;
analyze
"""


def bodies(first: int, number: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """(place in ten, request) of so many operations from `first` on."""
    for place in range(first, first + number):
        entry = f"lge_{place}"
        params = {"account_ref": f"acct_{entry}", "refund_id": f"rf_{entry}", "ledger_entry_id": entry}
        key = f"{'refund' if place % 10 in ASKED_BY_WORKER else 'other'}:{entry}"
        yield place % 10, guard_body(key, value=VALUES[place % 10], params=params)


def fill(fixtures: Fixtures, operations: int) -> None:
    """So many operations, through the functions that the authority calls, and the ledger beside them."""
    caller, authority = caller_of(fixtures), fixtures.authority
    for first in range(0, operations, SET):
        asked = list(bodies(first, min(SET, operations - first)))
        rows = [
            decided_row(authority, caller, to_operation(GUARD.of_object(body), body["idempotency_key"]), has_start_step=True, elapsed_ms=0,
                        start_id=uuid.uuid4() if place < PAID else None)
            for place, body in asked
        ]  # fmt: skip
        record_decisions(authority.pool, rows, 60)
        reports = [
            report_row(authority, caller, idempotency_key=body["idempotency_key"], action=body["action"],
                       agent_id=body["agent_id"], outcome="success", error=None, result=None, resource=None, risk_class=None,
                       permit_token=None, report_id=None)
            for place, body in asked if place < PAID
        ]  # fmt: skip
        commit_rows(authority.pool, REPORT_OUTCOMES, reports, 60)
    while sequence_events(authority.pool):
        pass
    for statement in LEDGER.split(";\n"):
        fixtures.admin.execute(statement.encode())


def seconds_by_invariant(url: str) -> list[tuple[float, str]]:
    """How long each takes, the longest first."""
    found = []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("begin isolation level repeatable read read only")
        for one in read_invariants(invariants_sql()):
            began = time.perf_counter()
            check_invariant(connection, one)
            found.append((time.perf_counter() - began, one.name))
    return sorted(found, reverse=True)


def doctor(url: str) -> tuple[float, list[str]]:
    """(seconds of the command, what it found wrong)."""
    env = {**os.environ, "SENTINEL_DATABASE_URL": url}
    began = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, "-m", "sentinel.cli.main", "doctor", "--json"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - began
    if not ran.stdout:
        sys.exit(ran.stderr)
    return seconds, [f"{one['name']}: {one['detail']}" for one in json.loads(ran.stdout) if not one["ok"]]


def main() -> None:
    """The command; fails when the doctor finds anything, or takes longer than wanted."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.doctor", description=__doc__)
    parser.add_argument("--operations", type=int, default=OPERATIONS)
    options = parser.parse_args()
    parent = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
    base = parent / f"sentinel-doctor-{os.getpid()}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with running(base, own=True) as server:
                migrate(server.admin_url)
                fixtures = make_fixtures(server.admin_url, policies=roomy_policies(Path(folder)))
                began = time.perf_counter()
                fill(fixtures, options.operations)
                print(f"{options.operations:,} operations in {time.perf_counter() - began:.0f} s", flush=True)
                seconds, wrong = doctor(server.admin_url)
                slowest = seconds_by_invariant(server.admin_url)
                fixtures.close()
        finally:
            remove(base)
            shutil.rmtree(base, ignore_errors=True)
    print(
        f"sentinel doctor: {seconds:.1f} s; invariants alone {sum(s for s, _ in slowest):.1f} s; load {Path('/proc/loadavg').read_text().strip()}"
    )
    for taken, name in slowest[:10]:
        print(f"{name:32} {taken:6.2f} s")
    if wrong:
        sys.exit("not sound:\n" + "\n".join(wrong))
    if seconds > WANTED_SECONDS:
        sys.exit(f"slower than {WANTED_SECONDS:.0f} s")


if __name__ == "__main__":
    main()

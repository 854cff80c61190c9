"""Refund rows for outside tests, the worker as a process, and the checks that every such scenario ends with."""

from __future__ import annotations

import json
import subprocess
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from sentinel.store.database import WORKER
from tests.support.fixtures import add_tenant, broken_invariants, unique
from tests.support.logins import program_url
from tests.support.served_programs import Served, clean_env, module
from tests.support.warm_process import WarmProcess, run_warm

# An authority that answers is waited for, however long it stands still; lease ≥ 2 × timeout + heartbeat.
PATIENT = {
    "WORKER_LEASE_SECONDS": "130", "WORKER_GUARD_TIMEOUT_SECONDS": "60", "WORKER_HEARTBEAT_SECONDS": "0.3", "WORKER_BACKOFF_SECONDS": "0.1",
    "WORKER_BACKOFF_MAX_SECONDS": "0.4", "WORKER_POLL_SECONDS": "0.1", "WORKER_MAX_ATTEMPTS": "60",
}  # fmt: skip
QUICK = {**PATIENT, "WORKER_LEASE_SECONDS": "2.2", "WORKER_GUARD_TIMEOUT_SECONDS": "0.9"}
"""For a loop that tries again: what it held when something was killed comes back while the test waits."""
WAITING_OR_DONE = ("EXECUTED", "DENIED", "APPROVAL_REQUIRED", "ERROR")


@dataclass
class Shop:
    """One tenant with its own ledger on an authority's database."""

    served: Served
    tenant_id: uuid.UUID
    key: str

    @property
    def env(self) -> dict[str, str]:
        return clean_env(
            SENTINEL_URL=self.served.url, WORKER_DATABASE_URL=program_url(self.served.database_url, WORKER), SENTINEL_REFUND_AGENT_API_KEY=self.key,
            SENTINEL_TENANT_ID=str(self.tenant_id), **PATIENT,
        )  # fmt: skip

    def enqueue(self, rows: list[dict[str, Any]]) -> None:
        """Enter rows with the worker's own command."""
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        done = run_warm("worker.cli", "enqueue", "-", "--json", stdin=lines, env=self.env)
        assert done.returncode == 0, done.stdout + done.stderr

    def enqueue_with_orders(self, rows: list[dict[str, Any]]) -> None:
        """Enter rows, each with an order of its own that has room: such a row's start is asked for after its permission."""
        two_days_ago = (datetime.now(UTC) - timedelta(days=2)).isoformat()
        orders = [
            {"kind": "order", "order_ref": f"o_{row['ledger_entry_id']}", "paid": "100000", "ordered_at": two_days_ago,
             "currency": row["amount"]["currency"], "account_ref": row["account_ref"]}
            for row in rows
        ]  # fmt: skip
        done = run_warm(
            "worker.cli", "facts", "-", "--json", stdin="".join(json.dumps(o) + "\n" for o in orders), env=self.env
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.enqueue([{**row, "order_ref": f"o_{row['ledger_entry_id']}"} for row in rows])

    def worker(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        """A worker process. What a start from nothing does is for the tests of the demo and of wrong keys."""
        return WarmProcess(
            module("worker.retail_refund_agent", *(arguments or ("--once", "--json"))), env={**self.env, **env}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def work(self, *arguments: str, **env: str) -> tuple[int, str]:
        """A worker run to its end: (exit status, what it printed)."""
        out, err = (process := self.worker(*arguments, **env)).communicate(timeout=120)
        return process.returncode, out + err

    def end_leases(self) -> None:
        """What its workers held when they were killed or stopped has lapsed, and what was put off is due."""
        with psycopg.connect(self.served.database_url, autocommit=True) as admin:
            for change in (
                "update refunds.ledger_entries set lease_until = clock_timestamp() - interval '1 second'"
                " where tenant_id = %s and status in ('GUARDING', 'ALLOWED')",
                "update refunds.ledger_entries set next_attempt_at = clock_timestamp() where tenant_id = %s and status = 'NEW'",
                "update refunds.outbox set next_attempt_at = clock_timestamp() where tenant_id = %s and acknowledged_at is null",
            ):
                admin.execute(change, [self.tenant_id])

    def all(self, query: str) -> list[Any]:
        """Rows of a query with the tenant as its only parameter."""
        with psycopg.connect(self.served.database_url) as connection:
            return connection.execute(query.encode(), [self.tenant_id]).fetchall()

    def states(self) -> dict[str, str]:
        """Status by ledger entry."""
        return dict(self.all("select ledger_entry_id, status from refunds.ledger_entries where tenant_id = %s"))

    def faults(self) -> list[str]:
        """What must not be: see `ledger_faults`."""
        with psycopg.connect(self.served.database_url) as connection:
            return ledger_faults(connection, self.tenant_id)


def ledger_faults(connection: psycopg.Connection[Any], tenant_id: uuid.UUID) -> list[str]:
    """Doubles, rows that neither ended nor wait, executions without a row that says so, reports never acknowledged."""

    def count(query: str) -> int:
        found = connection.execute(query.encode(), [tenant_id]).fetchone()
        return int(found[0]) if found else 0

    found = {
        "executed twice": count("select count(*) from (select from refunds.executions where tenant_id = %s group by ledger_entry_id having count(*) > 1) x"),
        "same operation twice": count("select count(*) from (select from refunds.executions where tenant_id = %s group by operation_id having count(*) > 1) x"),
        "stuck": count("select count(*) from refunds.ledger_entries where tenant_id = %s and status in ('NEW', 'GUARDING', 'ALLOWED')"),
        "EXECUTED and executions differ": count(
            "select count(*) from refunds.ledger_entries l full join refunds.executions e using (tenant_id, ledger_entry_id)"
            " where tenant_id = %s and (l.status = 'EXECUTED') is distinct from (e.execution_id is not null)"
        ),
        "not acknowledged": count("select count(*) from refunds.outbox where tenant_id = %s and acknowledged_at is null"),
    }  # fmt: skip
    return [f"{name}: {number}" for name, number in found.items() if number]


def broken_invariants_at(url: str) -> list[str]:
    """Names of the invariants that do not hold in a database."""
    with psycopg.connect(url, autocommit=True) as connection:
        return broken_invariants(connection)


def open_shop(served: Served) -> Shop:
    """A new tenant on the authority's database."""
    tenant_id, key, _ = add_tenant(served.database_url, unique("shop").replace("_", "-"))
    return Shop(served, tenant_id, key)


def refund(name: str, value: Any = 10, currency: str = "USD", **over: Any) -> dict[str, Any]:
    """A ledger row of an account of its own, as `worker enqueue` takes it."""
    return {
        "ledger_entry_id": f"lge_{name}", "refund_id": f"rf_{name}", "agent_id": "retail-refund-agent", "action": "refund.create", "status": "NEW",
        "amount": {"value": value, "currency": currency}, "idempotency_key": f"refund:lge_{name}", "account_ref": f"acct_{name}",
        "risk": {"duplicate_refund": False, "stale_window": False, "suspicious_reason": False, "customer_attempts_24h": 1}, **over,
    }  # fmt: skip


def mixed_rows(prefix: str, low: int = 4) -> list[dict[str, Any]]:
    """Rows of every fate: several paid, one waiting, one denied."""
    return [
        *(refund(f"{prefix}_low_{n}", n + 1) for n in range(low)),
        refund(f"{prefix}_medium", 300), refund(f"{prefix}_high", 5000),
    ]  # fmt: skip


def fates(prefix: str, low: int = 4) -> dict[str, str]:
    """How `mixed_rows` must end."""
    return {
        **{f"lge_{prefix}_low_{n}": "EXECUTED" for n in range(low)},
        f"lge_{prefix}_medium": "APPROVAL_REQUIRED",
        f"lge_{prefix}_high": "DENIED",
    }

"""A worker as one would write it first: no claim, no epoch, the money before the state, every ALLOW taken at its word.

A mutant for the tests of "at most once": killed in the wrong place and started again, it pays twice.
"""

from __future__ import annotations

import os
import sys
import uuid

import psycopg

from sentinel.client import Client
from worker.failpoints import Failpoint, Failpoints

TABLES = """
create schema naive;
create table naive.entries (ledger_entry_id text primary key, amount integer not null, status text not null default 'NEW');
create table naive.executions (ledger_entry_id text not null, executed_at timestamptz not null default clock_timestamp());
grant usage on schema naive to public;
grant all on all tables in schema naive to public;
"""


def work(database_url: str, authority_url: str, failpoints: Failpoints) -> None:
    """Process everything that is NEW."""
    with psycopg.connect(database_url, autocommit=True) as db, Client(authority_url, "key", agent_id="naive") as client:
        rows = db.execute("select ledger_entry_id, amount from naive.entries where status = 'NEW'").fetchall()
        for entry_id, amount in rows:
            params = {
                "amount": {"value": amount, "currency": "USD"},
                "risk": {
                    "duplicate_refund": False,
                    "stale_window": False,
                    "suspicious_reason": False,
                    "customer_attempts_24h": 1,
                },
            }
            answer = client.guard(action="refund.create", params=params, idempotency_key=f"naive:{entry_id}")
            if answer.decision != "ALLOW":
                continue
            if answer.may_start:
                client.start(answer, uuid.uuid4())
            db.execute("insert into naive.executions (ledger_entry_id) values (%s)", [entry_id])
            failpoints.hit(Failpoint.AFTER_EXECUTION_COMMIT)
            db.execute("update naive.entries set status = 'EXECUTED' where ledger_entry_id = %s", [entry_id])


if __name__ == "__main__":
    armed = Failpoints.parse(
        os.environ.get("SENTINEL_FAILPOINT"), allowed=bool(os.environ.get("SENTINEL_ALLOW_FAILPOINTS"))
    )
    work(os.environ["WORKER_DATABASE_URL"], os.environ["SENTINEL_URL"], armed)
    sys.exit(0)

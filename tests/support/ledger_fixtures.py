"""Builders for tests of the worker: a tenant on a fresh database, rows, a worker in this process or as a process."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sentinel.client import Client
from sentinel.store.database import WORKER, Pool, with_role
from tests.support.busy import is_over
from tests.support.kept_sessions import connect
from tests.support.logins import program_url
from tests.support.warm_process import WarmProcess
from worker.failpoints import Failpoints
from worker.refunds.agent import Agent
from worker.refunds.build import make_agent
from worker.refunds.ledger import Ledger
from worker.refunds.rows import LedgerRow, NewRow, OrderFacts
from worker.refunds.settings import WorkerSettings
from worker.refunds.transitions import RetryPolicy

ROOT = Path(__file__).resolve().parents[2]
CLEAN = {"duplicate_refund": False, "stale_window": False, "suspicious_reason": False, "customer_attempts_24h": 1}


def new_row(name: str, value: int = 100, **over: Any) -> NewRow:
    """A row that the fake authority allows: one unit of money, own account, nothing suspicious."""
    fields = {
        "refund_id": f"rf_{name}",
        "amount_minor": value,
        "currency": "USD",
        "account_ref": f"acct_{name}",
        "risk": CLEAN,
    }
    return NewRow(ledger_entry_id=name, **{**fields, **over})


class LedgerFixtures:
    """One tenant's ledger on a fresh database."""

    def __init__(self, url: str, tenant_id: uuid.UUID | None = None) -> None:
        self.url = url
        self.admin = connect(url)
        self.tenant_id = tenant_id or uuid.uuid4()
        if tenant_id is None:
            self.admin.execute("insert into sentinel.tenants (tenant_id, label) values (%s, 'shop')", [self.tenant_id])
            self.admin.execute("insert into refunds.defaults (tenant_id) values (%s)", [self.tenant_id])
        self.pool = Pool(with_role(url, WORKER), size=8)
        self.ledger = self.ledger_of("worker-1")

    def ledger_of(self, worker_id: str, lease_seconds: float = 30.0) -> Ledger:
        """The ledger as another worker."""
        return Ledger(self.pool, self.tenant_id, worker_id=worker_id, lease_seconds=lease_seconds)

    def add(self, *rows: NewRow) -> None:
        """Enter rows; all must be new."""
        assert self.ledger.add_rows(rows) == {row.ledger_entry_id for row in rows}

    def add_with_orders(self, *rows: NewRow) -> None:
        """Enter rows, each with an order of its own that has room: such a row's start is asked for after its permission."""
        self.ledger.add_orders([
            OrderFacts(f"o_{row.ledger_entry_id}", datetime.now(UTC) - timedelta(days=2), 10 * row.amount_minor, row.currency,
                       row.account_ref, row.channel) for row in rows
        ])  # fmt: skip
        self.add(*(replace(row, order_ref=f"o_{row.ledger_entry_id}") for row in rows))

    def all(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Rows of a query as administrator."""
        return self.admin.execute(query.encode(), arguments).fetchall()

    def one(self, query: str, *arguments: Any) -> Any:
        """The first column of the first row of a query as administrator."""
        return self.all(query, *arguments)[0][0]

    def state(self, name: str) -> str:
        """A row's status."""
        return str(self.one("select status from refunds.ledger_entries where ledger_entry_id = %s", name))

    def states(self) -> dict[str, str]:
        """Status by row."""
        return dict(self.all("select ledger_entry_id, status from refunds.ledger_entries"))

    def executions(self) -> int:
        """How many there are."""
        return int(self.one("select count(*) from refunds.executions"))

    def make_due(self) -> None:
        """What is paused is due now, and what is held by a claim has lapsed."""
        self.admin.execute("update refunds.ledger_entries set next_attempt_at = clock_timestamp() where status = 'NEW'")
        self.admin.execute(
            "update refunds.ledger_entries set lease_until = clock_timestamp() - interval '1 second'"
            " where status in ('GUARDING', 'ALLOWED')"
        )
        self.admin.execute(
            "update refunds.outbox set next_attempt_at = clock_timestamp() where acknowledged_at is null"
        )

    @contextmanager
    def agent(
        self, url: str, *, key: str = "key", only_agent: Callable[[], str | None] = lambda: None, **over: Any
    ) -> Iterator[Agent]:
        """A worker in this process that asks the authority at `url`; `only_agent`: as under a key that is bound to that agent."""
        settings = worker_settings(authority_url=url, **over)
        with Client(
            url, key, agent_id=settings.agent_id, timeout_seconds=settings.guard_timeout_seconds, retries=1
        ) as client:
            patience = RetryPolicy(
                settings.max_attempts, settings.backoff_seconds, settings.backoff_max_seconds, random.Random(1)
            )
            ledger = self.ledger_of(f"worker-{uuid.uuid4().hex[:6]}")
            yield make_agent(
                settings, ledger, client, failpoints=Failpoints(), retry_policy=patience, only_agent=only_agent
            )

    def close(self) -> None:
        """Give everything back."""
        self.pool.close()
        self.admin.close()


def worker_settings(**over: Any) -> WorkerSettings:
    """Settings that do not pause long. An authority that answers is waited for, however busy the machine is.

    In one lane: several share the rows as it happens, and which of an order's finds the last of its money is another in every run.
    """
    fields: dict[str, Any] = {
        "api_key": "key", "guard_timeout_seconds": 30.0, "backoff_seconds": 0.01, "backoff_max_seconds": 0.05,
        "poll_seconds": 0.02, "concurrency": 4, "lanes": 1,
    }  # fmt: skip
    return WorkerSettings(**{**fields, **over})


def worker_process(
    arguments: list[str], *, database_url: str, authority_url: str, script: list[str] | None = None, **env: str
) -> subprocess.Popen[str]:
    """A worker as operators start it."""
    variables = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "WORKER_DATABASE_URL": program_url(database_url, WORKER), "SENTINEL_URL": authority_url,
        "SENTINEL_REFUND_AGENT_API_KEY": "key", "WORKER_GUARD_TIMEOUT_SECONDS": "30", "WORKER_LEASE_SECONDS": "70",
        "WORKER_HEARTBEAT_SECONDS": "1", "WORKER_BACKOFF_SECONDS": "0.05", "WORKER_BACKOFF_MAX_SECONDS": "0.2", **env,
    }  # fmt: skip
    command = [sys.executable, *(script or [str(ROOT / "worker" / "retail_refund_agent.py")]), *arguments]
    return WarmProcess(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def claimed(fixtures: LedgerFixtures, name: str) -> LedgerRow:
    """The row, claimed by worker-1."""
    return next(row for row in fixtures.ledger.claim(100) if row.ledger_entry_id == name)


@contextmanager
def looping(agent: Agent) -> Iterator[threading.Thread]:
    """The agent's loop for the block, ended with it whatever happens."""
    thread = threading.Thread(target=agent.run_loop, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        agent.request_stop()
        began = time.monotonic()
        while thread.is_alive() and not is_over(began, 5):
            thread.join(5)


def wait_until(condition: Callable[[], object], seconds: float = 10) -> None:
    """Until it holds; fails the test otherwise. A busy machine gets longer. It is asked less often the longer it takes."""
    began = time.monotonic()
    while not condition():
        assert not is_over(began, seconds), "it never came true"
        time.sleep(min(max(0.02, (time.monotonic() - began) / 10), 0.25))

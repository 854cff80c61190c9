"""The demo's small refunds: runs the launch gate, turns its switch on and adds rows of other channels.

One row waits for its customer, and the file with the customer's confirm link is printed; each of the others waits for a
person for a different reason.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from sentinel.core.errors import SentinelError
from sentinel.demo.access import DemoAccess
from sentinel.demo.ledger import ledger_row, not_entered
from sentinel.demo.processes import Processes
from sentinel.platform.private_files import write_private
from sentinel.platform.resources import policies_dir
from sentinel.policy.switches import load_declared_switches
from sentinel.store.database import CONSOLE, Pool, first_line, with_role

MASTER, SWITCH, SCENARIO = "small_refund.enabled", "small_refund.refund_fee", "fee"


class SmallRefunds:
    """Sets up the small refunds, once per data folder; a failing step names its log, and the demo goes on without them."""

    def __init__(
        self, processes: Processes, worker_env: Mapping[str, str], people_env: Mapping[str, str], access: DemoAccess,
        data_dir: Path, say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._processes, self._worker_env, self._people_env = processes, worker_env, people_env
        self._access, self._data_dir, self._say = access, data_dir, say

    def begin(self) -> None:
        """Run the gate, turn the switches on, and add facts and rows. Raises `DemoStopped` at any point when the processes are to end."""
        done = self._data_dir / "demo_small_refunds"
        if done.exists() and done.read_text() == self._access.tenant_id:
            return
        self._say(f"Running the launch gate for {SCENARIO} …")
        approver = ("--as", self._email("approver"), "--tenant", self._access.tenant_id)
        begun = (
            self._ran("gates", "sentinel.cli.main", "gates", "run", SCENARIO, "--record", *approver, env=self._people_env)
            and self._turned_on()
            and self._ran("facts", "worker.cli", "facts", "-", env=self._worker_env, stdin=small_refund_facts())
            and self._entered()
        )  # fmt: skip
        if not begun:
            return
        write_private(done, self._access.tenant_id.encode())
        outbox = self._data_dir / "outbox" / "confirmations.jsonl"
        self._say(f"The launch gate passed and {SWITCH} is on. A customer's confirm link is in {outbox}")

    def _ran(self, name: str, module: str, *arguments: str, env: Mapping[str, str], stdin: bytes = b"") -> bool:
        """Run a command and return whether it succeeded; its output is in the log of this name."""
        done = self._processes.run(name, [sys.executable, "-m", module, *arguments], env, stdin=stdin) == 0
        if not done:
            self._stays_off(f"see {self._data_dir / 'log' / f'{name}.log'}")
        return done

    def _entered(self) -> bool:
        self._processes.raise_if_stopped()
        try:
            rows = not_entered(small_refund_rows(), self._worker_env["WORKER_DATABASE_URL"], self._access.tenant_id)
        except psycopg.Error as error:
            self._stays_off(first_line(error))
            return False
        return not rows or self._ran("enqueue", "worker.cli", "enqueue", "-", env=self._worker_env, stdin=rows)

    def _turned_on(self) -> bool:
        """Turn both switches on as an administrator, the scenario's for a few accounts first, then for all; return whether they are on."""
        from sentinel.authority.switches import turn_switch_on
        from sentinel.cli.common import acting_as

        self._processes.raise_if_stopped()
        declared = load_declared_switches(Path(self._people_env.get("SENTINEL_POLICIES_DIR") or policies_dir()))
        pool = Pool(with_role(self._people_env["SENTINEL_DATABASE_URL"], CONSOLE), size=1)
        try:
            admin = acting_as(pool, uuid.UUID(self._access.tenant_id), self._email("admin"))
            for name, percent in ((MASTER, 100), (SWITCH, 5), (SWITCH, 100)):
                turn_switch_on(pool, admin, declared, name, canary_percent=percent, reason="the demo")
        except SentinelError as error:
            self._stays_off(error.detail)
            return False
        finally:
            pool.close()
        return True

    def _stays_off(self, why: str) -> None:
        self._say(f"The demo's small refunds are not set up: {why}")

    def _email(self, role: str) -> str:
        return next(person["email"] for person in self._access.operators if person["role"] == role)


def small_refund_facts() -> bytes:
    """Return JSON lines for `worker facts`: the orders of the small refunds, and facts that speak against some of them."""
    now = datetime.now(UTC)
    facts = [
        _order("ord_demo_1", "acct_nia", now, days_ago=2),
        _order("ord_demo_2", "acct_oli", now, days_ago=2),
        {"kind": "complaint", "channel": "private", "order_ref": "ord_demo_2"},
        _order("ord_demo_3", "acct_pat", now, days_ago=9),
        _order("ord_demo_4", "acct_quy", now, days_ago=1),
        {"kind": "delay", "channel": "private", "order_ref": "ord_demo_4"},
    ]
    return b"".join(json.dumps(fact).encode() + b"\n" for fact in facts)


def small_refund_rows() -> bytes:
    """Return JSON lines for `worker enqueue`: one that waits for its customer, the others for a person, each for a
    different reason: a complaint, too late, a directory that is not connected, a switch that is off, no route."""
    rows = [
        _small("fee_001", "fee", "4.90", "ord_demo_1", "acct_nia", contact="acct_nia@shop.example"),
        _small("fee_002", "fee", "4.90", "ord_demo_2", "acct_oli"),
        _small("fee_003", "fee", "4.90", "ord_demo_3", "acct_pat"),
        _small("fee_004", "fee", "4.90", "ord_market_1", "acct_ray", channel="public"),
        _small("compensation_001", "compensation", "5.00", "ord_demo_4", "acct_quy"),
        _small("quality_001", "quality", "5.00", "ord_demo_1", "acct_nia"),
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _order(order_ref: str, account: str, now: datetime, *, days_ago: int) -> dict[str, Any]:
    delivered = now - timedelta(days=days_ago)
    return {
        "kind": "order", "channel": "private", "order_ref": order_ref, "account_ref": account,
        "ordered_at": (delivered - timedelta(days=2)).isoformat(), "delivered_at": delivered.isoformat(), "paid": "89.00",
        "currency": "USD", "shipping_fee": "4.90",
    }  # fmt: skip


def _small(
    name: str, scenario: str, value: str, order_ref: str, account: str, *, channel: str = "private", contact: str | None = None
) -> dict[str, Any]:  # fmt: skip
    row = ledger_row(name, value, "USD", account=account)
    del row["days_ago"], row["risk"]
    extra = {"channel": channel, "scenario": scenario, "order_ref": order_ref, "contact": contact, "language": "en"}
    return row | {key: found for key, found in extra.items() if found is not None}

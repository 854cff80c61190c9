"""Reconciliation: compares executions with what should have been paid; a wrong one switches its scenario off.

One statement over the executions since the last round, against ledger, orders, cards, route table and the policy's caps; not
against anything that the workflow recorded of itself. A discrepancy is recorded once its switch is off: reported once, and
never lost before.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson
import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from sentinel.client import Client, Rejected, Unreachable
from sentinel.core.errors import EngineUnavailable, InvalidInput, StillDeciding
from sentinel.core.money import parse_money
from sentinel.policy.errors import PolicyError
from sentinel.policy.source import Scalar, Table, read_source
from sentinel.store.database import Pool
from sentinel.store.queries import call_with_retry
from worker.refunds.ledger import LedgerUnavailable
from worker.refunds.reconcile_sql import FIND, FIND_BUDGETS, KEEP, MOVE_CURSOR, NOW
from worker.refunds.workflow.routes import Route, Routes

Value = TypeVar("Value")

_log = logging.getLogger("worker")

EVERY_SECONDS = 3.0
OVERLAP_SECONDS = 15
"""An execution becomes visible after its moment, at most a statement's timeout later: so far back it is looked at again."""
MASTER = "small_refund.enabled"
_FAMILY = "small_refund."
_CAP = "cap_"


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """One thing that is wrong with one execution, and the switch that goes off for it."""

    execution_id: uuid.UUID
    ledger_entry_id: str
    channel: str
    scenario: str
    switch: str
    finding: str

    def __str__(self) -> str:
        return f"{self.ledger_entry_id} ({self.channel}/{self.scenario}): {self.finding.replace('_', ' ')}"


@dataclass(frozen=True, slots=True)
class BudgetDiscrepancy:
    """An order whose budget a person must look at; amounts in minor units of `currency`, `paid_minor` None where unknown."""

    channel: str
    source: str
    order_ref: str
    currency: str
    paid_minor: int | None
    reserved_minor: int
    executed_minor: int
    handled_minor: int
    in_doubt_minor: int
    beyond_minor: int
    finding: str

    def __str__(self) -> str:
        order = " ".join(filter(None, (self.channel, self.source, self.order_ref)))
        paid = "unknown" if self.paid_minor is None else str(self.paid_minor)
        return (
            f"order {order}: {self.finding.replace('_', ' ')}: paid {paid}, reserved {self.reserved_minor}, executed "
            f"{self.executed_minor}, handled {self.handled_minor}, in doubt {self.in_doubt_minor}, beyond "
            f"{self.beyond_minor}, in minor units of {self.currency}"
        )


class Reconciler:
    """For one tenant's ledger. Thread-safe; every call raises `LedgerUnavailable`."""

    def __init__(self, pool: Pool, tenant_id: uuid.UUID, client: Client, routes: Routes, policies: Path) -> None:
        self._pool, self._tenant_id, self._client = pool, tenant_id, client
        self._routes, self._policies = routes, policies

    def look(self) -> list[Discrepancy]:
        """New discrepancies since the last round; their switches are off afterwards. A switch that stays on is tried again."""
        moment = self._run(lambda connection: connection.execute(NOW).fetchone())
        found = self.find(since_last=True)
        closed = [finding for finding in found if self._close(finding)]
        if closed:
            self._keep(closed)
        if len(closed) == len(found) and moment is not None:
            fields = {"tenant_id": self._tenant_id, "looked_to": moment[0]}
            self._run(lambda connection: connection.execute(MOVE_CURSOR.encode(), fields).rowcount)
        return found

    def find(self, *, since_last: bool) -> list[Discrepancy]:
        """Wrong executions: those not said yet since the last look, or all there are. Changes nothing."""
        fields = {
            "tenant_id": self._tenant_id, "routes": Jsonb(self._expected(), dumps=orjson.dumps), "master": MASTER,
            "overlap": OVERLAP_SECONDS, "since_last": since_last,
        }  # fmt: skip

        def call(connection: psycopg.Connection[Any]) -> list[Discrepancy]:
            with connection.cursor(row_factory=class_row(Discrepancy)) as cursor:
                return cursor.execute(FIND.encode(), fields).fetchall()

        return self._run(call)

    def budgets(self) -> list[BudgetDiscrepancy]:
        """Orders that were paid back beyond what was paid, or whose budget differs from its entries. Changes nothing."""
        fields = {"tenant_id": self._tenant_id}

        def call(connection: psycopg.Connection[Any]) -> list[BudgetDiscrepancy]:
            with connection.cursor(row_factory=class_row(BudgetDiscrepancy)) as cursor:
                return cursor.execute(FIND_BUDGETS.encode(), fields).fetchall()

        return self._run(call)

    def _close(self, finding: Discrepancy) -> bool:
        """Switch the scenario off; False when the authority could not be reached."""
        try:
            self._client.switch_off(finding.switch, f"wrong execution: {finding}"[:500])
        except (Unreachable, Rejected) as error:
            _log.error("wrong execution %s, and %s could not be turned off: %s", finding, finding.switch, error.detail)
            return False
        _log.error("wrong execution %s; %s is off", finding, finding.switch)
        return True

    def _keep(self, findings: Sequence[Discrepancy]) -> None:
        rows = [
            {"execution_id": str(one.execution_id), "finding": one.finding, "ledger_entry_id": one.ledger_entry_id,
             "channel": one.channel, "scenario": one.scenario, "switch": one.switch}
            for one in findings
        ]  # fmt: skip
        fields = {"tenant_id": self._tenant_id, "findings": Jsonb(rows)}
        self._run(lambda connection: connection.execute(KEEP.encode(), fields).rowcount)

    def _expected(self) -> list[dict[str, Any]]:
        caps = caps_of(self._policies)
        return [_expectation(route, caps) for route in self._routes.all]

    def _run(self, call: Callable[[psycopg.Connection[Any]], Value]) -> Value:
        """Repeating is harmless: a finding is kept once, and a cursor only moves on."""
        try:
            return call_with_retry(self._pool, call)
        except (EngineUnavailable, StillDeciding) as error:
            raise LedgerUnavailable(error.detail) from error


def _expectation(route: Route, caps: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    is_small = route.switch.startswith(_FAMILY)
    return {
        "channel": route.channel, "scenario": route.scenario, "mode": route.mode, "switch": route.switch,
        "system": route.settles_to if route.to_person is None else None, "card": route.confirm_card, "small": is_small,
        "caps": dict(caps.get(route.scenario, {})) if is_small else {},
    }  # fmt: skip


def caps_of(policies: Path) -> dict[str, dict[str, int]]:
    """Scenario → currency → the most that one refund may be, from every policy file's numbers `cap_<scenario>`.

    Read here and not asked for: an authority that decides by a wrong cap must not be the one to say what is right. Where
    a file cannot be read its scenarios have no cap, and every execution of theirs without an approval is a finding.
    """
    found: dict[str, dict[str, int]] = {}
    for path in sorted(policies.glob("*.yaml")):
        try:
            source, root = read_source(path)
            numbers = root.entries.get("numbers") if isinstance(root, Table) else None
            tables = numbers.entries.items() if isinstance(numbers, Table) else ()
            for name, node in tables:
                if name.startswith(_CAP):
                    amounts = source.table(node, name).entries
                    found[name.removeprefix(_CAP)] = {
                        currency: _minor(value, currency) for currency, value in amounts.items()
                    }
        except (PolicyError, InvalidInput) as error:
            _log.error("the caps of %s cannot be read: %s", path.name, error)
    return found


def _minor(node: object, currency: str) -> int:
    return parse_money(node.text if isinstance(node, Scalar) else None, currency).amount_minor

"""Reconciliation: compares executions with what should have been paid; a wrong one switches its scenario off.

One statement over the executions since the last round, against ledger, orders, cards, route table and the policy's
caps; not against anything that the workflow recorded of itself. A discrepancy is recorded only after its switch is off,
so that it is reported once, and found again if the switch could not be turned off.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from sentinel.store.queries import call_at_length, call_with_retry
from sentinel.store.sql_template import SqlTemplate
from worker.refunds.ledger import LedgerUnavailable
from worker.refunds.sql import name_without_source
from worker.refunds.workflow.routes import Route, Routes

# Wrong executions, found from the tables alone.

# Now, and whether the last round that was completed is long over.
NOW = b"""
select clock_timestamp(), coalesce((
  select c.looked_to < clock_timestamp() - interval '10 minutes' from refunds.reconcile_cursors c where c.tenant_id = %(tenant_id)s), true)
"""

# When a refund was last checked before its permit: the last claim before the first `allowed` after which nothing was
# put back. A blacklisting or complaint counts against the refund only if it is older than that.
_ASKED_AT = """(
  select coalesce(max(v.occurred_at), s.executed_at) from refunds.ledger_events v
  where v.tenant_id = s.tenant_id and v.ledger_entry_id = s.ledger_entry_id and v.event in ('claimed', 'reclaimed')
    and v.event_id < (
      select min(w.event_id) from refunds.ledger_events w
      where w.tenant_id = s.tenant_id and w.ledger_entry_id = s.ledger_entry_id and w.event = 'allowed' and w.event_id > (
        select coalesce(max(u.event_id), 0) from refunds.ledger_events u
        where u.tenant_id = s.tenant_id and u.ledger_entry_id = s.ledger_entry_id and u.event in ('put_back', 'start_refused'))))"""

# Whether the refund was taken over from an earlier claim that had begun it or, without an order to record its permission
# for, may have begun it, and its customer was never asked. Such a refund is finished without asking if its route asks
# customers by now: it may have been paid already.
_BEGUN_UNASKED = """(
  not exists (
    select from refunds.confirmations c where c.tenant_id = s.tenant_id and c.ledger_entry_id = s.ledger_entry_id)
  and exists (
    select from refunds.ledger_events v where v.tenant_id = s.tenant_id and v.ledger_entry_id = s.ledger_entry_id
      and v.event = 'reclaimed' and v.claim_epoch = s.claim_epoch)
  and (s.order_ref is null or exists (
    select from refunds.ledger_events v where v.tenant_id = s.tenant_id and v.ledger_entry_id = s.ledger_entry_id
      and v.event = 'allowed' and v.claim_epoch < s.claim_epoch)))"""

# Orders whose budget is exceeded by what could not be refused (`beyond_minor`), or differs from the sums of its
# entries, or of which something was refunded in a currency that they were not paid in: then no sum says how much is
# left.
FIND_BUDGETS = """
select b.channel, b.source, b.order_ref, b.currency, b.paid_minor, b.reserved_minor, b.executed_minor, b.handled_minor,
  b.in_doubt_minor, b.beyond_minor, b.uncounted_entries,
  case when b.beyond_minor > 0 then 'beyond_paid' when s.differs then 'sums_differ' else 'other_currency' end as finding
from refunds.order_budgets b
left join (
  select e.channel, e.source, e.order_ref, sum(e.amount_minor) filter (where e.currency = c.currency and e.budget_part = 'reserved') as reserved,
    sum(e.amount_minor) filter (where e.currency = c.currency and e.budget_part = 'executed') as executed,
    sum(e.amount_minor) filter (where e.currency = c.currency and e.budget_part = 'handled') as handled,
    sum(e.amount_minor) filter (where e.currency = c.currency and e.budget_part = 'in_doubt') as in_doubt,
    count(*) filter (where e.currency <> c.currency) as uncounted
  from refunds.ledger_entries e
  join refunds.order_budgets c on (c.tenant_id, c.channel, c.source, c.order_ref) = (e.tenant_id, e.channel, e.source, e.order_ref)
  where e.tenant_id = %(tenant_id)s and e.budget_part <> 'returned'
  group by 1, 2, 3) t using (channel, source, order_ref)
cross join lateral (select (b.reserved_minor, b.executed_minor, b.handled_minor, b.in_doubt_minor, b.uncounted_entries)
  <> (coalesce(t.reserved, 0), coalesce(t.executed, 0), coalesce(t.handled, 0), coalesce(t.in_doubt, 0), coalesce(t.uncounted, 0)) as differs) s
where b.tenant_id = %(tenant_id)s and (b.beyond_minor > 0 or b.uncounted_entries > 0 or s.differs)
order by b.channel, b.source, b.order_ref limit 200
"""
MOST_BUDGETS = 200
"""As many orders as `FIND_BUDGETS` returns: there may be more."""

# routes: [{channel, scenario, mode, switch, system, card, small, caps}]. A person's approval excuses what a person may
# decide; it excuses no other amount, no other system, no missing card and no second payment of one refund. The first
# round goes one day back. One that finds the cursor ahead of the clock goes ten minutes back: the clock was set back
# since the last round, and executions of now are before the cursor.
# Reads as much as is new, not the ledger: the planner does not know how few executions are later than the cursor. An
# upper bound makes it expect few, and `offset 0` has entries and orders looked up one by one.
FIND = SqlTemplate("""
with looked as (
  select coalesce((select least(c.looked_to, case when c.looked_to > clock_timestamp() then clock_timestamp() - interval '10 minutes' end)
    from refunds.reconcile_cursors c where c.tenant_id = %(tenant_id)s), clock_timestamp() - interval '1 day') as at
), expected as (
  select r.* from jsonb_to_recordset(%(routes)s) as r
    (channel text, scenario text, mode text, switch text, system text, card boolean, small boolean, caps jsonb)
), recent as materialized (
  select x.tenant_id, x.execution_id, x.ledger_entry_id, x.refund_id, x.amount_minor, x.currency, x.system, x.executed_at,
    e.channel, e.scenario, e.mode, e.source, e.order_ref, e.amount_minor as asked_minor, e.currency as asked_currency,
    e.account_ref as row_account, e.refund_id as asked_refund, e.approval_id is not null as approved, x.claim_epoch
  from refunds.executions x
  cross join lateral (
    select l.* from refunds.ledger_entries l where l.tenant_id = x.tenant_id and l.ledger_entry_id = x.ledger_entry_id offset 0) e
  where x.tenant_id = %(tenant_id)s
    and x.executed_at > case when %(since_last)s then (select at from looked) - make_interval(secs => %(overlap)s) else '-infinity' end
    and x.executed_at <= 'infinity' and (not %(since_last)s
      or x.executed_at > (select at from looked) - interval '1 second'
      or x.executed_at <= statement_timestamp() - make_interval(secs => %(overlap)s))
), seen as (
  select x.*, r.switch, r.system as right_system, coalesce(r.card, false) as card, r.channel is not null as routed,
    coalesce(r.small, false) as small, (r.caps ->> x.currency)::bigint as cap_minor, o.order_ref is not null as has_order,
    o.paid_minor, o.currency as order_currency, o.account_ref as order_account
  from recent x
  left join expected r on r.channel = x.channel and r.scenario = x.scenario and r.mode is not distinct from x.mode
  left join lateral (
    select k.order_ref, k.paid_minor, k.currency, k.account_ref from refunds.orders k
    where k.tenant_id = x.tenant_id and k.channel = x.channel and k.source = x.source and k.order_ref = x.order_ref offset 0) o on true
)
select s.execution_id, s.ledger_entry_id, s.channel, s.scenario, coalesce(s.switch, %(master)s) as switch, f.finding
from seen s
cross join lateral (values
  ('amount_differs', (s.amount_minor, s.currency, s.refund_id) is distinct from (s.asked_minor, s.asked_currency, s.asked_refund)),
  ('no_route', not s.routed or s.right_system is null),
  ('other_system', s.right_system <> s.system),
  ('other_currency', s.order_currency <> s.currency and not s.approved),
  ('order_unknown', s.small and not s.has_order and not s.approved),
  ('over_a_tenth', s.small and s.amount_minor * 10 > s.paid_minor and not s.approved),
  ('over_cap', s.small and not s.approved and s.amount_minor > coalesce(s.cap_minor, 0)),
  ('not_confirmed', s.card and not exists (
    select from refunds.confirmations c where c.tenant_id = s.tenant_id and c.ledger_entry_id = s.ledger_entry_id
      and c.status = 'confirmed' and c.answered_at <= s.executed_at
      and (c.amount_minor, c.currency) = (s.amount_minor, s.currency)) and not {begun_unasked}),
  ('refund_twice', exists (
    select from refunds.executions y where y.tenant_id = s.tenant_id and y.refund_id = s.refund_id
      and y.execution_id <> s.execution_id)),
  ('order_over_refunded', s.order_currency = s.currency and s.paid_minor < (
    select sum(z.amount_minor) from refunds.ledger_entries y join refunds.executions z using (tenant_id, ledger_entry_id)
    where y.tenant_id = s.tenant_id and y.channel = s.channel and y.source = s.source and y.order_ref = s.order_ref
      and y.budget_part is distinct from 'returned' and z.currency = s.currency and z.executed_at <= s.executed_at)),
  ('order_twice', s.small and not s.approved and exists (
    select from refunds.ledger_entries y join refunds.executions z using (tenant_id, ledger_entry_id)
    where y.tenant_id = s.tenant_id and y.channel = s.channel and y.source = s.source and y.order_ref = s.order_ref
      and y.ledger_entry_id <> s.ledger_entry_id and z.executed_at <= s.executed_at)),
  ('blacklisted', not s.approved and exists (
    select from refunds.blacklist b where b.tenant_id = s.tenant_id and b.channel = s.channel
      and b.account_ref in (s.row_account, s.order_account, {without_source}) and b.since < {asked_at})),
  ('open_complaint', not s.approved and exists (
    select from refunds.order_flags g where g.tenant_id = s.tenant_id and g.channel = s.channel and g.source = s.source and g.order_ref = s.order_ref
      and g.flag = 'open_complaint' and g.since < {asked_at} and (g.closed_at is null or g.closed_at > s.executed_at)))
) as f (finding, holds)
where f.holds and (not %(since_last)s or not exists (
  select from refunds.wrong_executions w where w.tenant_id = s.tenant_id and w.execution_id = s.execution_id
    and w.finding = f.finding))
order by s.executed_at, s.execution_id
""").fill(
    asked_at=_ASKED_AT,
    begun_unasked=_BEGUN_UNASKED,
    without_source=name_without_source("coalesce(s.row_account, s.order_account)", "s.source"),
)

KEEP = """
insert into refunds.wrong_executions (tenant_id, execution_id, finding, ledger_entry_id, channel, scenario, switch)
select %(tenant_id)s, f.execution_id, f.finding, f.ledger_entry_id, f.channel, f.scenario, f.switch
from jsonb_to_recordset(%(findings)s) as f
  (execution_id uuid, finding text, ledger_entry_id text, channel text, scenario text, switch text)
on conflict do nothing
"""
MOVE_CURSOR = """
insert into refunds.reconcile_cursors as c (tenant_id, looked_to) values (%(tenant_id)s, %(looked_to)s)
on conflict (tenant_id) do update set
  looked_to = case when c.looked_to > clock_timestamp() then excluded.looked_to else greatest(c.looked_to, excluded.looked_to) end
"""


# A round.

Value = TypeVar("Value")

_log = logging.getLogger("worker")

EVERY_SECONDS = 3.0
OVERLAP_SECONDS = 15
"""An execution becomes visible up to a statement timeout after its `executed_at`. So each is checked when it is new,
and once more when it is so old that all executions of the same moment must be visible."""
_NOT_DECLARED = "invalid-request"
"""The authority's problem code for a switch that it does not have; the rest of the request is well-formed."""
MASTER = "small_refund.enabled"
_FAMILY = "small_refund."
CAP = "cap_"


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
    uncounted_entries: int
    """The number of entries in another currency; no amount here includes them."""
    finding: str

    def __str__(self) -> str:
        order = " ".join(filter(None, (self.channel, self.source, self.order_ref)))
        paid = "unknown" if self.paid_minor is None else str(self.paid_minor)
        return (
            f"order {order}: {self.finding.replace('_', ' ')}: paid {paid}, reserved {self.reserved_minor}, executed "
            f"{self.executed_minor}, handled {self.handled_minor}, in doubt {self.in_doubt_minor}, beyond "
            f"{self.beyond_minor}, in minor units of {self.currency}; refunds in another currency: {self.uncounted_entries}"
        )


class Reconciler:
    """Reconciles one tenant's ledger. Thread-safe; every call raises `LedgerUnavailable`.

    `at_length`: each statement may take minutes, for a command.
    """

    def __init__(
        self, pool: Pool, tenant_id: uuid.UUID, client: Client, routes: Routes, policies: Path, *, at_length: bool = False
    ) -> None:  # fmt: skip
        self._pool, self._tenant_id, self._client = pool, tenant_id, client
        self._routes, self._policies = routes, policies
        self._caps: dict[str, dict[str, int]] = {}
        self._call = call_at_length if at_length else call_with_retry

    def look(self) -> list[Discrepancy]:
        """Return the new discrepancies since the last round and turn their switches off; one that stays on is retried next time.

        A round that has more than ten minutes to look at, as after such a switch, may take minutes: otherwise the time
        limit of a statement could end it, and every later one.
        """
        mine = {"tenant_id": self._tenant_id}
        moment, is_behind = self._run(lambda connection: connection.execute(NOW, mine).fetchone() or (None, False))
        found = self.find(since_last=True, at_length=is_behind)
        closed = [finding for finding in found if self._close(finding)]
        if closed:
            self._keep(closed)
        if len(closed) == len(found) and moment is not None:
            fields = {**mine, "looked_to": moment}
            self._run(lambda connection: connection.execute(MOVE_CURSOR.encode(), fields).rowcount)
        return found

    def find(self, *, since_last: bool, at_length: bool = False) -> list[Discrepancy]:
        """Return wrong executions: with `since_last` those that are new since the last round, else all. Changes nothing.

        With `at_length` it may take minutes.
        """
        fields = {
            "tenant_id": self._tenant_id, "routes": Jsonb(self._expected(), dumps=orjson.dumps), "master": MASTER,
            "overlap": OVERLAP_SECONDS, "since_last": since_last,
        }  # fmt: skip

        def call(connection: psycopg.Connection[Any]) -> list[Discrepancy]:
            with connection.cursor(row_factory=class_row(Discrepancy)) as cursor:
                return cursor.execute(FIND.encode(), fields).fetchall()

        return self._run(call, at_length=at_length)

    def budgets(self) -> list[BudgetDiscrepancy]:
        """Orders that were paid back beyond what was paid, or whose budget differs from its entries, at most `MOST_BUDGETS`.
        Changes nothing."""
        fields = {"tenant_id": self._tenant_id}

        def call(connection: psycopg.Connection[Any]) -> list[BudgetDiscrepancy]:
            with connection.cursor(row_factory=class_row(BudgetDiscrepancy)) as cursor:
                return cursor.execute(FIND_BUDGETS.encode(), fields).fetchall()

        return self._run(call)

    def _close(self, finding: Discrepancy) -> bool:
        """Switch the scenario off; False when the authority did not answer or refused. A switch that is not declared is off."""
        try:
            self._client.switch_off(finding.switch, f"wrong execution: {finding}"[:500])
        except (Unreachable, Rejected) as error:
            if isinstance(error, Rejected) and error.code == _NOT_DECLARED:
                _log.error("wrong execution %s; %s is not declared, and so is off", finding, finding.switch)
                return True
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
        # The highest cap that this process has read: if a cap was lowered, or its file cannot be read while it is
        # edited, an execution from before the authority loaded the change is not wrong.
        for scenario, read in caps_of(self._policies).items():
            caps = self._caps.setdefault(scenario, {})
            for currency, cap in read.items():
                caps[currency] = max(cap, caps.get(currency, 0))
        return [_expectation(route, self._caps) for route in self._routes.all]

    def _run(self, call: Callable[[psycopg.Connection[Any]], Value], *, at_length: bool = False) -> Value:
        """Run `call` with retries. Repeating is harmless: a finding is kept once, and a cursor goes back with the clock alone."""
        try:
            return (call_at_length if at_length else self._call)(self._pool, call)
        except (EngineUnavailable, StillDeciding) as error:
            raise LedgerUnavailable(error.detail) from error


def _expectation(route: Route, caps: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    is_small = is_small_refund(route)
    return {
        "channel": route.channel, "scenario": route.scenario, "mode": route.mode, "switch": route.switch,
        "system": route.settles_to if route.to_person is None else None, "card": route.confirm_card, "small": is_small,
        "caps": dict(caps.get(route.scenario, {})) if is_small else {},
    }  # fmt: skip


def is_small_refund(route: Route) -> bool:
    """Whether the route's refunds have a cap, `cap_<scenario>`."""
    return route.switch.startswith(_FAMILY)


def caps_of(policies: Path) -> dict[str, dict[str, int]]:
    """Scenario → currency → the most that one refund may be, from every policy file's numbers `cap_<scenario>`.

    The caps are read from the files and not from the authority: one that decides by a wrong cap must not say what is
    right. If a file cannot be read its scenarios have no cap; unless one was read before, each of their executions
    without an approval is a finding.
    """
    found: dict[str, dict[str, int]] = {}
    for path in sorted(policies.glob("*.yaml")):
        try:
            found.update(caps_in(path))
        except (PolicyError, InvalidInput) as error:
            _log.error("the caps of %s cannot be read: %s", path.name, error)
    return found


def caps_in(path: Path) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the scenarios that one policy file has a cap for, with the cap by currency. Raises `PolicyError` or `InvalidInput`."""
    source, root = read_source(path, regular=True)
    numbers = root.entries.get("numbers") if isinstance(root, Table) else None
    tables = numbers.entries.items() if isinstance(numbers, Table) else ()
    for name, node in tables:
        if name.startswith(CAP):
            amounts = source.table(node, name).entries
            yield name.removeprefix(CAP), {currency: _minor(value, currency) for currency, value in amounts.items()}


def _minor(node: object, currency: str) -> int:
    return parse_money(node.text if isinstance(node, Scalar) else None, currency).amount_minor

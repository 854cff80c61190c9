"""The risk facts of a row, declared once: what each means, how it is derived, and of which type it is.

What was handed in with the row can tighten a fact, never loosen it. An unknown fact is left out; the policy then cannot
answer and does not allow (`fact_missing`). Zero or false is never assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from sentinel.store.sql_template import SqlTemplate
from worker.critic.readings import SAME_TEXT_ACCOUNTS, is_suspicious
from worker.refunds.rows import KnownFacts

MAX_COUNT = 1_000_000
"""The largest count that a row may hand in."""


@dataclass(frozen=True, slots=True)
class RiskFact:
    """One fact under `params.risk`: a flag (`kind` is bool) or a count (int). `says` is its line in docs/risk-facts.md.

    `sql` is the SQL of the fact, for entry `e` with its order `o` and account `f.account_ref` (`sql.GATHER_FACTS`);
    null where the ledger cannot know. `f.has_many_orders`: the account has more than `MANY_ORDERS` orders. `derive` is
    for facts that no query can give: it gets the known facts, and whether the order may be refunded in parts.
    """

    name: str
    kind: type[bool] | type[int]
    says: str
    sql: str | None = None
    derive: Callable[[KnownFacts, bool], bool | int | None] | None = None


def _duplicate(known: KnownFacts, in_parts: bool) -> bool | None:
    """Whether the refund id was seen before; None if the channel refunds in parts and the row names no order.

    What is left of a named order is checked by a step of the workflow. So is a second refund of an order that is
    refunded at most once (`refunded_before`).
    """
    if known.refund_seen:
        return True
    return None if in_parts and known.order_budget is None else False


def _suspicious(known: KnownFacts, _in_parts: bool) -> bool:
    return known.same_text_accounts >= SAME_TEXT_ACCOUNTS or is_suspicious(known.reason or "")


MANY_ORDERS = 1000
"""For an account with more orders, rows that name only an order are searched among all such rows of the period instead."""

# An account belongs to its channel: the same name in another one is somebody else's. Counts are capped, so that one
# busy account cannot make every row expensive; the policy's thresholds are far below. The cap bounds the matches and
# not the rows scanned: so rows that name only an order are found through the account's orders if these are few, and
# else among such rows of the period, each of whose orders is then looked up (in a scalar subquery: the planner could
# reverse a join).
_OF_ACCOUNT = SqlTemplate("""(select 1 from refunds.ledger_entries a
       where a.tenant_id = e.tenant_id and a.channel = e.channel and a.account_ref = f.account_ref {fits} limit 100)
      union all
      (select 1 from refunds.orders ao join refunds.ledger_entries a
         on a.tenant_id = ao.tenant_id and a.channel = ao.channel and a.source = ao.source and a.order_ref = ao.order_ref
           and a.account_ref is null
       where not f.has_many_orders
         and ao.tenant_id = e.tenant_id and ao.channel = e.channel and ao.account_ref = f.account_ref {fits} limit 100)
      union all
      (select 1 from refunds.ledger_entries a
       where f.has_many_orders
         and a.tenant_id = e.tenant_id and a.channel = e.channel and a.account_ref is null and a.order_ref is not null {fits}
         and f.account_ref = (select ao.account_ref from refunds.orders ao
           where ao.tenant_id = a.tenant_id and ao.channel = a.channel and ao.source = a.source and ao.order_ref = a.order_ref)
       limit 100)""")
_IN_A_DAY = "and a.requested_at > e.requested_at - interval '24 hours' and a.requested_at <= e.requested_at"
_PAID_IN_A_MONTH = """and a.status = 'EXECUTED'
         and a.requested_at > e.requested_at - interval '30 days' and a.requested_at <= e.requested_at"""

# A person who files a refund of an order without an account knows of no account: then the order's own requests are
# counted.
_ATTEMPTS = SqlTemplate("""case when f.account_ref is not null then (
    select count(*)::integer from (
      {tries}
    ) as tries)
  when e.escalation is not null and e.order_ref is not null then (
    select count(*)::integer from (
      select 1 from refunds.ledger_entries a
      where a.tenant_id = e.tenant_id and a.channel = e.channel and a.source = e.source and a.order_ref = e.order_ref
        {in_a_day} limit 100) as tries)
  end""").fill(tries=_OF_ACCOUNT.fill(fits=_IN_A_DAY), in_a_day=_IN_A_DAY)

_REFUNDS = SqlTemplate("""case when f.account_ref is not null then (
    select count(*)::integer from (
      {refunds}
    ) as paid)
  end""").fill(refunds=_OF_ACCOUNT.fill(fits=_PAID_IN_A_MONTH))

RISK_FACTS: tuple[RiskFact, ...] = (
    RiskFact("duplicate_refund", bool, "the same refund was made before, or is in progress; unknown if the row names no order "
             "of a channel that refunds in parts", derive=_duplicate),
    RiskFact("stale_window", bool, "requested more than 30 days after the order; unknown without the order",
             sql="o.ordered_at + interval '30 days' < e.requested_at"),
    RiskFact("suspicious_reason", bool, "the customer's text looks like a prompt injection, or several accounts use the same text",
             derive=_suspicious),
    RiskFact("customer_attempts_24h", int, "number of refunds that the account requested in its channel in the 24 hours up to "
             "this one, included; without an account, those of the order if a person filed this one, else unknown",
             sql=_ATTEMPTS),
    RiskFact("account_refunds_30d", int, "number of refunds that the account received in its channel in the 30 days up to this one; "
             "unknown without an account", sql=_REFUNDS),
)  # fmt: skip

LEDGER_SAYS = ", ".join(f"'{fact.name}', {fact.sql}" for fact in RISK_FACTS if fact.sql is not None)
"""The arguments of `jsonb_build_object` that make `KnownFacts.derived`."""


def risk_facts(known: KnownFacts, *, in_parts: bool = True) -> dict[str, bool | int]:
    """Name → value of every fact of `RISK_FACTS` that is known.

    `in_parts`: whether the order may be refunded in parts, up to what was paid.
    """
    given, ledger = _object(known.risk), _object(known.derived)
    found = {}
    for fact in RISK_FACTS:
        derived = fact.derive(known, in_parts) if fact.derive is not None else ledger.get(fact.name)
        tighten: Callable[[Any, Any], bool | int | None] = _flag if fact.kind is bool else _count
        tightened = tighten(derived, given.get(fact.name))
        if tightened is not None:
            found[fact.name] = tightened
    return found


def _flag(derived: int | None, given: Any) -> bool | None:
    """Return True if the ledger or the row says so, False if the ledger does, or the row where the ledger cannot know; else None."""
    if derived is True or given is True:
        return True
    if given is not None and given is not False:
        return None  # something else than true or false was handed in: nobody knows what it meant
    return False if derived is False or given is False else None


def _count(derived: int | None, given: Any) -> int | None:
    """The larger of what was handed in and what the ledger counts; None if something else than a count was handed in."""
    if given is None:
        return derived
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        return None
    return max(given, derived or 0)


def _object(text: str) -> Mapping[str, Any]:
    found = orjson.loads(text)
    return found if isinstance(found, dict) else {}

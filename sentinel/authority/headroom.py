"""What is left of the limits that an action would count in. Reserves nothing: another guard may use it up at any time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from sentinel.authority.engine import Authority, Caller
from sentinel.authority.guard import provisional
from sentinel.authority.guard_rows import limit_fields
from sentinel.core.money import Money, money_out
from sentinel.core.operation import Operation
from sentinel.store.database import Pool
from sentinel.store.queries import all_rows

FIND_LEFT = """
select limit_key, cap_minor, greatest(cap_minor - used_minor, 0) as left_minor, fits, reason_code
from unnest(sentinel.limit_states(%(tenant_id)s, %(limits)s::jsonb, %(amount_minor)s, clock_timestamp())) order by limit_key
"""
"""Reads, for each limit that applies, what is neither held nor captured in its current window."""


@dataclass(frozen=True, slots=True)
class LimitLeft:
    """One limit of a policy for the subject whose budget the action counts in. Amounts are in minor units."""

    limit_key: str
    cap_minor: int
    left_minor: int
    fits: bool
    reason_code: str

    def shown(self, currency: str) -> dict[str, Any]:
        """Return the limit without its subject, with amounts in wire form."""
        return {
            "limit": self.limit_key.partition("|")[0], "reason_code": self.reason_code, "fits": self.fits,
            "cap": money_out(Money(self.cap_minor, currency)), "left": money_out(Money(self.left_minor, currency)),
        }  # fmt: skip


def find_headroom(authority: Authority, caller: Caller, operation: Operation) -> list[dict[str, Any]]:
    """Return what is left of each limit that the operation would count in, in wire form; empty if the policy alone denies it."""
    decision, _ = provisional(authority, caller, operation)
    amount = operation.params.get("amount")
    if not decision.limits or not amount:
        return []
    found = _find_left(authority.pool, caller, [limit_fields(ask) for ask in decision.limits], amount["amount_minor"])
    return [one.shown(amount["currency"]) for one in found]


def _find_left(pool: Pool, caller: Caller, limits: list[Any], amount_minor: int) -> list[LimitLeft]:
    values = {"tenant_id": caller.tenant_id, "limits": orjson.dumps(limits).decode(), "amount_minor": amount_minor}
    return all_rows(pool, LimitLeft, FIND_LEFT, values)

"""Switches as operators flipped them, and what an agent may see: these and the halts in force. Refusals are typed words."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sentinel.authority.halts import EVERYBODY
from sentinel.store.database import Pool
from sentinel.store.rows import all_rows, single


@dataclass(frozen=True, slots=True)
class SwitchRow:
    """The last flip of a switch. A switch that nobody flipped has none. `canary_percent` is 0 when off."""

    name: str
    is_on: bool
    canary_percent: int
    changed_at: datetime
    changed_by: str
    reason: str


@dataclass(frozen=True, slots=True)
class InForce:
    """A flipped switch (`kind` "switch": name, is_on, canary_percent) or a halt ("halt": name is its scope)."""

    kind: str
    name: str
    is_on: bool
    canary_percent: int
    target: str
    level: str
    simulated: Sequence[str]
    """Outside systems that the newest passed report saw as simulations only."""


LIST_SWITCHES = """
select name, is_on, canary_percent, changed_at, changed_by, reason from sentinel.switches
where tenant_id = %(tenant_id)s order by name
"""
IN_FORCE = """
select 'switch' as kind, name, is_on, canary_percent, '' as target, '' as level,
  coalesce(array(select jsonb_array_elements_text(proof.simulated)), '{}') as simulated
from sentinel.switches s
left join lateral (
  select g.report -> 'simulated' as simulated from sentinel.gate_reports g
  where g.tenant_id = s.tenant_id and g.switch = s.name and g.passed
  order by g.created_at desc, g.report_id desc limit 1) as proof on true
where s.tenant_id = %(tenant_id)s
union all
select 'halt', scope, true, 0, target, level, '{}' from sentinel.halts
where lifted_at is null and tenant_id = any(%(owners)s)
"""
TURN_ON = """
select sentinel.flip_switch(%(tenant_id)s, %(name)s, %(gate)s, %(policy)s, %(percent)s, %(first_percent)s, %(who)s, %(reason)s, %(event_id)s)
"""
TURN_OFF = """
select sentinel.turn_switch_off(%(tenant_id)s, %(name)s, %(who)s, %(reason)s, %(event_id)s, %(went_wrong)s)
"""


def list_switches(pool: Pool, tenant_id: uuid.UUID) -> list[SwitchRow]:
    """The tenant's flipped switches by name."""
    return all_rows(pool, SwitchRow, LIST_SWITCHES, {"tenant_id": tenant_id})


def in_force(pool: Pool, tenant_id: uuid.UUID) -> list[InForce]:
    """The tenant's flipped switches, its halts and the global ones, in one query: what an agent looks at."""
    return all_rows(pool, InForce, IN_FORCE, {"tenant_id": tenant_id, "owners": [tenant_id, EVERYBODY]})


def turn_on(
    pool: Pool,
    *,
    tenant_id: uuid.UUID,
    name: str,
    gate: str | None,
    policy: str | None,
    canary_percent: int,
    first_percent: int,
    who: str,
    reason: str,
    event_id: uuid.UUID,
) -> str:
    """ "" when done, else why not: "unchanged", "canary_too_wide" (off until now, for more than `first_percent`), or a word of `gate_reports.REFUSALS` where a gate is named."""
    return str(single(pool, TURN_ON, {
        "tenant_id": tenant_id, "name": name, "gate": gate, "policy": policy, "percent": canary_percent,
        "first_percent": first_percent, "who": who,
        "reason": reason, "event_id": event_id,
    }))  # fmt: skip


def turn_off(
    pool: Pool,
    *,
    tenant_id: uuid.UUID,
    name: str,
    who: str,
    reason: str,
    event_id: uuid.UUID,
    went_wrong: bool = False,
) -> bool:
    """Turn off, whatever the file or a report says. False when it had been turned off before.

    Where something `went_wrong`, only a report from after it turns the switch on again.
    """
    return bool(single(pool, TURN_OFF, {
        "tenant_id": tenant_id, "name": name, "who": who, "reason": reason, "event_id": event_id, "went_wrong": went_wrong,
    }))  # fmt: skip

"""Halts: the kill switches in force, setting and lifting them, and what covers an agent.

A global halt belongs to no tenant (the nil uuid); every tenant sees it, only a local administrator sets or lifts it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from sentinel.store.database import Pool
from sentinel.store.rows import all_rows, one_row, single

EVERYBODY = uuid.UUID(int=0)
"""The owner of a global halt."""
SCOPES = ("global", "tenant", "agent", "action", "scenario")
LEVELS = ("pause", "kill")


@dataclass(frozen=True, slots=True)
class HaltRow:
    """A halt; `target` is empty for the global and tenant scopes."""

    halt_id: uuid.UUID
    scope: str
    target: str
    level: str
    reason: str
    set_by: str
    set_at: datetime
    lifted_by: str | None
    lifted_at: datetime | None


@dataclass(frozen=True, slots=True)
class HaltSet:
    """Which halt is in force now; `already` when it was before."""

    halt_id: uuid.UUID
    already: bool


LIST_HALTS = """
select halt_id, scope, target, level, reason, set_by, set_at, lifted_by, lifted_at from sentinel.halts
where tenant_id = any(%(owners)s) and (%(lifted_too)s or lifted_at is null) order by set_at desc, halt_id desc limit %(limit)s
"""
SET_HALT = """
select halt_id, already from sentinel.set_halt(%(owner)s, %(halt_id)s, %(scope)s, %(target)s, %(level)s, %(reason)s,
  %(set_by)s, %(event_id)s)
"""
LIFT_HALT = "select sentinel.lift_halt(%(owner)s, %(halt_id)s, %(lifted_by)s, %(reason)s, %(event_id)s)"
# The worst level over everything this agent does. A halt of one action or scenario does not stop the agent as a whole.
COVERING = """
select max(case level when 'kill' then 2 else 1 end) from sentinel.halts
where lifted_at is null and (scope = 'global' or tenant_id = %(tenant_id)s and (
      scope = 'tenant' or scope = 'agent' and target = %(agent_id)s))
"""


def list_halts(pool: Pool, tenant_id: uuid.UUID, *, lifted_too: bool = False, limit: int = 200) -> list[HaltRow]:
    """The tenant's halts and the global ones, newest first; only those in force unless `lifted_too`."""
    fields = {"owners": [tenant_id, EVERYBODY], "lifted_too": lifted_too, "limit": limit}
    return all_rows(pool, HaltRow, LIST_HALTS, fields)


def set_halt(
    pool: Pool,
    *,
    owner: uuid.UUID,
    halt_id: uuid.UUID,
    scope: str,
    target: str,
    level: str,
    reason: str,
    set_by: str,
    event_id: uuid.UUID,
) -> HaltSet:
    """Put a halt in force, or find the one that is; a "kill" replaces a "pause"."""
    found = one_row(pool, HaltSet, SET_HALT, {
        "owner": owner, "halt_id": halt_id, "scope": scope, "target": target, "level": level, "reason": reason,
        "set_by": set_by, "event_id": event_id,
    })  # fmt: skip
    assert found is not None
    return found


def lift_halt(
    pool: Pool, *, owner: uuid.UUID, halt_id: uuid.UUID, lifted_by: str, reason: str, event_id: uuid.UUID
) -> bool:
    """End a halt. False when it is not in force, or not this owner's."""
    return bool(single(pool, LIFT_HALT, {
        "owner": owner, "halt_id": halt_id, "lifted_by": lifted_by, "reason": reason, "event_id": event_id,
    }))  # fmt: skip


def covering(pool: Pool, tenant_id: uuid.UUID, agent_id: str) -> str:
    """ "OK", "PAUSE" or "KILL": the worst halt over everything the agent does, for its heartbeat."""
    worst = single(pool, COVERING, {"tenant_id": tenant_id, "agent_id": agent_id})
    return ("OK", "PAUSE", "KILL")[worst or 0]

"""Halts (kill switches): listing, setting and lifting them, and the heartbeat status of an agent.

A global halt belongs to no tenant and is stored under the nil UUID; every tenant sees it, and only a local
administrator sets or lifts it, in nobody's name: an operator's address is not shown to other tenants.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from sentinel.authority.actor import Actor
from sentinel.core.errors import EngineUnavailable, Forbidden, InvalidInput, NotFound, StillDeciding
from sentinel.core.operation import check_identifier
from sentinel.store.database import Pool
from sentinel.store.ids import first_id_at, new_id
from sentinel.store.queries import act_once, all_rows, one_row, scalar
from sentinel.store.sql_template import SqlTemplate

GLOBAL_HALT_OWNER = uuid.UUID(int=0)
"""The tenant id that global halts are stored under."""
SCOPES = ("global", "tenant", "agent", "action", "scenario", "agent_action")
LEVELS = ("pause", "kill")


@dataclass(frozen=True, slots=True)
class HaltRow:
    """A halt. `target` is empty for the scopes global and tenant, and "AGENT ACTION" for agent_action.

    `breaker_key` names the breaker that set it, if one did.
    """

    halt_id: uuid.UUID
    scope: str
    target: str
    level: str
    reason: str
    set_by: str
    set_at: datetime
    lifted_by: str | None
    lifted_at: datetime | None
    breaker_key: str | None


@dataclass(frozen=True, slots=True)
class HaltSet:
    """The halt that is in force now; `already` is True if it was in force before."""

    halt_id: uuid.UUID
    already: bool


@dataclass(frozen=True, slots=True)
class _Lifted:
    """`lifted` is False if the halt is not in force, or belongs to another owner."""

    lifted: bool


@dataclass(frozen=True, slots=True)
class LastEffect:
    """Effects in a halt's scope around the time when it was set: `after` counts those after it (expected: 0).

    An effect is a start, or a decision that allows. `seconds` is how long after the halt the last effect was: negative
    if before it, None if there was none. `is_final`: so long after the halt, by the database's clock, that none is added.
    """

    after: int
    seconds: float | None
    is_final: bool


@dataclass(frozen=True, slots=True)
class HaltTarget:
    """Something a halt can cover: `scope` is agent, action, agent_action or scenario."""

    scope: str
    target: str


EFFECTS_BEFORE_HALT, EFFECTS_AFTER_HALT = timedelta(seconds=30), timedelta(minutes=5)
"""How long before and after the time when a halt was set its effects are searched."""
_MAX_CLOCK_SKEW = timedelta(minutes=1)
# The times of halt and effect are comparable: both are the database's, taken while holding the halt lock, so that a
# later holder of the lock has a later time.
LAST_EFFECT = """
select (count(*) filter (where e.occurred_at > %(set_at)s))::integer as after,
       extract(epoch from max(e.occurred_at) - %(set_at)s)::double precision as seconds,
       clock_timestamp() > %(final_at)s as is_final
from sentinel.events e join sentinel.operations o using (tenant_id, operation_id)
where e.tenant_id = %(tenant_id)s and e.event_id between %(first_id)s and %(last_id)s
  and e.occurred_at between %(since)s and %(until)s
  and (e.kind = 'start' or e.kind = 'decision' and strpos(e.body, '"decision":"ALLOW"') > 0)
  and case %(scope)s when 'agent' then o.agent_id = %(target)s when 'scenario' then o.scenario = %(target)s
                     when 'agent_action' then o.agent_id || ' ' || o.action = %(target)s
                     when 'action' then o.action = %(target)s
                       or right(%(target)s, 2) = '.*' and starts_with(o.action, left(%(target)s, -1))
                     else true end
"""
# Suggestions from recent operations and bound keys, not a complete list. Recent operations are found by the tenant's
# latest events, whose primary key begins with the tenant; that of operations does not, and for a tenant with few
# operations the query would scan those of all tenants.
KNOWN_TARGETS = """
with latest as materialized (
  select kind, operation_id from sentinel.events where tenant_id = %(tenant_id)s order by event_id desc limit 4000
), recent as (
  select agent_id, action, scenario from sentinel.operations
  where tenant_id = %(tenant_id)s and operation_id = any (array(select operation_id from latest where kind = 'decision'))
)
select 'agent' as scope, agent_id as target from recent
union select 'agent', agent_id from sentinel.agent_keys where tenant_id = %(tenant_id)s and agent_id is not null
union select 'action', action from recent
union select 'agent_action', agent_id || ' ' || action from recent
union select 'scenario', scenario from recent where scenario is not null
order by 1, 2 limit 300
"""
# Earlier versions recorded a global halt in an operator's name too; other tenants do not see who that is.
_SET_BY, _LIFTED_BY = (
    rf"case when scope = 'global' then regexp_replace({who}, '^.* \((local administrator)\)$', '\1') else {who} end as {who}"
    for who in ("set_by", "lifted_by")
)
_COLUMNS = f"halt_id, scope, target, level, reason, {_SET_BY}, set_at, {_LIFTED_BY}, lifted_at, breaker_key"
# No limit on halts in force: there are at most as many as there are targets to halt.
LIST_HALTS = SqlTemplate("""
select {columns} from sentinel.halts where tenant_id = any(%(owners)s) and lifted_at is null
union all
(select {columns} from sentinel.halts where tenant_id = any(%(owners)s) and lifted_at is not null
 order by set_at desc, halt_id desc limit %(most_lifted)s)
order by set_at desc, halt_id desc
""").fill(columns=_COLUMNS)
SET_HALT = """
select halt_id, already from sentinel.set_halt(%(owner)s, %(halt_id)s, %(scope)s, %(target)s, %(level)s, %(reason)s,
  %(set_by)s, %(event_id)s)
"""
LIFT_HALT = "select sentinel.lift_halt(%(owner)s, %(halt_id)s, %(lifted_by)s, %(reason)s, %(event_id)s) as lifted"
IS_GLOBAL = """
select true from sentinel.halts where tenant_id = %(owner)s and halt_id = %(halt_id)s and lifted_at is null
"""
# The strictest level that covers everything this agent does. A halt of one action or scenario does not stop the whole
# agent.
COVERING = """
select max(case level when 'kill' then 2 else 1 end) from sentinel.halts
where lifted_at is null and (scope = 'global' or tenant_id = %(tenant_id)s and (
      scope = 'tenant' or scope = 'agent' and target = %(agent_id)s))
"""


MOST_LIFTED = 200
"""How many lifted halts are listed, newest first; the events `halt_lifted` record all of them."""


def list_halts(pool: Pool, tenant_id: uuid.UUID) -> list[HaltRow]:
    """Return the halts in force, the tenant's and the global ones, newest first."""
    return _list_halts(pool, tenant_id, most_lifted=0)


def list_lifted_too(pool: Pool, tenant_id: uuid.UUID) -> tuple[list[HaltRow], bool]:
    """Return the halts in force and the newest `MOST_LIFTED` lifted ones, newest first; and whether lifted ones are left out."""
    rows = _list_halts(pool, tenant_id, most_lifted=MOST_LIFTED + 1)
    lifted = [row for row in rows if row.lifted_at is not None]
    if len(lifted) <= MOST_LIFTED:
        return rows, False
    rows.remove(lifted[-1])
    return rows, True


def _list_halts(pool: Pool, tenant_id: uuid.UUID, *, most_lifted: int) -> list[HaltRow]:
    fields = {"owners": [tenant_id, GLOBAL_HALT_OWNER], "most_lifted": most_lifted}
    return all_rows(pool, HaltRow, LIST_HALTS, fields)


def heartbeat_status(pool: Pool, tenant_id: uuid.UUID, agent_id: str) -> str:
    """Return "OK", "PAUSE" or "KILL": the strictest halt that covers everything the agent does, for its heartbeat."""
    worst = scalar(pool, COVERING, {"tenant_id": tenant_id, "agent_id": agent_id})
    return ("OK", "PAUSE", "KILL")[worst or 0]


def last_effect(pool: Pool, tenant_id: uuid.UUID, halt: HaltRow) -> LastEffect:
    """Return the last effect in the halt's scope.

    Searches from `EFFECTS_BEFORE_HALT` before it was set to `EFFECTS_AFTER_HALT` after, or until it was lifted.
    """
    since, until = halt.set_at - EFFECTS_BEFORE_HALT, halt.set_at + EFFECTS_AFTER_HALT
    until = until if halt.lifted_at is None else min(until, halt.lifted_at)
    found = one_row(pool, LastEffect, LAST_EFFECT, {
        "tenant_id": tenant_id, "scope": halt.scope, "target": halt.target, "set_at": halt.set_at, "since": since,
        "until": until, "first_id": first_id_at(since - _MAX_CLOCK_SKEW), "last_id": first_id_at(until + _MAX_CLOCK_SKEW),
        "final_at": halt.set_at + 2 * EFFECTS_AFTER_HALT,
    })  # fmt: skip
    assert found is not None
    return found


def known_targets(pool: Pool, tenant_id: uuid.UUID) -> list[HaltTarget]:
    """Return agents, actions and scenarios of the latest operations, and the agents that keys are bound to.

    Returns an empty list while the database is unavailable.
    """
    try:
        return all_rows(pool, HaltTarget, KNOWN_TARGETS, {"tenant_id": tenant_id})
    except (EngineUnavailable, StillDeciding):
        return []  # they are only suggestions: the page for halting must work without them


_ACTION_PATTERN = re.compile(r"[A-Za-z0-9._:/@-]{1,126}\.\*")


def set_halt(pool: Pool, actor: Actor, *, scope: str, target: str = "", level: str = "kill", reason: str) -> HaltSet:
    """Put a halt in force and return it, or the one that already covers the target. Needs the role approver.

    `target` is an agent, an action (or a pattern like "refund.*"), a scenario or "AGENT ACTION", by `scope`; empty for
    global and tenant. A "kill" replaces a "pause". A global halt stops other tenants too, so only a local administrator
    may set one, without an operator's account. Raises `InvalidInput` or `Forbidden`.
    """
    actor.must_be("approver")
    _check_target(scope, target, level)
    if scope == "global" and not _acts_for_all(actor):
        raise Forbidden("a global halt is set on the machine itself, without --as: `sentinel halts set --scope global`")
    halt_id = new_id()
    found = one_row(pool, HaltSet, SET_HALT, {
        "owner": GLOBAL_HALT_OWNER if scope == "global" else actor.tenant_id, "halt_id": halt_id, "scope": scope,
        "target": target, "level": level, "reason": reason, "set_by": actor.name, "event_id": new_id(),
    })  # fmt: skip
    assert found is not None
    # If the first attempt's answer was lost, the second one finds the halt that the first one set.
    return HaltSet(found.halt_id, found.already and found.halt_id != halt_id)


def _acts_for_all(actor: Actor) -> bool:
    """Whether this is a local administrator without an operator's account: only a tenant's own people see an operator's address."""
    return actor.is_local and actor.operator_id is None


def _check_target(scope: str, target: str, level: str) -> None:
    if scope not in SCOPES:
        raise InvalidInput.of("scope", f"must be one of {', '.join(SCOPES)}")
    if level not in LEVELS:
        raise InvalidInput.of("level", f"must be one of {', '.join(LEVELS)}")
    if scope in ("global", "tenant"):
        if target:
            raise InvalidInput.of("target", f"must be left out for the scope {scope}")
    elif scope == "agent_action":
        agent, _, action = target.partition(" ")
        check_identifier(agent, "target", 128)
        check_identifier(action, "target", 128)
    elif not (scope == "action" and _ACTION_PATTERN.fullmatch(target)):
        check_identifier(target, "target", 128)


def lift_halt(pool: Pool, actor: Actor, halt_id: uuid.UUID, *, reason: str) -> None:
    """Lift a halt of the tenant. Needs the role admin; a global halt can be lifted only by a local administrator, without an
    operator's account.

    Raises `Forbidden`, `NotFound` if no halt with that id is in force, or `MayBeRecorded` if the connection was lost
    and the halt may have been lifted.
    """
    actor.must_be("admin")
    owners = [actor.tenant_id, GLOBAL_HALT_OWNER] if _acts_for_all(actor) else [actor.tenant_id]
    for owner in owners:
        done = act_once(pool, _Lifted, LIFT_HALT, {
            "owner": owner, "halt_id": halt_id, "lifted_by": actor.name, "reason": reason, "event_id": new_id(),
        }, is_taken=lambda found: found.lifted)  # fmt: skip
        if done.lifted:
            return
    if scalar(pool, IS_GLOBAL, {"owner": GLOBAL_HALT_OWNER, "halt_id": halt_id}):
        raise Forbidden(
            f"a global halt is lifted on the machine itself, without --as: `sentinel halts lift {halt_id} --reason …`"
        )
    raise NotFound("there is no halt with this id in force")

"""Switch states: listing them, turning them on and off, and what agents may see of switches and halts."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from sentinel.authority.actor import Actor
from sentinel.authority.engine import Caller
from sentinel.authority.gate_reports import REFUSALS, GateState, gate_states
from sentinel.authority.halts import GLOBAL_HALT_OWNER
from sentinel.core.errors import Conflict, InvalidInput, NotFound
from sentinel.platform.outside_systems import NEVER_TRIED, OUTSIDE_SYSTEMS
from sentinel.policy.switches import NAME, DeclaredSwitch, DeclaredSwitches, known_switch
from sentinel.policy.switches import SwitchFile as SwitchFile  # re-export: the console imports no sentinel.policy
from sentinel.store.database import Pool
from sentinel.store.ids import new_id
from sentinel.store.queries import all_rows, call_with_retry, scalar
from sentinel.store.sql_template import SqlTemplate


@dataclass(frozen=True, slots=True)
class SwitchRow:
    """The last change of a switch; a switch that was never changed has no row. `canary_percent` is 0 when off."""

    name: str
    is_on: bool
    canary_percent: int
    changed_at: datetime
    changed_by: str
    reason: str


@dataclass(frozen=True, slots=True)
class SwitchOrHalt:
    """A changed switch (`kind` "switch") or a halt (`kind` "halt", `name` is its scope); `target` and `level` are a halt's."""

    kind: str
    name: str
    is_on: bool
    canary_percent: int
    target: str
    level: str
    sandboxes: Sequence[str]
    """The sandboxes that the newest passing gate report ran against, by the prefix of their settings."""
    unproven: Sequence[str]
    """Settlement systems that this report says it did not try for real: of those that its version knew."""


LIST_SWITCHES = """
select name, is_on, canary_percent, changed_at, changed_by, reason from sentinel.switches
where tenant_id = %(tenant_id)s order by name
"""
# Only of declared names: while the file cannot be used, an agent may turn off, and so add, any number of others.
IN_FORCE = """
select 'switch' as kind, name, is_on, canary_percent, '' as target, '' as level,
  array(select jsonb_array_elements_text(proof.sandbox)) as sandboxes,
  array(select jsonb_array_elements_text(proof.unproven)) as unproven
from sentinel.switches s
left join lateral (
  select g.report -> 'sandbox' as sandbox, g.report -> 'unproven' as unproven from sentinel.gate_reports g
  where g.tenant_id = s.tenant_id and g.switch = s.name and g.passed
  order by g.created_at desc, g.report_id desc limit 1) as proof on true
where s.tenant_id = %(tenant_id)s and s.name = any(%(names)s::text[])
union all
select 'halt', scope, true, 0, target, level, '{}', '{}' from sentinel.halts
where lifted_at is null and tenant_id = any(%(owners)s)
  and (%(agent_id)s::text is null or scope not in ('agent', 'agent_action') or split_part(target, ' ', 1) = %(agent_id)s)
"""
TURN_ON = """
select sentinel.turn_switch_on(%(tenant_id)s, %(name)s, %(gate)s, %(policy)s, %(percent)s, %(first_percent)s, %(who)s, %(reason)s, %(event_id)s,
  %(default_on)s)
"""
# Only if the switch is as its last change `seen_at` left it, or is already as wanted. The row is locked while it is compared.
TURN_ON_AS_SEEN = SqlTemplate("""
with found as materialized (
  select changed_at, is_on and canary_percent = %(percent)s as is_as_wanted from sentinel.switches
  where tenant_id = %(tenant_id)s and name = %(name)s for update)
select case when (select changed_at from found) is not distinct from %(seen_at)s::timestamptz
              or coalesce((select is_as_wanted from found), false)
            then ({turn_on}) else 'changed_since' end
""").fill(turn_on=TURN_ON)
# What a switch that was never changed is, as a row: two first changes wait for each other at it. It is only committed as
# `TURN_ON` left it, which finds something to change, because the canary here is not the wanted one.
FIRST_ROW = """
insert into sentinel.switches (tenant_id, name, is_on, canary_percent, changed_at, changed_by, reason)
values (%(tenant_id)s, %(name)s, %(default_on)s, case when %(default_on)s and %(percent)s < 100 then 100 else 0 end,
        clock_timestamp(), %(who)s, %(reason)s)
on conflict (tenant_id, name) do nothing
"""
TURN_OFF = """
select sentinel.turn_switch_off(%(tenant_id)s, %(name)s, %(who)s, %(reason)s, %(event_id)s, %(went_wrong)s)
"""
# An agent's call for a switch that was off has an event too, which says so.
HAS_TURNED = """
select exists (select from sentinel.events where tenant_id = %(tenant_id)s and event_id = %(event_id)s
  and body::jsonb -> 'already' is null)
"""


def flipped_switches(pool: Pool, tenant_id: uuid.UUID) -> list[SwitchRow]:
    """Return the tenant's changed switches, ordered by name."""
    return all_rows(pool, SwitchRow, LIST_SWITCHES, {"tenant_id": tenant_id})


def switches_and_halts(
    pool: Pool, tenant_id: uuid.UUID, declared_switches: DeclaredSwitches, agent_id: str | None = None
) -> list[SwitchOrHalt]:
    """Return the tenant's changed switches among the declared ones, its halts in force and the global ones, in one query,
    for its agents; with an `agent_id` without the halts of other agents."""
    return all_rows(pool, SwitchOrHalt, IN_FORCE, {
        "tenant_id": tenant_id, "names": list(declared_switches.switches), "owners": [tenant_id, GLOBAL_HALT_OWNER],
        "agent_id": agent_id,
    })  # fmt: skip


def _turn_on(
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
    default_on: bool,
    seen: SwitchView | None,
) -> str:
    """Turn a switch on and return "", or why it was not turned on.

    The reason is "unchanged", "changed_since" (it is not as in `seen`), "canary_too_wide" (it is off, and may be turned
    on for at most `first_percent`), or, with a gate, a key of `gate_reports.REFUSALS`.
    """
    fields = {
        "tenant_id": tenant_id, "name": name, "gate": gate, "policy": policy, "percent": canary_percent,
        "first_percent": first_percent, "who": who, "reason": reason, "event_id": event_id, "default_on": default_on,
    }  # fmt: skip
    if seen is None:
        return str(scalar(pool, TURN_ON, fields))
    if seen.changed_at is None:
        return _turn_on_first(pool, fields)
    return str(scalar(pool, TURN_ON_AS_SEEN, {**fields, "seen_at": seen.changed_at}))


def _turn_on_first(pool: Pool, fields: Mapping[str, Any]) -> str:
    """Turn a switch on that was never changed when it was seen; returns as `_turn_on`, and leaves no row if it is refused."""

    def call(connection: psycopg.Connection[Any]) -> str:
        with connection.transaction() as transaction:
            is_first = connection.execute(FIRST_ROW, fields).rowcount == 1
            statement = TURN_ON if is_first else TURN_ON_AS_SEEN
            row = connection.execute(statement, {**fields, "seen_at": None}).fetchone()
            refusal = str(row[0]) if row is not None else ""
            if refusal:
                raise psycopg.Rollback(transaction)
        return refusal

    return call_with_retry(pool, call)


def _turn_off(
    pool: Pool,
    *,
    tenant_id: uuid.UUID,
    name: str,
    who: str,
    reason: str,
    event_id: uuid.UUID,
    went_wrong: bool = False,
) -> bool:
    """Turn a switch off, whatever the file or a gate report says; return False if it had been turned off before this call.

    After `went_wrong`, only a newer gate report can turn the switch on again, and an event is recorded even if the
    switch was off.
    """
    turned = scalar(pool, TURN_OFF, {
        "tenant_id": tenant_id, "name": name, "who": who, "reason": reason, "event_id": event_id, "went_wrong": went_wrong,
    })  # fmt: skip
    return bool(turned) or _has_turned(pool, tenant_id, event_id)


def _has_turned(pool: Pool, tenant_id: uuid.UUID, event_id: uuid.UUID) -> bool:
    """Whether a call that found its switch as it wants it had turned it itself, at a first attempt whose answer was lost."""
    return bool(scalar(pool, HAS_TURNED, {"tenant_id": tenant_id, "event_id": event_id}))


@dataclass(frozen=True, slots=True)
class SwitchView:
    """One declared switch and its state. `gate_state` is None if it needs no gate report.

    `changed_at`, `changed_by` and `reason` are None if it was never changed.
    """

    name: str
    is_on: bool
    canary_percent: int
    about: str
    gate: str | None
    policy: str | None
    gate_state: GateState | None
    changed_at: datetime | None
    changed_by: str | None
    reason: str | None
    first_canary: int


def list_switches(pool: Pool, tenant_id: uuid.UUID, declared_switches: DeclaredSwitches) -> list[SwitchView]:
    """Return every declared switch of the tenant, in the file's order; none if the file cannot be used."""
    flips = {row.name: row for row in flipped_switches(pool, tenant_id)}
    gated = [(one.name, one.gate, one.policy) for one in declared_switches.switches.values() if one.gate and one.policy]
    states = gate_states(pool, tenant_id, gated)
    return [_view(one, flips.get(one.name), states.get(one.name)) for one in declared_switches.switches.values()]


def _view(declared: DeclaredSwitch, row: SwitchRow | None, state: GateState | None) -> SwitchView:
    is_on, percent = (row.is_on, row.canary_percent) if row else _as_declared(declared)
    return SwitchView(
        declared.name, is_on, percent, declared.about, declared.gate, declared.policy, state,
        row.changed_at if row else None, row.changed_by if row else None, row.reason if row else None,
        declared.first_canary,
    )  # fmt: skip


def switch_states(
    declared_switches: DeclaredSwitches, found: Sequence[SwitchOrHalt]
) -> dict[str, tuple[bool, int, Sequence[str]]]:
    """Return (on, canary percent, settlement systems that its launch gate did not try) by switch name, for agents.

    Undeclared switches are left out, which means off. A switch that has no gate any more needs no proof either.
    """
    flips = {one.name: one for one in found if one.kind == "switch"}
    states: dict[str, tuple[bool, int, Sequence[str]]] = {}
    for name, declared in declared_switches.switches.items():
        flip = flips.get(name)
        unproven = _unproven(flip) if flip is not None and declared.gate is not None else ()
        states[name] = (*_as_declared(declared), ()) if flip is None else (flip.is_on, flip.canary_percent, unproven)
    return states


def _unproven(flip: SwitchOrHalt) -> list[str]:
    """The settlement systems that the switch's gate report does not prove.

    A report names as unproven only systems that its version knew, so what proves one is that its sandbox was tried.
    """
    tried = {system.name for system in OUTSIDE_SYSTEMS if system.prefix in flip.sandboxes} - {*flip.unproven}
    return [name for name in (*(system.name for system in OUTSIDE_SYSTEMS), *NEVER_TRIED) if name not in tried]


def _as_declared(declared: DeclaredSwitch) -> tuple[bool, int]:
    return declared.default_on, 100 if declared.default_on else 0


@dataclass(frozen=True, slots=True)
class SwitchChange:
    """The state of a switch after the call; `already` is True if it was in that state before and was not changed."""

    name: str
    is_on: bool
    canary_percent: int
    already: bool


class CanaryTooWide(Conflict):
    """Raised for turning on a switch that is off for a larger percentage than its first canary may have."""

    code = "canary-too-wide"

    def __init__(self, declared: DeclaredSwitch) -> None:
        first = declared.first_canary
        super().__init__(
            f"{declared.name} is off: it must first be turned on for at most {first} % of the accounts, and can then be widened"
        )


class GateRefused(Conflict):
    """Raised if a switch's launch gate is not passed.

    `why` is a key of `gate_reports.REFUSALS`; `stands` is the switch's last change, which remains in effect, if any.
    """

    code = "gate-not-passed"

    def __init__(self, switch: str, gate: str, why: str, stands: SwitchRow | None) -> None:
        stays = f"on for {stands.canary_percent} % of the accounts" if stands and stands.is_on else "off"
        run = f"`sentinel gates run {gate} --record --as EMAIL`"
        super().__init__(f"{switch} stays {stays}: {REFUSALS[why]}; run {run} and try again")
        self.why = why


def turn_switch_on(
    pool: Pool,
    actor: Actor,
    declared_switches: DeclaredSwitches,
    name: str,
    *,
    canary_percent: int,
    reason: str,
    seen: SwitchView | None = None,
) -> SwitchChange:
    """Turn a switch on for `canary_percent` (0 to 100) of the accounts, or change the percentage of one that is on.

    A smaller percentage does not need the launch gate. With `seen`, only a switch that has not been changed since it was
    read. Raises `Forbidden` (not an admin), `NotFound` (no such switch), `GateRefused`, `CanaryTooWide`, `InvalidInput`,
    and `Conflict` if it has been changed since, or the file of switches cannot be used.
    """
    actor.must_be("admin")
    if declared_switches.fault is not None:
        raise Conflict(f"every switch is off, because the file of switches cannot be used: {declared_switches.fault}")
    if not 0 <= canary_percent <= 100:
        raise InvalidInput.of("canary_percent", "must be between 0 and 100")
    declared, event_id = known_switch(declared_switches, name), new_id()
    refusal = _turn_on(
        pool, tenant_id=actor.tenant_id, name=name, gate=declared.gate, policy=declared.policy,
        canary_percent=canary_percent, first_percent=declared.first_canary, who=actor.name, reason=reason, event_id=event_id,
        default_on=declared.default_on, seen=seen,
    )  # fmt: skip
    has_turned = refusal != "" and _has_turned(pool, actor.tenant_id, event_id)
    if refusal == "changed_since" and not has_turned:
        raise Conflict(f"{name} has been changed in the meantime; nothing was changed")
    if refusal == "canary_too_wide":
        raise CanaryTooWide(declared)
    if declared.gate is not None and refusal in REFUSALS:
        stands = {row.name: row for row in flipped_switches(pool, actor.tenant_id)}.get(name)
        raise GateRefused(name, declared.gate, refusal, stands)
    return SwitchChange(name, True, canary_percent, already=refusal != "" and not has_turned)


def turn_switch_off(
    pool: Pool, actor: Actor, declared_switches: DeclaredSwitches, name: str, *, reason: str
) -> SwitchChange:
    """Turn a switch off for all accounts, as soon as it is committed. Needs the role approver.

    Raises `Forbidden` or `NotFound`.
    """
    actor.must_be("approver")
    _known_or_any(declared_switches, name)
    done = _turn_off(pool, tenant_id=actor.tenant_id, name=name, who=actor.name, reason=reason, event_id=new_id())
    return SwitchChange(name, False, 0, already=not done)


def turn_switch_off_by_agent(
    pool: Pool, caller: Caller, declared_switches: DeclaredSwitches, name: str, *, reason: str
) -> SwitchChange:
    """Turn a switch off for an agent, e.g. after a wrong execution. Each call is recorded as an event.

    The switch can be turned on again only by a gate report that is newer than the last such call. Raises `InvalidInput`
    for a switch that is not declared.
    """
    try:
        _known_or_any(declared_switches, name)
    except NotFound as error:
        raise InvalidInput.of("switch", error.detail) from None
    who = f"agent {caller.agent_id}" if caller.agent_id else f"agent key {caller.key_id}"
    done = _turn_off(
        pool, tenant_id=caller.tenant_id, name=name, who=who, reason=reason, event_id=new_id(), went_wrong=True
    )
    return SwitchChange(name, False, 0, already=not done)


def _known_or_any(declared_switches: DeclaredSwitches, name: str) -> None:
    """Raise `NotFound` unless the switch is declared.

    Any well-formed name is accepted while the file is unusable, because turning off must work then too.
    """
    if declared_switches.fault is None or not NAME.fullmatch(name):
        known_switch(declared_switches, name)

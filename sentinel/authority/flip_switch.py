"""Turn a switch on or off. On takes an administrator and, where the switch has a gate, a fresh passing report; off always works.

As with halts, stopping is easy and letting go takes more. An agent may stop too: it can only tighten.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.authority import switches
from sentinel.authority.actor import Actor
from sentinel.authority.engine import Caller
from sentinel.authority.gate_reports import REFUSALS
from sentinel.core.errors import Conflict, InvalidInput, NotFound
from sentinel.policy.switches import NAME, DeclaredSwitch, SwitchBook
from sentinel.store.database import Pool
from sentinel.store.ids import new_id


@dataclass(frozen=True, slots=True)
class Flipped:
    """How the switch stands now; `already` when it stood so before and nothing was recorded."""

    name: str
    is_on: bool
    canary_percent: int
    already: bool


class CanaryTooWide(Conflict):
    """A switch that is off is turned on for more accounts than its first canary may have."""

    code = "canary-too-wide"

    def __init__(self, declared: DeclaredSwitch) -> None:
        first = declared.first_canary
        super().__init__(
            f"{declared.name} is off: it goes on for at most {first} % of the accounts first, and may be moved from there"
        )


class GateRefused(Conflict):
    """The launch gate of a switch is not passed; `why` is a key of `gate_reports.REFUSALS`."""

    code = "gate-not-passed"

    def __init__(self, switch: str, gate: str, why: str) -> None:
        super().__init__(f"{switch} stays off: {REFUSALS[why]}; run `sentinel gates run {gate}` and look at it again")
        self.why = why


def turn_switch_on(
    pool: Pool, actor: Actor, book: SwitchBook, name: str, *, canary_percent: int, reason: str
) -> Flipped:
    """On for `canary_percent` (0 to 100) of the accounts; again with another percentage moves it.

    Raises `Forbidden` (not an admin), `NotFound` (no such switch), `GateRefused`, `CanaryTooWide`, `InvalidInput`, and `Conflict` when
    the file of switches cannot be used.
    """
    actor.must_be("admin")
    if book.fault is not None:
        raise Conflict(f"every switch is off, because the file of switches cannot be used: {book.fault}")
    if not 0 <= canary_percent <= 100:
        raise InvalidInput.of("canary_percent", "must be between 0 and 100")
    declared = known_switch(book, name)
    refusal = switches.turn_on(
        pool, tenant_id=actor.tenant_id, name=name, gate=declared.gate, policy=declared.policy,
        canary_percent=canary_percent, first_percent=declared.first_canary, who=actor.name, reason=reason, event_id=new_id(),
    )  # fmt: skip
    if refusal == "canary_too_wide":
        raise CanaryTooWide(declared)
    if declared.gate is not None and refusal in REFUSALS:
        raise GateRefused(name, declared.gate, refusal)
    return Flipped(name, True, canary_percent, already=refusal != "")


def turn_switch_off(pool: Pool, actor: Actor, book: SwitchBook, name: str, *, reason: str) -> Flipped:
    """Off for everybody from the commit on; approvers may. Raises `Forbidden` or `NotFound`."""
    actor.must_be("approver")
    _known_or_any(book, name)
    done = switches.turn_off(
        pool, tenant_id=actor.tenant_id, name=name, who=actor.name, reason=reason, event_id=new_id()
    )
    return Flipped(name, False, 0, already=not done)


def turn_switch_off_by_agent(pool: Pool, caller: Caller, book: SwitchBook, name: str, *, reason: str) -> Flipped:
    """An agent stops itself, e.g. after a wrong execution: on again it goes only by a report from after that.

    Raises `InvalidInput` for a switch that is not there.
    """
    try:
        _known_or_any(book, name)
    except NotFound as error:
        raise InvalidInput.of("switch", error.detail) from None
    who = f"agent {caller.agent_id}" if caller.agent_id else f"agent key {caller.key_id}"
    done = switches.turn_off(
        pool, tenant_id=caller.tenant_id, name=name, who=who, reason=reason, event_id=new_id(), went_wrong=True
    )
    return Flipped(name, False, 0, already=not done)


def known_switch(book: SwitchBook, name: str) -> DeclaredSwitch:
    """The declared switch of that name. Raises `NotFound`, naming the nearest one."""
    found = book.switches.get(name)
    if found is None:
        hint = book.hint(name) or f"known: {', '.join(book.switches) or 'none'}"
        raise NotFound(f'there is no switch "{name[:64]}" ({hint})')
    return found


def _known_or_any(book: SwitchBook, name: str) -> None:
    """Where the file is unusable no name can be looked up, and off has to work all the same."""
    if book.fault is None or not NAME.fullmatch(name):
        known_switch(book, name)

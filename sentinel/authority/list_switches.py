"""How every switch stands, and whether it could be turned on: what operators look at; and the plain view for agents."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sentinel.authority import gate_reports, switches
from sentinel.authority.gate_reports import GateState
from sentinel.authority.switches import InForce, SwitchRow
from sentinel.policy.switches import DeclaredSwitch, SwitchBook
from sentinel.policy.switches import SwitchFile as SwitchFile  # for the console, which knows no policies, only services
from sentinel.store.database import Pool


@dataclass(frozen=True, slots=True)
class SwitchView:
    """One switch. `gate_state` is None where no report is needed; the `changed…` and `reason` None where nobody flipped it."""

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


def list_switches(pool: Pool, tenant_id: uuid.UUID, book: SwitchBook) -> list[SwitchView]:
    """Every declared switch of the tenant, in the file's order; nothing where the file cannot be used."""
    flips = {row.name: row for row in switches.list_switches(pool, tenant_id)}
    gated = [(one.name, one.gate, one.policy) for one in book.switches.values() if one.gate and one.policy]
    states = gate_reports.gate_states(pool, tenant_id, gated)
    return [_view(one, flips.get(one.name), states.get(one.name)) for one in book.switches.values()]


def _view(declared: DeclaredSwitch, row: SwitchRow | None, state: GateState | None) -> SwitchView:
    is_on, percent = (row.is_on, row.canary_percent) if row else _as_declared(declared)
    return SwitchView(
        declared.name, is_on, percent, declared.about, declared.gate, declared.policy, state,
        row.changed_at if row else None, row.changed_by if row else None, row.reason if row else None,
        declared.first_canary,
    )  # fmt: skip


def standing(book: SwitchBook, found: Sequence[InForce]) -> dict[str, tuple[bool, int, Sequence[str]]]:
    """Name → (on, canary percent, systems proven as simulations only) for agents. What the file does not declare is off."""
    flips = {one.name: (one.is_on, one.canary_percent, one.simulated) for one in found if one.kind == "switch"}
    return {name: flips.get(name, (*_as_declared(declared), ())) for name, declared in book.switches.items()}


def _as_declared(declared: DeclaredSwitch) -> tuple[bool, int]:
    return declared.default_on, 100 if declared.default_on else 0

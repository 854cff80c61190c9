"""What the board's pages and streams are handed: decisions as they are published, and what stops an agent."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from sentinel.core.publication import PublicFields

ACTIVE_FOR = timedelta(minutes=5)
_LABEL = re.compile(r"[A-Za-z0-9 ._:/@()-]{1,100}")


# Published already: who has one, the event loop too, can show it without asking anything. Told apart by identity, because
# its fields have no hash.
@dataclass(frozen=True, slots=True, eq=False)
class LiveEvent:
    """A published decision and its position in the feed. `fields` are what is shown of it, `policy` is the name of the policy
    that decided, "" where it cannot be shown.
    """

    position: int
    occurred_at: datetime
    fields: PublicFields
    policy: str


@dataclass(frozen=True, slots=True)
class Looked:
    """What one look at a tenant's feed found: published decisions, how many there are besides, and the position looked
    through to. `tenant_label` is how the board names the tenant, `history` the number of the feed's history (`Reach`).
    """

    tenant_id: uuid.UUID
    events: list[LiveEvent]
    left_out: int
    position: int
    tenant_label: str = ""
    history: int = 0


class BoardHalt(Protocol):
    """A halt in force: its scope and what it covers."""

    @property
    def scope(self) -> str: ...

    @property
    def target(self) -> str: ...


def agent_status(agent_id: str, last: datetime | None, halts: Sequence[BoardHalt], now: datetime | None = None) -> str:
    """What stops an agent comes first, then "active" when it decided something lately, else "idle"."""
    stopped = _stopped(agent_id, halts)
    if stopped is not None or last is None:
        return stopped or "idle"
    return "active" if (now or datetime.now(UTC)) - last < ACTIVE_FOR else "idle"


def _stopped(agent_id: str, halts: Sequence[BoardHalt]) -> str | None:
    """ "halted" where a halt covers all that this agent does, "degraded" where one covers a part of it."""
    found = None
    for halt in halts:
        if halt.scope in ("global", "tenant") or (halt.scope, halt.target) == ("agent", agent_id):
            return "halted"
        if halt.scope in ("action", "scenario") or (
            halt.scope == "agent_action" and halt.target.startswith(f"{agent_id} ")
        ):
            found = "degraded"
    return found


def policy_label(label: object) -> str:
    """The name of a policy as the board shows it; "" where there is none to show."""
    return label if isinstance(label, str) and _LABEL.fullmatch(label) else ""

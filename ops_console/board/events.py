"""The values that the board's pages and streams work with: published decisions, and what halts an agent."""

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


# Already published, so whoever holds one, also the event loop, can show it without I/O. `eq=False`: compared by
# identity, because its fields are not hashable and `Stream.encode` caches by event.
@dataclass(frozen=True, slots=True, eq=False)
class LiveEvent:
    """A published decision and its position in the feed. `fields` is the public document, `policy` the name of the
    policy that decided, "" if that cannot be shown.
    """

    position: int
    occurred_at: datetime
    fields: PublicFields
    policy: str


@dataclass(frozen=True, slots=True)
class Looked:
    """The result of one read of a tenant's feed: published decisions, how many more there are (`left_out`), and the
    position up to which the feed was read. `tenant_label` is the tenant's name on the board, `history` the number of
    the feed's history (`Reach`).
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
    """Return "halted" or "degraded" if a halt covers the agent, else "active" if its last decision is recent, else
    "idle".

    An agent without any decision (`last` None) is never "active". Recent means within `ACTIVE_FOR`.
    """
    stopped = _stopped(agent_id, halts)
    if stopped is not None or last is None:
        return stopped or "idle"
    return "active" if (now or datetime.now(UTC)) - last < ACTIVE_FOR else "idle"


def _stopped(agent_id: str, halts: Sequence[BoardHalt]) -> str | None:
    """Return "halted" if a halt covers all of this agent's actions, "degraded" if one covers some of them, else None.

    A halt of an action or a scenario counts as "degraded" for every agent.
    """
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
    """Return a policy's name as the board shows it; "" if it is missing or has characters that the board does not show."""
    return label if isinstance(label, str) and _LABEL.fullmatch(label) else ""

"""Where operators' pages lead for a decision's proof: to its events, and to the public board where that shows it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from flask import url_for

from ops_console.context import ConsoleContext
from sentinel.core.errors import EngineUnavailable


@dataclass(frozen=True, slots=True)
class ProofLink:
    """A proof by its name. `events` is the page of its operation's events; `public` its public page, None where there is none."""

    proof_id: str
    events: str
    public: str | None


def proof_link(context: ConsoleContext, tenant_id: uuid.UUID, proof_id: str, agent_id: str | None) -> ProofLink:
    """The links of an agent's proof. The board shows the agents that its settings name, of the public tenant."""
    public = f"/verify/{proof_id}" if _is_shown(context, tenant_id, agent_id) else None
    return ProofLink(proof_id, events_address(proof_id), public)


def events_address(operation: str) -> str:
    """Where the events of an operation are shown; it is named by its id or by its proof's."""
    return url_for("pages.events", operation=operation)


def _is_shown(context: ConsoleContext, tenant_id: uuid.UUID, agent_id: str | None) -> bool:
    agents = context.settings.board.ids
    if agent_id is None or (agents is not None and agent_id not in agents):
        return False
    try:
        return context.board.tenant()[0] == tenant_id
    except EngineUnavailable:
        # Its database may be away: a link less.
        return False

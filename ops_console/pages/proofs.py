"""Links from operators' pages to a decision's proof: to its events, and to its public page if the board shows it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from flask import url_for

from ops_console.context import ConsoleContext
from sentinel.core.errors import EngineUnavailable


@dataclass(frozen=True, slots=True)
class ProofLink:
    """A proof by its id. `events` is the address of its operation's events; `public` that of its public page, or None."""

    proof_id: str
    events: str
    public: str | None


def proof_link(context: ConsoleContext, tenant_id: uuid.UUID, proof_id: str, agent_id: str | None) -> ProofLink:
    """Return the links of a proof. It has a public page if the board's settings show its agent and the tenant is the public one."""
    public = f"/verify/{proof_id}" if _is_shown(context, tenant_id, agent_id) else None
    return ProofLink(proof_id, events_address(proof_id), public)


def events_address(operation: str) -> str:
    """Return the address of an operation's events; `operation` is its id or its proof's id."""
    return url_for("pages.events", operation=operation)


def _is_shown(context: ConsoleContext, tenant_id: uuid.UUID, agent_id: str | None) -> bool:
    agents = context.settings.board.ids
    if agent_id is None or (agents is not None and agent_id not in agents):
        return False
    try:
        return context.board.tenant()[0] == tenant_id
    except EngineUnavailable:
        # The board's database is down: leave the link out.
        return False

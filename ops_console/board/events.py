"""What the public may see of a decision: an allow-list of names, each with the shape its value must have.

An event is built from nothing but these names (`CONTRACT.md` §4). A value of another shape is left out, so that free text
in the place of an identifier never gets through.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from ops_console.board.agents import PublicAgents
from sentinel.core.errors import NotFound
from sentinel.core.operation import MAX_IDENTIFIER, is_identifier
from sentinel.store.feed import FeedRow, PublicHalt

SCHEMA = "haltstate.live.event.v1"
EVENT_FIELDS = (
    "schema", "event_id", "occurred_at", "agent_label", "source", "action", "decision", "amount", "reason_code",
    "proof_status", "redaction_status", "latency_ms", "ledger_entry_id", "refund_id", "proof_id",
)  # fmt: skip
PACK_FIELDS = (
    "proof_id", "ledger_entry_id", "refund_id", "agent_id", "action", "amount", "decision", "policy_label",
    "policy_version", "policy_digest", "reason_code", "operation_digest", "facts_commitment", "decided_at", "latency_ms",
    "proof_status", "signature_status", "redaction_status", "hash",
)  # fmt: skip
ACTIVE_FOR = timedelta(minutes=5)

_PLAIN = re.compile(r"[A-Za-z0-9 -]{1,40}")
_LABEL = re.compile(r"[A-Za-z0-9 ._:/@()-]{1,100}")


def _identifier(value: Any) -> bool:
    return is_identifier(value, MAX_IDENTIFIER)


def _plain(value: Any) -> bool:
    return isinstance(value, str) and _PLAIN.fullmatch(value) is not None


def _money(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"value", "currency"} and _identifier(str(value["value"]))


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_SHAPES: dict[str, Callable[[Any], bool]] = {
    "amount": _money, "latency_ms": _count, "proof_status": _plain, "redaction_status": _plain,
}  # fmt: skip


def live_event(row: FeedRow, board: PublicAgents) -> dict[str, Any]:
    """A decision as the public sees it; fields the operation does not have are left out."""
    pack = json.loads(row.body)
    known = {
        "schema": SCHEMA,
        "event_id": str(row.event_id),
        "occurred_at": pack.get("decided_at"),
        "agent_label": row.agent_id,
        "source": board.source(row.agent_id, str(pack.get("action", ""))),
    }
    values = {name: known.get(name, pack.get(name)) for name in EVENT_FIELDS}
    return {name: value for name, value in values.items() if _SHAPES.get(name, _identifier)(value)}


def public_pack(pack: dict[str, Any]) -> dict[str, Any]:
    """A proof pack for the public. One with a field outside the contract is not shown at all: its hash covers everything."""
    if not pack.keys() <= set(PACK_FIELDS):
        raise NotFound("there is no proof of that id")
    return {name: pack[name] for name in PACK_FIELDS if name in pack}


def agent_status(
    agent_id: str, row: FeedRow | None, halts: Sequence[PublicHalt], now: datetime | None = None
) -> dict[str, Any]:
    """One agent on the board: what stops it comes first, then "active" when it decided something lately, else "idle"."""
    stopped = _stopped(agent_id, halts)
    if row is None:
        return {"status": stopped or "idle", "last_action": None, "last_decision": None}
    pack = json.loads(row.body)
    recent = (now or datetime.now(UTC)) - row.occurred_at < ACTIVE_FOR
    status = stopped or ("active" if recent else "idle")
    return {"status": status, "last_action": pack["action"], "last_decision": pack["decision"]}


def _stopped(agent_id: str, halts: Sequence[PublicHalt]) -> str | None:
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


def policy_label(row: FeedRow | None) -> str:
    """The name of the policy behind a decision; "" where there is none to show."""
    label = json.loads(row.body).get("policy_label", "") if row is not None else ""
    return label if isinstance(label, str) and _LABEL.fullmatch(label) else ""

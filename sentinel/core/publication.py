"""Makes every public document from a recorded decision (`docs/CONTRACT.md` §4, §5).

A document is built from named fields, each of which is a value of our own in a checked form (a hash, a time, a reason
code), a minted public id (`public_ids`), money or a count. Text that an agent wrote never gets in: the agent's name is
shown only if the requesting key is bound to it, and an action only under the name that the deciding policy has for it.
Public pages and answers take only `PublicFields`, and only this module makes them.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NewType

from sentinel.core.errors import NotFound
from sentinel.core.operation import UNSAFE_TEXT, is_identifier, name_in_policy
from sentinel.core.proof import pack_hash
from sentinel.core.public_ids import Kind, PublicIdGenerator

PublicFields = NewType("PublicFields", dict[str, Any])
"""A document for the public."""

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
MINTED = {"ledger_entry_id": Kind.LEDGER_ENTRY, "refund_id": Kind.REFUND}
"""Fields that always carry a public id. `agent_id` and `action` carry one unless an operator chose the name."""


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision as recorded. `pack` is its proof pack without the hash; `is_bound`: the requesting key is bound to that agent."""

    tenant_id: uuid.UUID
    event_id: uuid.UUID
    agent_id: str
    is_bound: bool
    pack: Mapping[str, Any]


def _matches(pattern: str) -> Callable[[Any], bool]:
    compiled = re.compile(pattern, re.ASCII)
    return lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None


def _money(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {"value", "currency"}:
        return False
    return _AMOUNT(str(value["value"])) and _CURRENCY(value["currency"])


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(value: Any) -> bool:
    """A label from a policy: any visible text."""
    return isinstance(value, str) and len(value) <= 200 and not UNSAFE_TEXT.search(value)


def _version(value: Any) -> bool:
    return isinstance(value, str) and (not value or is_identifier(value, 200))


_AMOUNT, _CURRENCY = _matches(r"[0-9]{1,13}(?:\.[0-9]{1,4})?"), _matches(r"[A-Z]{3}")
_DIGEST, _WORDS = _matches(r"sha256:[0-9a-f]{64}"), _matches(r"[a-z -]{1,40}")
# Fields that come from the authority or the policy, each with the check of its form.
_OURS: dict[str, Callable[[Any], bool]] = {
    "proof_id": _matches(r"pf_[0-9a-f]{32}"), "decision": _matches("ALLOW|APPROVAL_REQUIRED|DENY"), "amount": _money,
    "policy_label": _text, "policy_version": _version, "policy_digest": _DIGEST, "reason_code": _matches(r"[a-z][a-z0-9_.]{0,127}"),
    "operation_digest": _DIGEST, "facts_commitment": _DIGEST, "decided_at": _matches(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,15}Z"),
    "latency_ms": _count, "proof_status": _WORDS, "signature_status": _WORDS, "redaction_status": _WORDS,
}  # fmt: skip


class Publisher:
    """Makes public documents. `actions_of(policy_digest)` are the actions and patterns that the policy names."""

    def __init__(self, ids: Callable[[], PublicIdGenerator], actions_of: Callable[[str], Collection[str]]) -> None:
        self._ids = ids
        self._actions_of = actions_of

    def event(self, record: DecisionRecord, source: str | None = None) -> PublicFields:
        """Return a decision for the live board, without absent fields. `source` is what its agent works on; None
        derives it from the action."""
        values = self._values(record)
        known = {
            **values, "schema": SCHEMA, "event_id": str(record.event_id), "occurred_at": values.get("decided_at"),
            "agent_label": values["agent_id"], "source": source or self._source(values.get("action")),
        }  # fmt: skip
        return PublicFields({name: known[name] for name in EVENT_FIELDS if known.get(name) is not None})

    def pack(self, record: DecisionRecord) -> PublicFields:
        """Return a proof pack with its own hash. Raises `NotFound` for one with a field that the contract does not name."""
        if not record.pack.keys() <= set(PACK_FIELDS) - {"hash"}:
            raise NotFound("there is no proof with this id")
        values = self._values(record)
        shown = {name: values[name] for name in PACK_FIELDS if name in values}
        return PublicFields({**shown, "hash": pack_hash(shown)})

    def agent(self, tenant_id: uuid.UUID, agent_id: str, is_bound: bool) -> str:
        """Return the agent's name where the requesting key is bound to it, else its public id."""
        return agent_id if is_bound else self._mint(Kind.AGENT, tenant_id, agent_id)

    def agent_status(self, status: str, event: PublicFields | None) -> PublicFields:
        """Return an agent's status with the action and decision of its last event."""
        last = event or PublicFields({})
        return PublicFields(
            {"status": status, "last_action": last.get("action"), "last_decision": last.get("decision")}
        )

    def board(self, tenant_label: str, agents: Mapping[str, PublicFields]) -> PublicFields:
        """Return the status of every agent by public name, with the tenant's label."""
        return PublicFields({**agents, "tenant": tenant_label})

    def feed(self, events: list[PublicFields]) -> PublicFields:
        """Return a list of events as one document."""
        return PublicFields({"events": events})

    def _values(self, record: DecisionRecord) -> dict[str, Any]:
        pack = record.pack
        values = {name: pack[name] for name, fits in _OURS.items() if name in pack and fits(pack[name])}
        values["agent_id"] = self.agent(record.tenant_id, record.agent_id, record.is_bound)
        if isinstance(pack.get("action"), str):
            values["action"] = self._action(record, pack["action"])
        for name, kind in MINTED.items():
            if isinstance(pack.get(name), str):
                values[name] = self._mint(kind, record.tenant_id, pack[name])
        return values

    def _action(self, record: DecisionRecord, action: str) -> str:
        """Return the deciding policy's name for the action (its own or a pattern, "data.*"), or a public id where it has none."""
        digest = record.pack.get("policy_digest")
        known = self._actions_of(digest) if isinstance(digest, str) else ()
        return name_in_policy(action, known) or self._mint(Kind.ACTION, record.tenant_id, action)

    def _mint(self, kind: Kind, tenant_id: uuid.UUID, value: str) -> str:
        return self._ids().mint(kind, tenant_id, value)

    @staticmethod
    def _source(action: str | None) -> str:
        is_named = action is not None and not action.startswith(f"{Kind.ACTION}_")
        return f"{action.partition('.')[0]}s" if action is not None and is_named else "actions"


def public_ids_of(ids: PublicIdGenerator, record: DecisionRecord) -> list[tuple[str, str, str]]:
    """Return every public id that may appear for a decision: (public id, kind's name, what it stands for)."""
    values = [(Kind.AGENT, record.agent_id), (Kind.ACTION, record.pack.get("action"))]
    values += [(kind, record.pack.get(name)) for name, kind in MINTED.items()]
    return [
        (ids.mint(kind, record.tenant_id, value), kind.name.lower(), value)
        for kind, value in values
        if isinstance(value, str)
    ]

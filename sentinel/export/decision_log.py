"""Decisions as an OPA decision log: a gzip JSON array that is POSTed, the format that pipelines behind OPA accept.

Decisions come from the recorded feed: what a collector did not accept is sent again, in order. `erased` names the parts
that are left out of `input`.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

import orjson

from sentinel import __version__
from sentinel.export.cloud_events import DECISION, FeedEvent, messages_of
from sentinel.export.deliveries import Claim, Resend
from sentinel.export.receivers import post
from sentinel.platform.outbound.public_addresses import PublicHttpClient

BATCH = 100
ERASED = ("/input/params", "/input/resource", "/input/evidence_context")
_INPUT = ("agent_id", "action", "amount", "ledger_entry_id", "refund_id")
_RESULT = ("decision", "reason_code", "policy_label", "policy_version", "proof_id")


@dataclass(frozen=True, slots=True)
class DecisionLog:
    """The receiver that is one collector. With an empty `token` no Authorization header is sent."""

    url: str
    token: str
    client: PublicHttpClient
    deadline_seconds: float
    at_once: int = BATCH
    needs_present_state: bool = False

    def send(self, endpoint: Claim | Resend, events: Sequence[FeedEvent]) -> str | None:
        """Send all events in one request."""
        body = orjson.dumps([entry_of(event) for event in events])
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        return post(self.client, self.url, gzip.compress(body, mtime=0), headers, self.deadline_seconds)


def entry_of(event: FeedEvent) -> dict[str, Any]:
    """Return one decision as a decision log entry. That of a refused renewal has neither an amount nor ids of the ledger."""
    (message,) = messages_of(event, (DECISION,))
    data = message.data
    policy = event.policy_id
    entry: dict[str, Any] = {
        "labels": {"app": "sentinel", "id": str(event.tenant_id), "version": __version__},
        "decision_id": str(event.event_id),
        # Unique within the tenant's feed (`labels.id`).
        "req_id": event.position,
        "timestamp": event.occurred_at.astimezone(UTC).isoformat(),
        "path": f"sentinel/{policy}" if policy else "sentinel",
        "input": {"operation_id": data.get("operation_id"), **{name: data[name] for name in _INPUT if name in data}},
        "result": {name: data[name] for name in _RESULT if name in data},
        "erased": list(ERASED),
    }
    if event.trace is not None:
        entry |= {"trace_id": event.trace[:16].hex(), "span_id": event.trace[16:].hex()}
    if "agent_id" in data:
        entry["requested_by"] = data["agent_id"]
    if policy:
        entry["bundles"] = {policy: {"revision": data["policy_digest"]}}
    if "latency_ms" in data:
        entry["metrics"] = {"timer_server_handler_ns": data["latency_ms"] * 1_000_000}
    return entry

"""The row that a guard hands to its transaction; what repeats from request to request is one shared object of terms."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from sentinel.core.decision import BreakerCheck, ReservationRequest
from sentinel.core.proof import PackValues


@dataclass(frozen=True, slots=True, eq=False)
class GuardTerms:
    """The requester, the kind of operation and the policy's decision; interned, so equal terms are the same object.

    `shared` are the totals and breakers as JSON, `{"totals": […], "breakers": […]}`, or None if there are none.
    """

    tenant_id: uuid.UUID
    principal_id: uuid.UUID
    owner_operator_id: uuid.UUID | None
    bound_agent: str | None
    agent_id: str
    action: str
    risk_class: str
    scenario: str | None
    currency: str | None
    policy_id: str
    policy_version: str
    policy_label: str
    policy_digest: str
    verdict: str
    reason_code: str
    reasons: tuple[str, ...]
    required_role: str
    required_people: int
    approval_seconds: int
    permit_seconds: int
    hand_out_is_start: bool
    approvable: bool
    asks_person: bool
    shared: bytes | None
    pack_template: str
    request_template: str

    def as_input(self) -> dict[str, Any]:
        """Return the terms' fields of `sentinel.guard_input`, leaving out those with their usual value.

        Usual are `approvable` True, `asks_person` False and no `bound_agent`.
        """
        found = {name: getattr(self, name) for name in self.__slots__}
        for name, usual in (("approvable", True), ("asks_person", False), ("bound_agent", None)):
            if found[name] is usual:
                del found[name]
        return found


IDS = ("operation_id", "event_id", "second_event_id", "approval_id", "permit_id")
"""The ids that a guard may need, in order; all UUIDv7 except the permit's, which is fully random."""


class GuardRow(msgspec.Struct, eq=False):
    """One guard, decided by the policy and ready to be recorded. `limits` are the limits without totals.

    `ids` are those of IDS in that order, 16 bytes each. `params` is the canonical params, from which the request
    template restores `request`; None if it cannot. `trace` is the caller's trace and span id, 16 and 8 bytes, if it
    sent them. `packed` is the output of `batch_packing.pack_row` if the row was packed in advance; the row must not
    change afterwards.
    """

    terms: GuardTerms
    idempotency_key: str
    resource: str
    digest: str
    request: str
    salt: str
    basis: str
    facts_commitment: bytes
    once_key: str | None
    ids: bytes
    amount_minor: int | None
    limits: Sequence[ReservationRequest]
    pack_values: PackValues
    params: str | None
    elapsed_ms: int
    start_id: uuid.UUID | None
    act_seconds: int
    trace: bytes | None = None
    packed: bytes | None = None

    def as_input(self) -> dict[str, Any]:
        """Return the row of `sentinel.guard_input`, ready for JSON, without the fields of its proof pack."""
        row = {name: getattr(self, name) for name in self.__struct_fields__ if name not in _NOT_PLAIN}
        ids = {name: uuid.UUID(bytes=self.ids[16 * place : 16 * place + 16]) for place, name in enumerate(IDS)}
        return {**self.terms.as_input(), **row, **ids, "limits": [limit_fields(ask) for ask in self.limits]}


_NOT_PLAIN = ("terms", "ids", "limits", "salt", "facts_commitment", "pack_values", "trace", "packed")


def shared_json(totals: Sequence[ReservationRequest], breakers: Sequence[BreakerCheck]) -> bytes | None:
    """Return `GuardTerms.shared` for the limits that are totals and for the breakers."""
    if not totals and not breakers:
        return None
    return orjson.dumps(
        {"totals": [limit_fields(ask) for ask in totals], "breakers": [_breaker(ask) for ask in breakers]}
    )


def limit_fields(ask: ReservationRequest) -> Mapping[str, Any]:
    """Return a limit as the database takes it (`sentinel.limit_ask`)."""
    return {
        "limit_key": ask.limit_key, "subject": ask.subject, "window": ask.window, "window_seconds": ask.window_seconds,
        "bucket_seconds": ask.bucket_seconds, "zone": ask.zone, "cap_minor": ask.cap_minor, "verdict": ask.verdict,
        "reason_code": ask.reason_code,
    }  # fmt: skip


def _breaker(ask: BreakerCheck) -> Mapping[str, Any]:
    return {
        "breaker_key": ask.breaker_key, "scope": ask.scope, "target": ask.target, "window_seconds": ask.window_seconds,
        "bucket_seconds": ask.bucket_seconds, "most_operations": ask.most_operations, "most_minor": ask.most_minor,
        "declared": ask.declared,
    }  # fmt: skip

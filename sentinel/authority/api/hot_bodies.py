"""The bodies of guard, check, start and report as values, read in one pass where that is sure to be right.

The schemas of `schemas.py` are the definition. The shapes here are narrower: what they take, the schema takes to the same value,
and for all else the schema is asked (`platform/http/quick_bodies.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from sentinel.authority.api.schemas import (
    CheckRequestSchema,
    GuardRequestSchema,
    ReportRequestSchema,
    StartRequestSchema,
)
from sentinel.core.errors import InvalidInput
from sentinel.core.operation import IDENTIFIER, UNSAFE_TEXT
from sentinel.platform.http.bodies import load, without_nulls
from sentinel.platform.http.quick_bodies import BodyReader

START_STEP_KEYS = frozenset({"resource", "risk_class", "evidence_context"})
"""A body with none of these keys comes from a caller without a start step (`docs/CONTRACT.md` §2)."""

Name = Annotated[str, Meta(min_length=1, max_length=128)]
Key = Annotated[str, Meta(min_length=1, max_length=255)]
Kind = Annotated[str, Meta(min_length=1, max_length=64)]
Token = Annotated[str, Meta(min_length=1, max_length=512)]
Seconds = Annotated[int, Meta(ge=1, le=86400)]


class _Bound(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What every body has: who acts, and how."""

    agent_id: Name
    action: Name
    tenant_id: Kind | None = None
    resource: Key | None = None
    risk_class: Kind | None = None
    evidence_context: dict[str, Any] | None = None


class AskedBody(_Bound, kw_only=True):
    """What a question carries besides: the action's parameters, under either of two names."""

    params: dict[str, Any] | None = None
    context: dict[str, Any] | None = None

    def parameters(self) -> Mapping[str, Any]:
        """`params`, or `context` as its other name. Raises `InvalidInput` where both are sent."""
        if self.context is None:
            return {} if self.params is None else self.params
        if self.params is not None:
            raise InvalidInput.of("context", "is another name of params; send one of them")
        return self.context


class CheckBody(AskedBody, kw_only=True):
    """A check: `CheckRequestSchema`."""


class GuardBody(AskedBody, kw_only=True):
    """A guard: `GuardRequestSchema`."""

    idempotency_key: Key
    start_id: uuid.UUID | None = None
    act_within_seconds: Seconds | None = None

    @property
    def has_start_step(self) -> bool:
        """Whether its caller starts what it was permitted, now or later."""
        return not (
            self.start_id is None
            and self.resource is None
            and self.risk_class is None
            and self.evidence_context is None
        )


class StartBody(_Bound, kw_only=True):
    """A start: `StartRequestSchema`."""

    idempotency_key: Key
    permit_token: Token
    start_id: uuid.UUID
    act_within_seconds: Seconds | None = None


class ReportBody(_Bound, kw_only=True):
    """A report: `ReportRequestSchema`."""

    idempotency_key: Key
    outcome: Literal["success", "error"]
    error: Annotated[str, Meta(max_length=4000)] | None = None
    result: Any = None
    permit_token: Token | None = None
    report_id: uuid.UUID | None = None


def _are_identifiers(*texts: str | None) -> bool:
    """Whether each is of the alphabet of identifiers, or absent. Together, because most of the cost is in the asking."""
    return IDENTIFIER.fullmatch("".join([text for text in texts if text is not None])) is not None


def _bound(body: _Bound) -> tuple[str | None, ...]:
    return body.agent_id, body.action, body.tenant_id, body.resource, body.risk_class


_check, _guard, _start, _report = (
    CheckRequestSchema(),
    GuardRequestSchema(),
    StartRequestSchema(),
    ReportRequestSchema(),
)


def _guard_of(body: Mapping[str, Any]) -> GuardBody:
    """A guard's JSON object, read by its schema. Raises `InvalidInput`."""
    fields = load(_guard, without_nulls(body))
    if START_STEP_KEYS.isdisjoint(fields) and not START_STEP_KEYS.isdisjoint(body):
        # Null is absent, but who sends the name knows of a start step; an empty context is as good as none.
        fields["evidence_context"] = {}
    return GuardBody(**fields)


GUARD = BodyReader(GuardBody, _guard_of, lambda body: _are_identifiers(*_bound(body), body.idempotency_key))
CHECK = BodyReader(
    CheckBody, lambda body: CheckBody(**load(_check, without_nulls(body))), lambda body: _are_identifiers(*_bound(body))
)
START = BodyReader(
    StartBody, lambda body: StartBody(**load(_start, without_nulls(body))),
    lambda body: _are_identifiers(*_bound(body), body.idempotency_key, body.permit_token),
)  # fmt: skip
REPORT = BodyReader(
    ReportBody, lambda body: ReportBody(**load(_report, without_nulls(body))),
    lambda body: _are_identifiers(*_bound(body), body.idempotency_key, body.permit_token)
    and not (body.error is not None and UNSAFE_TEXT.search(body.error)),
)  # fmt: skip

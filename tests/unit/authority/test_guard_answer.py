"""What the authority answers to a guard is what is declared of the answer, no more and no less."""

from __future__ import annotations

import uuid
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import orjson
import pytest

from sentinel.authority.api.guard import to_answer
from sentinel.authority.decisions import Recorded
from sentinel.authority.engine import Caller
from sentinel.client.answers import MEMBERS, GuardAnswer, guard_answer
from sentinel.client.errors import Unreachable
from sentinel.core.moments import rfc3339
from sentinel.core.signing import PermitSigner

MOMENT = datetime(2026, 11, 21, 10, 5, 0, 123456, tzinfo=UTC)
CALLER = Caller(uuid.uuid4(), uuid.uuid4(), uuid.uuid4(), None, frozenset({"guard"}), None)
FULL = Recorded(
    seq=0, result="not_executed", operation_id=uuid.uuid4(), decision_event_id=uuid.uuid4(), decision="APPROVAL_REQUIRED",
    reason_code="over_limit", status="pending", policy_id="p", policy_version="v1", policy_label="P", resource="r",
    risk_class="standard", digest="sha256:" + "0" * 64, request=None, permit_id=uuid.uuid4(), permit_expires_at=MOMENT + timedelta(minutes=2),
    approval_id=uuid.uuid4(), approval_expires_at=MOMENT + timedelta(hours=1), approver="ann", approved_at=MOMENT,
    outcome="error", pack='{"proof_id":"pf_x","latency_ms":7,"decision":"ALLOW"}', pack_hash="sha256:x", decided_at=MOMENT,
    start_event_id=uuid.uuid4(), start_hash="sha256:y", start_duplicate=True,
)  # fmt: skip
OPTIONAL = ("permit_id", "permit_expires_at", "approval_id", "approval_expires_at", "approver", "approved_at", "outcome",
            "start_event_id", "start_hash", "start_duplicate")  # fmt: skip


def answered(recorded: Recorded) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(to_answer(CALLER, recorded, PermitSigner(["unit" * 8])))
    return found


def read(body: dict[str, Any]) -> GuardAnswer:
    return guard_answer(body, action="a", agent_id="g", idempotency_key="k", replayed=False)


def test_every_declared_member_is_answered_and_no_other() -> None:
    assert set(answered(FULL)) == set(MEMBERS)


def test_what_is_always_there_is_answered_of_a_bare_denial_and_nothing_else() -> None:
    bare: dict[str, Any] = dict.fromkeys(OPTIONAL)
    bare |= {"result": "decided", "decision": "DENY", "status": "denied"}
    assert set(answered(msgspec.structs.replace(FULL, **bare))) == {
        name for name, member in MEMBERS.items() if member.required
    }


def test_the_client_reads_every_member_as_it_was_answered() -> None:
    body = answered(FULL) | {"status": "approved"}
    found = read(body)
    assert None not in [getattr(found, one.name) for one in fields(found)]
    for name in MEMBERS.keys() - {"start"}:
        value = getattr(found, name)
        assert (value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value) == body[name], name
    assert found.start is not None and found.start.duplicate is True


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("value", [["x"], -1, 1.5])
def test_a_member_of_another_type_is_no_answer(name: str, value: Any) -> None:
    with pytest.raises(Unreachable):
        read(answered(FULL) | {"status": "approved"} | {name: value})


@pytest.mark.parametrize("hours", [0, 2, -5])
def test_a_time_of_any_zone_is_written_in_utc_with_microseconds(hours: int) -> None:
    whole = datetime(2026, 11, 21, 10, 5, tzinfo=UTC).astimezone(timezone(timedelta(hours=hours)))
    assert rfc3339(whole) == "2026-11-21T10:05:00.000000Z"
    assert rfc3339(MOMENT.astimezone(timezone(timedelta(hours=hours)))) == "2026-11-21T10:05:00.123456Z"

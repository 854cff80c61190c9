"""What is known of a program's key: ours, another's, refused, not tried, or asked of something that is no authority."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel.client import KeyHolder, NoAnswerKind, Rejected, Unreachable
from worker.key_check import KeyCheck, KeyFaultKind

TENANT = uuid.uuid4()


def problem(status: int) -> Rejected:
    """A problem document."""
    return Rejected(status=status, type="about:blank", title="no", detail="no")


ANSWERS: dict[str, tuple[Any, KeyFaultKind | None, str]] = {
    "ours": (KeyHolder(str(TENANT), "shop", "agent"), None, ""),
    "ours, of no one agent": (KeyHolder(str(TENANT), "shop", None), None, ""),
    "ours, and may ask": (KeyHolder(str(TENANT), "shop", "agent", ("guard", "report")), None, ""),
    "ours, and may not ask": (
        KeyHolder(str(TENANT), "shop", "agent", ("check",)),
        KeyFaultKind.MISSING_SCOPE,
        '"guard"',
    ),
    "of another tenant": (KeyHolder(str(uuid.uuid4()), "other", "agent"), KeyFaultKind.ANOTHERS, 'tenant "other"'),
    "of another agent": (KeyHolder(str(TENANT), "shop", "other"), KeyFaultKind.ANOTHERS, 'agent "other"'),
    "refused": (problem(401), KeyFaultKind.REFUSED, "THE_KEY"),
    "no such page": (problem(404), KeyFaultKind.NO_AUTHORITY, "SENTINEL_URL"),
    "no such method": (problem(405), KeyFaultKind.NO_AUTHORITY, "SENTINEL_URL"),
    "silence": (Unreachable(NoAnswerKind.TIMEOUT, "no answer in time"), KeyFaultKind.SILENCE, "no answer"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_only_a_key_that_an_authority_takes_as_ours_is_without_fault(name: str) -> None:
    answer, kind, said = ANSWERS[name]

    def key() -> KeyHolder:
        if isinstance(answer, Exception):
            raise answer
        holder: KeyHolder = answer
        return holder

    client: Any = SimpleNamespace(key=key)
    check = KeyCheck(client, variable="THE_KEY", tenant_id=TENANT, tenant=lambda: "shop", agent_id="agent")
    fault = check.fault()
    if kind is None:
        assert fault is None
        return
    assert fault is not None and fault.kind is kind and said in fault.text
    from_authority = (KeyFaultKind.ANOTHERS, KeyFaultKind.MISSING_SCOPE, KeyFaultKind.REFUSED)
    assert fault.is_from_authority is (kind in from_authority)

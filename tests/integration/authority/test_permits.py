"""G10, G11: a permit starts exactly what was guarded, once, in time."""

from __future__ import annotations

import base64
import itertools
import uuid
from typing import Any

import pytest

from tests import mutants
from tests.support.fixtures import Fixtures, add_tenant, guard_body, make_fixtures, start_body, unique
from tests.support.harness import at_once, desks, dump, let_permits_expire, scaled

pytestmark = pytest.mark.usefixtures("patient")
Body = dict[str, Any]


def begin(fixtures: Fixtures, body: Body, *, key: str | None = None) -> Any:
    """One start over HTTP, from any thread."""
    headers = {"X-API-Key": key or fixtures.key}
    return fixtures.app.test_client().post("/api/sentinel/action/guard/start", json=body, headers=headers)


def a_permit(fixtures: Fixtures, **over: Any) -> tuple[Body, Body]:
    """(guard request, start request) of an allowed refund."""
    body = guard_body(value=1, params={"account_ref": unique("acct")}, **over)
    return body, start_body(body, fixtures.guard(body))


# G10


def flipped(token: str, byte: int) -> str:
    """The token with one bit of one byte of its payload or signature changed."""
    head, tail = token.split(".")
    part, other = (head, tail) if byte >= 0 else (tail, head)
    raw = bytearray(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    raw[byte] ^= 1
    text = base64.urlsafe_b64encode(bytes(raw)).rstrip(b"=").decode()
    return f"{text}.{other}" if byte >= 0 else f"{other}.{text}"


def tampered(fixtures: Fixtures, request: Body) -> dict[str, tuple[Body, str]]:
    """By name: (altered start request, key that sends it)."""
    other_body, other = a_permit(fixtures)
    _, foreign_key, _ = add_tenant(fixtures.url, unique("tenant").replace("_", "-"))
    theirs = fixtures.post("action/guard", other_body, key=foreign_key).get_json()
    token = request["permit_token"]
    changes: dict[str, Body] = {
        "another action": {"action": "refund.create2"},
        "another agent": {"agent_id": "another-agent"},
        "another resource": {"resource": "refund/other"},
        "no resource": {"resource": None},
        "another risk class": {"risk_class": "high"},
        "another guarded key": {"idempotency_key": other["idempotency_key"]},
        "an unknown key": {"idempotency_key": unique("nobody")},
        "another operation's permit": {"permit_token": other["permit_token"]},
        "another tenant's permit of the same operation": {"permit_token": theirs["permit_token"]},
        "another permit id": {"permit_token": flipped(token, 0)},
        "another digest": {"permit_token": flipped(token, 47)},
        "another signature": {"permit_token": flipped(token, -1)},
        "a cut token": {"permit_token": token[:-1]},
        "a token with more": {"permit_token": token + "."},
        "no signature": {"permit_token": token.split(".")[0]},
        "text": {"permit_token": "let me in"},
    }
    made = {name: (request | change, fixtures.key) for name, change in changes.items()}
    return made | {"another tenant's key": (request, foreign_key)}


def started_although_tampered(fixtures: Fixtures) -> list[str]:
    """Which alterations of a start request were not refused; the checker of G10."""
    _, request = a_permit(fixtures)
    attempts = tampered(fixtures, request)
    before, found = dump(fixtures.admin), []
    for name, (altered, key) in attempts.items():
        answer = begin(fixtures, altered, key=key)
        if answer.status_code not in (400, 403, 409, 410):
            found.append(f"{name}: {answer.status_code}")
    if dump(fixtures.admin) != before:
        found.append("something changed")
    if begin(fixtures, request).status_code != 200:
        found.append("the true request no longer starts")
    return found


def test_a_start_that_differs_from_what_was_guarded_in_any_field_is_refused_and_leaves_the_permit_good(
    fixtures: Fixtures,
) -> None:
    assert started_although_tampered(fixtures) == []
    assert fixtures.broken_invariants() == []


def test_mutant_that_compares_nothing_starts_tampered_requests_and_is_caught(database_url: str) -> None:
    fixtures = make_fixtures(database_url)
    try:
        mutants.cut(fixtures, "sentinel.judge_start", "if differs is not null", "if false")
        assert any("another resource" in name for name in started_although_tampered(fixtures))
    finally:
        fixtures.close()


def test_what_was_guarded_cannot_be_altered_in_the_database_by_the_authority(fixtures: Fixtures) -> None:
    import psycopg

    a_permit(fixtures)
    with fixtures.as_role("sentinel_authority") as connection:
        for column in ("digest", "amount_minor", "currency", "resource", "agent_id", "request"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"update sentinel.operation_rows set {column} = {column}".encode())


# G11


def started_more_than_once(fixtures: Fixtures, number: int, contenders: int = 16) -> list[str]:
    """Lets many redeem each of `number` permits at once; what is wrong afterwards."""
    with desks(fixtures, 2) as bench:
        permits = []
        for _ in range(number):
            body = guard_body(value=1, params={"account_ref": unique("acct")})
            permits.append((body, bench[0].guard(body)))
        turn = itertools.cycle(bench)
        jobs = [
            lambda desk=next(turn), body=body, permit=permit: desk.start(body, permit)
            for body, permit in permits for _ in range(contenders)
        ]  # fmt: skip
        answers = at_once(jobs)
    won = sum(getattr(answer, "result", "") == "started" for answer in answers)
    lost = sum(getattr(answer, "code", "") == "already-started" for answer in answers)
    starts = fixtures.one("select count(*) from sentinel.events where kind = 'start'")
    found = [] if (won, starts) == (number, number) else [f"{won} winners, {starts} start events for {number} permits"]
    if won + lost != len(answers):
        found.append("an answer is neither a start nor a refusal")
    return found + fixtures.broken_invariants()


def test_16_concurrent_starts_of_one_permit_have_one_winner(fixtures: Fixtures) -> None:
    number = scaled(5)
    print(f"N={16 * number}")
    assert started_more_than_once(fixtures, number) == []


def test_mutant_that_reads_then_writes_starts_twice_and_is_caught(database_url: str) -> None:
    fixtures = make_fixtures(database_url)
    try:
        mutants.cut(
            fixtures,
            "sentinel.start_operations",
            "array(select sentinel.operation_lock(a.tenant_id, a.idempotency_key) from unnest(asks) as a)",
            "array[]::bigint[]",
        )
        mutants.cut(fixtures, "sentinel.lock_operations", " for update of s", "")
        mutants.cut(fixtures, "sentinel.write_starts", "and t.status in ('allowed', 'approved')", "")
        mutants.meet_before(fixtures.admin, "sentinel.judge_start", "e := sentinel.start_event(")
        assert any("winners" in found for found in started_more_than_once(fixtures, 1))
    finally:
        fixtures.close()


def test_the_same_start_id_gets_the_same_receipt_however_often_and_however_concurrent(fixtures: Fixtures) -> None:
    _, request = a_permit(fixtures)
    answers = at_once([lambda: begin(fixtures, request) for _ in range(16)])
    assert {answer.status_code for answer in answers} == {200}  # type: ignore[union-attr]
    receipts = [answer.get_json() for answer in answers]  # type: ignore[union-attr]
    assert len({(r["start_event_id"], r["start_hash"]) for r in receipts}) == 1
    assert sorted(r["duplicate"] for r in receipts) == [False] + [True] * 15
    late = begin(fixtures, request | {"start_id": str(uuid.uuid4())})
    assert (late.status_code, late.get_json()["type"]) == (409, "urn:sentinel:problem:already-started")


def test_a_repeated_start_gets_its_receipt_even_after_the_permits_end_and_the_report(fixtures: Fixtures) -> None:
    body, request = a_permit(fixtures)
    first = begin(fixtures, request).get_json()
    fixtures.report(body)
    again = begin(fixtures, request).get_json()
    assert (again["start_event_id"], again["duplicate"]) == (first["start_event_id"], True)


@pytest.mark.parametrize("seconds, status", [(-30, 200), (0.001, 410), (30, 410)])
def test_a_permit_ends_by_the_database_clock(fixtures: Fixtures, seconds: float, status: int) -> None:
    _, request = a_permit(fixtures)
    let_permits_expire(fixtures, seconds=seconds)
    answer = begin(fixtures, request)
    assert answer.status_code == status
    if status == 410:
        assert answer.get_json()["type"] == "urn:sentinel:problem:permit-expired"
        fixtures.run_housekeeping()
        assert begin(fixtures, request).status_code == 410, "also after housekeeping took it back"
    assert fixtures.broken_invariants() == []


def test_a_renewed_permit_is_another_one_and_the_old_token_stays_dead(fixtures: Fixtures) -> None:
    body, request = a_permit(fixtures)
    let_permits_expire(fixtures)
    renewed = fixtures.guard(body)
    assert renewed["status"] == "allowed"
    assert renewed["permit_token"] != request["permit_token"]
    assert begin(fixtures, request).status_code == 403
    assert begin(fixtures, start_body(body, renewed)).status_code == 200
    assert fixtures.broken_invariants() == []


def test_an_unstarted_permit_is_delivered_again_unchanged(fixtures: Fixtures) -> None:
    body = guard_body()
    first, again = fixtures.guard(body), fixtures.guard(body)
    assert (again["permit_token"], again["permit_expires_at"]) == (first["permit_token"], first["permit_expires_at"])


@pytest.mark.parametrize("value, status", [(200, "pending"), (5000, "denied")])
def test_nothing_starts_without_a_permit(fixtures: Fixtures, value: int, status: str) -> None:
    _, request = a_permit(fixtures)
    body = guard_body(value=value)
    answer = fixtures.guard(body)
    assert (answer["status"], "permit_token" in answer) == (status, False)
    refused = begin(fixtures, start_body(body, answer | {"permit_token": request["permit_token"]}))
    assert refused.status_code in (403, 409)
    assert fixtures.one("select count(*) from sentinel.events where kind = 'start'") == 0


def test_a_retired_secret_still_reads_what_it_signed() -> None:
    from sentinel.core.signing import PermitSigner

    tenant, permit, digest = uuid.uuid4(), uuid.uuid4(), "sha256:" + "a" * 64
    old, new = "o" * 32, "n" * 32
    token = PermitSigner([old]).issue(tenant, permit, digest)
    slip = PermitSigner([new, old]).read(tenant, token)
    assert slip is not None and slip.permit_id == permit
    assert PermitSigner([new]).read(tenant, token) is None
    assert PermitSigner([new, old]).issue(tenant, permit, digest) != token

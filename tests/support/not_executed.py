"""What tests of a person's "not executed" share: operations in doubt, the word itself, and every way to start after it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

from sentinel.authority.halts import lift_halt, list_halts
from sentinel.authority.housekeeping import run_housekeeping
from sentinel.authority.in_doubt import resolve_in_doubt
from tests.support.fixtures import Fixtures, guard_body, start_body, unique
from tests.support.harness import actor, let_leave_end

Body = dict[str, Any]
Way = Callable[[Fixtures, Body, Body, str], Any]
PROBLEM = "urn:sentinel:problem:resolved-not-executed"


def since(fixtures: Fixtures, body: Body) -> datetime | None:
    """When the doubt of now began; None where it is not in doubt."""
    found: datetime | None = fixtures.one(
        "select s.in_doubt_since from sentinel.operation_states s join sentinel.operations o using (tenant_id, operation_id)"
        " where o.idempotency_key = %s", body["idempotency_key"])  # fmt: skip
    return found


def say(fixtures: Fixtures, body: Body, *, executed: bool) -> None:
    """An administrator looks at it, and says what became of it."""
    say_of(fixtures, body, since(fixtures, body), executed=executed)


def say_of(fixtures: Fixtures, body: Body, doubt: datetime | None, *, executed: bool) -> None:
    """An administrator says what became of it, of the doubt that began at that moment; None: whichever it is in."""
    operation = fixtures.one(
        "select operation_id from sentinel.operations where idempotency_key = %s", body["idempotency_key"]
    )
    resolve_in_doubt(
        fixtures.console_pool, actor(fixtures, "admin"), operation, executed=executed, evidence="looked it up",
        in_doubt_since=doubt,
    )  # fmt: skip


def lift_all(fixtures: Fixtures) -> None:
    """A person has looked."""
    for halt in list_halts(fixtures.console_pool, fixtures.tenant_id):
        lift_halt(fixtures.console_pool, actor(fixtures, "admin"), halt.halt_id, reason="found out")


def state(fixtures: Fixtures, body: Body) -> Body:
    """The operation's state."""
    return dict(fixtures.one(
        "select to_jsonb(s) from sentinel.operation_states s join sentinel.operations o using (tenant_id, operation_id)"
        " where o.idempotency_key = %s", body["idempotency_key"]))  # fmt: skip


def begun(fixtures: Fixtures, **over: Any) -> tuple[Body, Body, str]:
    """(request, answer with its permit, start id) of an operation that was started and fell in doubt."""
    body, start_id = guard_body(value=40, params={"account_ref": unique("acct")}), str(uuid.uuid4())
    answer = fixtures.guard(body)
    assert fixtures.post("action/guard/start", {**start_body(body, answer, start_id), **over}).status_code == 200
    run_housekeeping(fixtures.authority.pool, 0)
    return body, answer, start_id


def ended(fixtures: Fixtures) -> tuple[Body, Body, str]:
    """The same, and a person said "not executed"."""
    body, answer, start_id = begun(fixtures)
    let_leave_end(fixtures)
    say(fixtures, body, executed=False)
    return body, answer, start_id


def alone(fixtures: Fixtures, body: Body, answer: Body, start_id: str) -> Any:
    return fixtures.post("action/guard/start", start_body(body, answer, start_id)).get_json()


def in_a_batch(fixtures: Fixtures, body: Body, answer: Body, start_id: str) -> Any:
    other = guard_body(value=1)
    fine = start_body(other, fixtures.guard(other))
    found = fixtures.post(
        "action/guard/start/batch", {"requests": [fine, start_body(body, answer, start_id)]}
    ).get_json()["answers"]  # fmt: skip
    assert found[0]["body"]["started"] is True, "the neighbour is started"
    return found[1]["body"]


def enclosed(fixtures: Fixtures, body: Body, answer: Body, start_id: str) -> Any:
    return fixtures.post("action/guard", {**body, "start_id": start_id}).get_json()


def enclosed_in_a_batch(fixtures: Fixtures, body: Body, answer: Body, start_id: str) -> Any:
    requests = [{**body, "start_id": start_id}, guard_body(value=1)]
    return fixtures.post("action/guard/batch", {"requests": requests}).get_json()["answers"][0]["body"]


def replayed(fixtures: Fixtures, body: Body, answer: Body, start_id: str) -> Any:
    return fixtures.guard(body)


WAYS: list[Way] = [alone, in_a_batch, enclosed, enclosed_in_a_batch, replayed]


def says_go(found: Any) -> bool:
    """Whether a caller could act on this answer."""
    return bool(found.get("started") or "start" in found or "permit_token" in found)


def go_aheads(fixtures: Fixtures) -> int:
    """The checker: how many of all ways, by the same start id and by others, get a go-ahead after "not executed"."""
    body, answer, start_id = ended(fixtures)
    asked = [(way, one) for way in WAYS for one in (start_id, str(uuid.uuid4()))]
    return sum(says_go(way(fixtures, body, answer, one)) for way, one in asked)

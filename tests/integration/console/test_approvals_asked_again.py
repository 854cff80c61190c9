"""What was asked before is shown where it is asked again, on the card, over HTTP and on the command line."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from sentinel.authority.guard import decided_row
from sentinel.cli.approvals import group
from sentinel.core.operation import build_operation
from tests.support.commits import record_decisions
from tests.support.fixtures import guard_body


def asked_twice(fixtures: Any, *who: Any) -> tuple[uuid.UUID, uuid.UUID]:
    """An approval that `who` gave under "one approver", and the one that asks two administrators for the same."""
    caller, body = fixtures.caller(), guard_body(value=200)
    operation = build_operation(
        **{name: body[name] for name in ("idempotency_key", "agent_id", "action", "resource", "params")}
    )

    def ask(**terms: Any) -> uuid.UUID:
        row = decided_row(fixtures.authority, caller, operation, has_start_step=True, elapsed_ms=0)
        row.terms = replace(row.terms, **terms)
        (answer,) = record_decisions(fixtures.authority.pool, [row])
        assert answer.status == "pending" and answer.approval_id is not None
        return answer.approval_id

    first = ask(required_role="approver", required_people=len(who))
    for person in who:
        assert person.approve(first).status_code == 200
    return first, ask(required_role="admin", required_people=2 + len(who) - 1)


@pytest.fixture
def two_approvals(fixtures: Any) -> tuple[Any, uuid.UUID, uuid.UUID]:
    """An approver spoke, and two administrators are asked now."""
    ann = fixtures.person("ann")
    return ann, *asked_twice(fixtures, ann)


def test_the_card_shows_who_spoke_before_and_that_it_does_not_count(fixtures: Any, two_approvals: Any) -> None:
    _, first, second = two_approvals
    page = fixtures.browser("eve", "admin").get(f"/ops/approvals/{second}").get_data(as_text=True)
    assert "Earlier votes" in page and "ann@demo.local" in page and "does not count here" in page
    assert f'href="/ops/approvals/{first}"' in page
    assert "0 of 2 people have approved" in page
    assert "Earlier votes" not in fixtures.browser("kim").get(f"/ops/approvals/{first}").get_data(as_text=True)


def test_the_api_tells_the_earlier_votes_and_the_approval_they_belong_to(two_approvals: Any) -> None:
    ann, first, second = two_approvals
    shown = ann.get(f"/ops/api/approvals/{second}").json
    assert (shown["follows"], shown["approvals_given"], shown["votes"]) == (str(first), 0, [])
    (before,) = shown["earlier_votes"]
    assert (before["operator"], before["verdict"], before["required_role"], before["required_people"], before["counts"]) == (
        "ann@demo.local", "approve", "approver", 1, False)  # fmt: skip
    assert "follows" not in ann.get(f"/ops/api/approvals/{first}").json


def test_the_command_line_tells_them_too(fixtures: Any, two_approvals: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, first, second = two_approvals
    monkeypatch.setenv("SENTINEL_DATABASE_URL", fixtures.url)
    monkeypatch.setenv("SENTINEL_SECRET_KEYS", "a-secret-for-tests-0123456789abcdef")
    told = CliRunner().invoke(group, ["show", str(second)])
    assert told.exit_code == 0, told.output
    assert "ann@demo.local, on an earlier approval (1 with the role approver needed): approve" in told.output
    assert "does not count here" in told.output
    data = json.loads(CliRunner().invoke(group, ["show", str(second), "--json"]).output)
    assert (data["follows"], [vote["counts"] for vote in data["earlier_votes"]]) == (str(first), [False])
    assert CliRunner().invoke(group, ["show", str(uuid.uuid4())]).exit_code != 0


def test_an_earlier_vote_that_fits_is_counted_where_it_is_shown(fixtures: Any) -> None:
    eve, zoe = fixtures.person("eve", "admin"), fixtures.person("zoe", "admin")
    _, second = asked_twice(fixtures, eve)
    shown = eve.get(f"/ops/api/approvals/{second}").json
    assert (shown["approvals_given"], shown["required_people"], shown["earlier_votes"][0]["counts"]) == (1, 2, True)
    assert "1 of 2 people have approved" in fixtures.browser("kim").get(f"/ops/approvals/{second}").get_data(
        as_text=True
    )
    assert zoe.approve(second).json == {"result": "approved", "approvals_given": 2, "people_required": 2}
    assert fixtures.sql("select decided_by from sentinel.approvals where approval_id = %s", second) == [
        ("eve@demo.local, zoe@demo.local",)
    ]

"""Who is woken by a person's decision: who waits for a person, once, and nobody else; also by one that came while a batch held the row."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from sentinel.client import NoAnswerKind, Rejected, Unreachable
from tests.support.fake_authority import FakeAuthority
from tests.support.ledger_fixtures import LedgerFixtures, new_row
from worker.refunds import agent as loop
from worker.refunds.concurrency import LONGEST_HOLD_SECONDS
from worker.refunds.ledger import Ledger
from worker.refunds.rows import Change, LedgerEvent, LedgerState


def wait_for(fixtures: LedgerFixtures, waiting_for: str, approval_id: uuid.UUID) -> None:
    """The row r, claimed a moment ago, waits for an answer to this question."""
    fixtures.admin.execute(
        "update refunds.ledger_entries set status = 'APPROVAL_REQUIRED', last_event = 'approval_required',"
        " event_number = event_number + 1, approval_id = %s, waiting_for = %s, next_attempt_at = 'infinity', lease_until = null",
        [approval_id, waiting_for],
    )


@pytest.mark.parametrize(("waiting_for", "woken"), [("operator", 1), ("customer", 0)])
def test_a_decision_wakes_who_waits_for_a_person_and_hurries_no_customer(
    ledger_fixtures: LedgerFixtures, waiting_for: str, woken: int
) -> None:
    approval_id = uuid.uuid4()
    ledger_fixtures.add(new_row("r"))
    ledger_fixtures.ledger.claim(1)
    wait_for(ledger_fixtures, waiting_for, approval_id)
    assert ledger_fixtures.ledger.wake_decided([str(approval_id)]) == woken
    assert len(ledger_fixtures.ledger.claim(1)) == woken


@pytest.mark.parametrize("seconds", [90, LONGEST_HOLD_SECONDS], ids=["a minute and a half", "as long as a row is held"])
def test_a_decision_made_while_a_batch_held_its_row_is_learnt_although_later_ones_were(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, seconds: float
) -> None:
    """Its card is on people's screens before the row waits for them: the batch writes what became of it at its end."""
    approval_id, row = uuid.uuid4(), new_row("r")
    ledger_fixtures.add(row)
    ledger_fixtures.admin.execute("update refunds.ledger_entries set created_at = created_at - interval '1 hour'")
    ledger_fixtures.ledger.claim(1)
    now = ledger_fixtures.ledger.now()
    authority.decided.append(
        {"request_id": str(approval_id), "status": "approved", "approver": "a", "reason": "r", "agent_id": row.agent_id,
         "action": row.action, "decided_at": (now - timedelta(seconds=seconds)).isoformat()}
    )  # fmt: skip
    ledger_fixtures.ledger.move_cursor(row.agent_id, now)
    wait_for(ledger_fixtures, "operator", approval_id)
    with ledger_fixtures.agent(authority.url) as agent:
        assert agent._fetch_approvals() is None
    assert len(ledger_fixtures.ledger.claim(1)) == 1


def test_a_decision_made_after_the_clock_was_set_back_is_learnt_although_later_ones_were(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    """As after a failover to a server whose clock is right. The finding: the cursor stayed ahead, and the row waited on."""
    approval_id, row = uuid.uuid4(), new_row("r")
    ledger_fixtures.add(row)
    ledger_fixtures.ledger.claim(1)
    now = ledger_fixtures.ledger.now()
    for request_id, decided_at in ((approval_id, now), (uuid.uuid4(), now + timedelta(hours=1))):
        authority.decided.append(
            {"request_id": str(request_id), "status": "approved", "approver": "a", "reason": "r", "agent_id": row.agent_id,
             "action": row.action, "decided_at": decided_at.isoformat()}
        )  # fmt: skip
    ledger_fixtures.admin.execute(
        "insert into refunds.approval_cursors values (refunds.default_tenant(), %s, %s)",
        [row.agent_id, now + timedelta(hours=1)],
    )
    wait_for(ledger_fixtures, "operator", approval_id)
    with ledger_fixtures.agent(authority.url) as agent:
        assert agent._fetch_approvals() is None
    assert len(ledger_fixtures.ledger.claim(1)) == 1
    assert ledger_fixtures.one("select since <= clock_timestamp() from refunds.approval_cursors")


def test_a_row_whose_question_is_still_open_after_its_end_is_not_asked_about_again_at_once(
    ledger_fixtures: LedgerFixtures,
) -> None:
    """The authority's database is a minute behind the ledger's. The finding: the row was claimed without a pause until then."""
    ledger_fixtures.add(new_row("r"))
    [row] = ledger_fixtures.ledger.claim(1)
    before = ledger_fixtures.ledger.now()
    end = before - timedelta(minutes=1)
    waiting = Change(row, LedgerState.GUARDING, LedgerEvent.APPROVAL_REQUIRED, due_at=end.isoformat())
    assert ledger_fixtures.ledger.apply([waiting])
    is_left = ledger_fixtures.ledger.claim(1) == []
    assert is_left or ledger_fixtures.ledger.now() > before + timedelta(seconds=10), "its pause is not over"
    due = "select next_attempt_at between %s + interval '1 second' and clock_timestamp() + interval '10 seconds' from refunds.ledger_entries"
    assert ledger_fixtures.one(due, before)


def test_so_far_back_is_looked_now_and_then_and_not_at_every_poll(
    ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlaps: list[float] = []
    monkeypatch.setattr(Ledger, "approvals_wanted_since", lambda self, agent_id, seconds: overlaps.append(seconds))
    with ledger_fixtures.agent("http://127.0.0.1:9", lease_seconds=30.0) as agent:
        for _ in range(3):
            agent._fetch_approvals()
        monkeypatch.setattr(agent, "_looked_back_at", agent._looked_back_at - loop._LOOK_BACK_EVERY_SECONDS)
        agent._fetch_approvals()
    assert overlaps == [690.0, 60.0, 60.0, 690.0]


def test_decisions_are_wanted_only_while_a_row_waits_for_a_person(ledger_fixtures: LedgerFixtures) -> None:
    """The finding: with a cursor they always were, and an idle worker asked for them twice a second for ever."""
    row, ledger = new_row("r"), ledger_fixtures.ledger
    ledger_fixtures.add(row)
    ledger.claim(1)
    assert ledger.approvals_wanted_since(row.agent_id, 60.0) is None
    ledger.move_cursor(row.agent_id, ledger.now())
    assert ledger.approvals_wanted_since(row.agent_id, 60.0) is None
    wait_for(ledger_fixtures, "operator", uuid.uuid4())
    assert ledger.approvals_wanted_since(row.agent_id, 60.0) is not None


@pytest.mark.parametrize(
    ("error", "is_closed"),
    [
        (Rejected(status=403, type="forbidden", title="Forbidden", detail="the key lacks the scope approvals:read"), True),
        (Rejected(status=401, type="unauthorized", title="Unauthorized", detail="unknown key"), False),
        (Unreachable(NoAnswerKind.TIMEOUT, "no answer in time"), False),
    ],
    ids=["this call to this key", "the key", "no answer"],
)  # fmt: skip
def test_a_key_that_may_not_read_approvals_does_not_open_the_circuit_breaker(
    ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch, error: Exception, is_closed: bool
) -> None:
    """The finding: its worker crawled one row at a time and showed `authority_unreachable`, although its rows were answered."""
    ledger_fixtures.add(new_row("r"))
    ledger_fixtures.ledger.claim(1)
    wait_for(ledger_fixtures, "operator", uuid.uuid4())
    with ledger_fixtures.agent("http://127.0.0.1:9") as agent:

        def refused(*_: object) -> None:
            raise error

        monkeypatch.setattr(agent._client, "approvals_since", refused)
        agent._poll_approvals()
        assert agent._circuit_breaker.is_closed is is_closed

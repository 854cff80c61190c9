"""Who is woken by a person's decision: who waits for a person, once, and nobody else."""

from __future__ import annotations

import uuid

import pytest

from tests.support.ledger_fixtures import LedgerFixtures, new_row


@pytest.mark.parametrize(("waiting_for", "woken"), [("operator", 1), ("customer", 0)])
def test_a_decision_wakes_who_waits_for_a_person_and_hurries_no_customer(
    ledger_fixtures: LedgerFixtures, waiting_for: str, woken: int
) -> None:
    approval_id = uuid.uuid4()
    ledger_fixtures.add(new_row("r"))
    ledger_fixtures.ledger.claim(1)
    ledger_fixtures.admin.execute(
        "update refunds.ledger_entries set status = 'APPROVAL_REQUIRED', last_event = 'approval_required',"
        " event_number = event_number + 1, approval_id = %s, waiting_for = %s, next_attempt_at = 'infinity', lease_until = null",
        [approval_id, waiting_for],
    )
    assert ledger_fixtures.ledger.wake_decided([str(approval_id)]) == woken
    assert len(ledger_fixtures.ledger.claim(1)) == woken

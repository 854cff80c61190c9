"""What a failed call says something about: every status and every way of no answer, and what becomes of the row."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest

from sentinel.client import KeyConflict, NoAnswerKind, Rejected, Unreachable
from sentinel.client.calls import _content
from sentinel.client.transport import RawResponse
from tests.unit.worker.test_worker_parts import row
from worker.refunds import transitions
from worker.refunds.rows import Change, LedgerEvent, ReleaseLease
from worker.refunds.transitions import CODES, STATUSES, FailureScope, RetryPolicy, failure_scope, is_outside

PATIENCE = RetryPolicy(3, 1.0, 60.0, random.Random(1))
ABOUT_THE_ROW = {400, 409, 410, 413, 422}
"""Written down by hand: a status that is added to the table without a thought is noticed here."""
ANSWERED = [status for status in range(100, 600) if status != 200]


def failure(status: int, code: str = "x") -> Unreachable | Rejected:
    """What the client makes of an answer with this status and a problem document."""
    body = f'{{"type": "urn:sentinel:problem:{code}", "title": "t", "detail": "d"}}'.encode()
    try:
        _content(RawResponse(status, "application/problem+json", None, False, body))
    except (Unreachable, Rejected) as error:
        return error
    raise AssertionError(status)


def test_of_all_statuses_just_five_are_about_the_row() -> None:
    found = {status for status in ANSWERED if failure_scope(failure(status)) is FailureScope.ROW}
    assert found == ABOUT_THE_ROW
    assert {status for status, what in STATUSES.items() if what is FailureScope.ROW} == ABOUT_THE_ROW


@pytest.mark.parametrize("kind", NoAnswerKind)
def test_no_answer_of_any_kind_is_about_the_outside(kind: NoAnswerKind) -> None:
    assert is_outside(Unreachable(kind, "d"))


def test_a_refused_permit_is_about_the_row_and_a_refused_key_is_not() -> None:
    assert failure_scope(failure(403, "permit-refused")) is FailureScope.ROW
    assert failure_scope(failure(403, "forbidden")) is FailureScope.OUTSIDE
    assert set(CODES) == {"permit-refused"}


def outcomes(**over: Any) -> dict[int, Change | ReleaseLease]:
    """Status → what becomes of a row whose guard was answered with it, at its last attempt."""
    last = row(attempts=PATIENCE.max_attempts - 1, waits=500, **over)
    return {status: transitions.after_no_answer(last, failure(status), PATIENCE) for status in ANSWERED}


def test_what_is_outside_never_ends_a_row_nor_counts_an_attempt() -> None:
    found = {status: step for status, step in outcomes().items() if status not in ABOUT_THE_ROW}
    assert all(isinstance(step, Change) and step.event is LedgerEvent.PUT_BACK for step in found.values())
    assert all(isinstance(step, Change) and step.failures == 0 and step.outside for step in found.values())
    print(f"0 of {len(found)} statuses cost a row an attempt")


def test_a_row_that_may_have_started_stays_held_whatever_is_outside() -> None:
    found = {
        status: step
        for status, step in outcomes(start_id=uuid.uuid4(), may_be_started=True).items()
        if status not in ABOUT_THE_ROW
    }
    assert all(isinstance(step, ReleaseLease) and step.outside for step in found.values())


def test_a_refusal_of_the_row_ends_it_at_once_with_the_reason() -> None:
    for status in sorted(ABOUT_THE_ROW):
        step = outcomes()[status]
        assert isinstance(step, Change)
        assert step.event is LedgerEvent.GAVE_UP
        assert (step.last_error or "").startswith("rejected_by_authority")
    conflict = KeyConflict(status=422, type="x", title="t", detail="d")
    ended = transitions.after_no_answer(row(), conflict, PATIENCE)
    assert isinstance(ended, Change)
    assert ended.last_error == (
        "key_conflict: 422 t: d If another key took it, revoke that key; to pay this refund, enter it under another ledger entry id"
    )
    long = KeyConflict(status=422, type="x", title="t", detail="d" * 500)
    told = transitions.after_no_answer(row(), long, PATIENCE)
    assert isinstance(told, Change) and (told.last_error or "").endswith("under another ledger entry id")


@pytest.mark.parametrize("begun", [{"may_be_started": True}, {"is_begun_outside": True}], ids=["started", "outside"])
@pytest.mark.parametrize("status, kind", [(422, KeyConflict), (400, Rejected)])
def test_a_row_that_may_have_been_paid_is_not_to_be_entered_anew_whatever_refuses_its_question(
    status: int, kind: type[Rejected], begun: dict[str, bool]
) -> None:
    refused = kind(status=status, type="x", title="t", detail="d" * 500)
    ended = transitions.after_no_answer(row(start_id=uuid.uuid4(), **begun), refused, PATIENCE)
    assert isinstance(ended, Change) and ended.event is LedgerEvent.GAVE_UP
    assert (ended.last_error or "").endswith("; it may have been started: see `sentinel in-doubt list`")
    assert "enter it" not in (ended.last_error or "")


def test_a_wait_that_is_asked_for_is_kept_up_to_the_longest_pause() -> None:
    asked = {seconds: Unreachable(NoAnswerKind.BUSY, "429", retry_after_seconds=seconds) for seconds in (30.0, 9999.0)}
    pauses = {n: transitions.after_no_answer(row(), error, PATIENCE).due_in_seconds for n, error in asked.items()}
    assert pauses == {30.0: 30.0, 9999.0: 60.0}

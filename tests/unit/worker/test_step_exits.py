"""Exits of the workflow's steps that no whole run leads to easily: where the row goes, and what its trail or its ledger entry says."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from sentinel.client import (
    GuardAnswer,
    HaltInForce,
    NoAnswerKind,
    Rejected,
    StartReceipt,
    Switches,
    SwitchState,
    Unreachable,
)
from sentinel.client.answers import CheckAnswer
from tests.support.workflow_fixtures import Spy
from worker.critic.case import CriticCode, Opinion
from worker.outbound.guard_answers import RESOLVED
from worker.refunds import transitions
from worker.refunds.confirmations import Confirmation
from worker.refunds.rows import Change, KnownFacts, LedgerEvent, LedgerRow, LedgerState, OrderFacts, ReleaseLease
from worker.refunds.transitions import RetryPolicy
from worker.refunds.workflow.graph import Escalation, StepName
from worker.refunds.workflow.routes import Route, Routes
from worker.refunds.workflow.runner import Found, NoDirectoryAnswer, RunContext, Stopped, UnknownOrder, lease_lost
from worker.refunds.workflow.steps.ask_authority import AskAuthority, ConfirmCard, LimitCheck
from worker.refunds.workflow.steps.checks import CriticCheck, KillSwitch
from worker.refunds.workflow.steps.execute_by_system import ExecuteBySystem
from worker.refunds.workflow.steps.order_and_image import QueryOrder
from worker.settlement import UnknownSystem
from worker.settlement.registry import Systems

E, S = Escalation, StepName
PATIENCE = RetryPolicy(8, 1.0, 60.0, Random(1))
NOBODY: Any = None
"""What the exit in question makes no use of."""
FEE = Route("private", "fee", None, "refund.small.fee", "small_refund.refund_fee", settles_to="private_refund")
ORDER = OrderFacts("ord", datetime(2026, 5, 1, tzinfo=UTC), 5000, "USD", "acct")


def context(channel: str = "private", route: Route | None = FEE, **row: Any) -> RunContext:
    """A row that was just claimed."""
    found = LedgerRow(
        uuid.UUID(int=7), "r", "rf", "a", "refund.small.fee", 100, "USD", "refund:r", channel, "fee", None, "acct", "ord", 1, 0,
        None, None, None, None, None, None, None, None,
    )  # fmt: skip
    return RunContext(structs.replace(found, **row), KnownFacts("r", "{}", None, "acct", False, None, 0), route=route)


# kill_switch


def kill_switch(answer: Switches | Unreachable, *routes: Route, is_ending: bool = False) -> KillSwitch:
    """The step, where the authority answers so about its switches."""

    def current() -> Switches:
        if isinstance(answer, Unreachable):
            raise answer
        return answer

    cache: Any = SimpleNamespace(current=current)
    stopping = threading.Event()
    if is_ending:
        stopping.set()
    return KillSwitch(cache, Routes(routes), Systems({"private_refund": Spy("private_refund")}, {}), PATIENCE, stopping)


@pytest.mark.parametrize("is_ending", [False, True])
@pytest.mark.parametrize("may_be_started", [False, True])
def test_without_the_switches_a_row_waits_and_that_of_a_worker_that_ends_is_free_at_once(
    may_be_started: bool, is_ending: bool
) -> None:
    asked = context(may_be_started=may_be_started, start_id=uuid.UUID(int=3))
    step = kill_switch(Unreachable(NoAnswerKind.TIMEOUT, "no answer"), FEE, is_ending=is_ending)
    step.prepare([asked])
    assert step.run(asked).next_step is None
    event: Any = asked.event
    assert isinstance(event, ReleaseLease if may_be_started else Change)
    assert (event.last_error == transitions.ENDED, event.due_in_seconds == 0.0) == (is_ending, is_ending)
    assert event.outside is not is_ending


def test_of_several_obstacles_each_is_put_to_a_person_and_the_trail_names_what_was_lifted_before() -> None:
    halted = Switches({FEE.switch: SwitchState(True, 100)}, (HaltInForce("tenant", "", "pause"),), {})
    asked, step = context(), kill_switch(halted, FEE)
    step.prepare([asked])
    result = step.run(asked)
    assert (result.next_step, result.message, result.output) == (S.TRANSFER_TO_HUMAN, E.HALTED, {})
    asked.lifted |= {E.HALTED}
    result = step.run(asked)
    assert (result.next_step, result.message) == (S.TRANSFER_TO_HUMAN, E.SWITCH_OFF)
    assert result.output == {"switch": "small_refund.enabled", "on": False, "lifted": E.HALTED}
    asked.lifted |= {E.SWITCH_OFF}
    result = step.run(asked)
    assert (result.next_step, result.output) == (S.CHECK_PARAMS, {"switch": FEE.switch, "lifted": E.SWITCH_OFF})


def test_a_row_without_a_route_has_no_switch_to_be_off() -> None:
    asked, step = context(), kill_switch(Switches({}, (), {}))
    step.prepare([asked])
    result = step.run(asked)
    assert (result.next_step, result.output) == (S.CHECK_PARAMS, {"route": "none"})


# query_order


class Directory:
    """Finds the same for every row; None: it is not ready."""

    name = "orders"

    def __init__(self, found: Found | None) -> None:
        self._found = found

    def is_ready(self) -> bool:
        """Whether there is something to be found."""
        return self._found is not None

    def find(self, rows: Sequence[Any]) -> list[Found]:
        """What was said."""
        assert self._found is not None
        return [self._found] * len(rows)


@pytest.mark.parametrize(
    ("channel", "found", "reason"),
    [
        ("private", ORDER, None),
        ("private", replace(ORDER, account_ref=None), None),
        ("private", replace(ORDER, account_ref="another"), E.ACCOUNT_MISMATCH),
        ("private", UnknownOrder(), E.ORDER_UNKNOWN),
        ("retail", UnknownOrder(), None),
        ("retail", NoDirectoryAnswer("timeout"), E.ORDER_DIRECTORY_UNAVAILABLE),
        ("retail", None, E.ORDER_DIRECTORY_UNAVAILABLE),
    ],
)
def test_what_is_found_of_an_order_says_whether_its_row_goes_on(
    channel: str, found: Found | None, reason: Escalation | None
) -> None:
    asked, step = context(channel), QueryOrder({channel: Directory(found)})
    step.prepare([asked])
    result = step.run(asked)
    assert asked.order is (found if isinstance(found, OrderFacts) else None)
    if reason is None:
        assert (result.next_step, result.message, result.tool_used) == (S.CHECK_ORDER, None, "orders")
        return
    assert (result.next_step, result.message) == (S.TRANSFER_TO_HUMAN, reason)
    asked.lifted |= {reason}
    assert step.run(asked).next_step is S.CHECK_ORDER, "a person has approved it"


def test_a_channel_without_a_directory_has_no_order_and_goes_on_to_the_route_that_it_does_not_have() -> None:
    asked, step = context("elsewhere", None), QueryOrder({"private": Directory(ORDER)})
    step.prepare([asked])
    assert (step.run(asked).next_step, asked.order) == (S.CHECK_ORDER, None)


# limit_check


@pytest.mark.parametrize(
    ("status", "event"), [(403, LedgerEvent.PUT_BACK), (401, LedgerEvent.PUT_BACK), (422, LedgerEvent.GAVE_UP)]
)
def test_a_check_that_the_authority_refuses_ends_the_run_and_asks_no_customer(status: int, event: LedgerEvent) -> None:
    asked = context()
    asked.check_answer = Rejected(status=status, type="about:blank", title="no", detail="no")
    result = LimitCheck(NOBODY, NOBODY, PATIENCE, lambda _: True).run(asked)
    assert result.next_step is None
    assert isinstance(asked.event, Change) and (asked.event.event, asked.event.outside) == (event, status != 422)


def test_a_check_that_a_person_has_approved_beyond_leads_on() -> None:
    asked, step = context(), LimitCheck(NOBODY, NOBODY, PATIENCE, lambda _: True)
    asked.check_answer = CheckAnswer("DENY", "over_daily_limit", "no", None)
    assert (step.run(asked).next_step, step.run(asked).message) == (S.TRANSFER_TO_HUMAN, E.OVER_LIMIT_EARLY)
    asked.lifted |= {E.OVER_LIMIT_EARLY}
    assert step.run(asked).next_step is S.CRITIC_CHECK


# critic_check

ASKS = replace(FEE, confirm_card=True)
CARD = Confirmation("r", uuid.UUID(int=9), "others", "confirmed", ORDER.ordered_at, ORDER.ordered_at)


@pytest.mark.parametrize(
    ("route", "card", "following"),
    [(FEE, None, S.ASK_AUTHORITY), (ASKS, None, S.CONFIRM_CARD), (FEE, CARD, S.CONFIRM_CARD)],
    ids=["no customer", "its customer is asked", "its customer was asked before"],
)
def test_a_critics_words_are_in_the_trail_whether_it_approves_or_not(
    route: Route, card: Confirmation | None, following: StepName
) -> None:
    asked, step = context(route=route), CriticCheck(NOBODY, NOBODY)
    asked.card = card
    for words in ("", "it fits"):
        asked.opinion = Opinion(CriticCode.OK, "model", "ok", words)
        result = step.run(asked)
        assert (result.next_step, result.output.get("words", "")) == (following, words)
    asked.opinion = Opinion(CriticCode.REJECTED, "model", "other", "it does not")
    result = step.run(asked)
    assert (result.next_step, result.message) == (S.TRANSFER_TO_HUMAN, E.CRITIC_REJECTED)
    assert result.output["words"] == "it does not"
    asked.lifted |= {E.CRITIC_REJECTED}
    assert step.run(asked).next_step is following


def test_a_row_without_an_opinion_goes_to_a_person() -> None:
    result = CriticCheck(NOBODY, NOBODY).run(context())
    assert (result.next_step, result.message) == (S.TRANSFER_TO_HUMAN, E.CRITIC_ERROR)


# confirm_card


@pytest.mark.parametrize("status", ["confirmed", "declined", "expired", "superseded"])
def test_where_the_newest_card_is_of_other_terms_and_none_can_be_opened_a_person_is_asked(status: str) -> None:
    """Its own terms had a card before those: there is only ever one for them."""
    opened: list[Any] = []
    cards: Any = SimpleNamespace(
        can_ask=True, digest_of=lambda ask: "its own", open=opened.extend, latest=lambda ids: {"r": replace(CARD, status=status)}
    )  # fmt: skip
    asked, step = context(route=ASKS), ConfirmCard(cards, Systems({"private_refund": Spy("private_refund")}, {}))
    step.prepare([asked])
    result = step.run(asked)
    assert len(opened) == 1
    assert (result.next_step, result.message, asked.event) == (S.TRANSFER_TO_HUMAN, E.STEP_REFUSED, None)


# ask_authority


def asking() -> AskAuthority:
    return AskAuthority(
        ledger=NOBODY, client=NOBODY, worker_pool=NOBODY, retry_policy=PATIENCE, systems=NOBODY, failpoints=NOBODY,
        stopping=threading.Event(), switch_cache=NOBODY,
    )  # fmt: skip


def test_a_row_whose_claim_was_lost_before_its_question_was_on_record_is_not_asked_about() -> None:
    asked = context()
    asked.outcome = lease_lost(asked.row, LedgerState.GUARDING)
    result = asking().run(asked)
    assert (result.next_step, result.output, asked.event) == (None, {"claim": "lost"}, None)


@pytest.mark.parametrize("may_be_started", [False, True])
def test_a_row_that_was_not_asked_about_because_its_worker_ends_is_free_at_once(may_be_started: bool) -> None:
    asked = context(may_be_started=may_be_started, start_id=uuid.UUID(int=3))
    asked.answer = Stopped()
    assert asking().run(asked).next_step is None
    event: Any = asked.event
    assert (event.last_error, event.due_in_seconds) == (transitions.ENDED, 0.0)
    assert isinstance(event, ReleaseLease) if may_be_started else event.not_started


@pytest.mark.parametrize(
    ("reason", "status", "is_lifted"),
    [
        (E.OPEN_COMPLAINT, "approved", True),
        (E.OPEN_COMPLAINT, "allowed", False),
        (E.NO_ROUTE, "approved", False),
        (E.NO_ROUTE, "allowed", False),
    ],
)
def test_only_a_persons_approval_lifts_a_reason_and_none_lifts_what_nothing_could_pay(
    reason: Escalation, status: str, is_lifted: bool
) -> None:
    asked = context()
    asked.escalation = reason
    asked.answer = GuardAnswer(
        "refund.small.fee", "a", "refund:r", "ALLOW" if status == "allowed" else "APPROVAL_REQUIRED", status, "x", "",
        str(uuid.UUID(int=1)), str(uuid.UUID(int=2)), "refund/rf", "standard", permit_token="permit",
    )  # fmt: skip
    result = asking().run(asked)
    if is_lifted:
        assert (result.next_step, asked.lifted, asked.event) == (S.KILL_SWITCH, {reason}, None)
        return
    assert (result.next_step, result.message, asked.lifted) == (None, "no person was asked", frozenset())
    assert isinstance(asked.event, Change) and asked.event.event is LedgerEvent.PUT_BACK


# execute_by_system


def executing(systems: Any) -> ExecuteBySystem:
    return ExecuteBySystem(
        ledger=NOBODY, client=NOBODY, worker_pool=NOBODY, retry_policy=PATIENCE, systems=systems, failpoints=NOBODY
    )


def test_an_adapter_that_answers_with_nothing_usable_leaves_its_row_started() -> None:
    asked: Any = context(start_id=uuid.UUID(int=3))
    asked.started, asked.settled = StartReceipt(str(uuid.UUID(int=4)), "hash", False), "paid"
    result = executing(NOBODY).run(asked)
    assert (result.next_step, result.output) == (None, {"settlement": "failed"})
    assert isinstance(asked.event, ReleaseLease)
    assert asked.event.last_error == "private_refund: no usable answer"


def unknown(_: uuid.UUID) -> None:
    raise UnknownSystem("started in elsewhere, under a plan that no system here has")


IN_LEDGER = SimpleNamespace(name="private_refund", settles_in_ledger=True)


@pytest.mark.parametrize(
    ("systems", "says"),
    [
        ({"begun_in": unknown}, "the settlement system may have done it: started in elsewhere"),
        (
            {"begun_in": lambda _: None, "find": lambda _: None, "has_record": False},
            "none may have done it: there is no record to read",
        ),
        ({"begun_in": lambda _: None, "find": lambda _: IN_LEDGER, "has_record": False}, None),
        ({"begun_in": lambda _: None, "find": lambda _: None, "has_record": True}, None),
    ],
    ids=["begun under no known plan", "nothing to read it in", "only ever in the ledger", "nothing begun outside"],
)
def test_what_a_person_called_not_executed_ends_only_if_nothing_can_have_been_done(
    systems: dict[str, Any], says: str | None
) -> None:
    asked = context(start_id=uuid.UUID(int=3))
    asked.started = Rejected(status=409, type=f"x/{RESOLVED}", title="no", detail="not executed")
    assert executing(SimpleNamespace(**systems)).run(asked).next_step is None
    if says is None:
        assert isinstance(asked.event, Change) and asked.event.event is LedgerEvent.NOT_EXECUTED
        return
    assert isinstance(asked.event, ReleaseLease) and says in asked.event.last_error


@pytest.mark.parametrize(("attempts", "event"), [(6, LedgerEvent.PUT_BACK), (7, LedgerEvent.GAVE_UP)])
def test_a_start_that_is_refused_every_time_ends_its_row_in_the_last_attempt(attempts: int, event: LedgerEvent) -> None:
    refused = Rejected(status=403, type="x/permit-refused", title="no", detail="halted")
    row = context(attempts=attempts).row
    _, then = transitions.after_start_refused(row, refused, PATIENCE, was_started=False)
    assert (then.event, then.in_doubt) == (event, False)
    assert ("start refused 8 times" in (then.last_error or "")) is (event is LedgerEvent.GAVE_UP)

"""Every failure has its lane, or leaves nothing: authority away, scorer broken, shop away, permit run out."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
from structlog.testing import capture_logs

from ops_console.read_models.order_search import queue
from ops_console.read_models.order_views import queue_figures
from ops_console.resolve_order import resolve_order
from sentinel.authority.actor import local_administrator
from sentinel.authority.approvals import resolve_approval
from sentinel.authority.halts import lift_halt, set_halt
from sentinel.authority.housekeeping import run_housekeeping
from sentinel.authority.in_doubt import resolve_in_doubt
from sentinel.authority.keys import DEFAULT_SCOPES, WORKER_SCOPES
from sentinel.cli.scratch import listening
from sentinel.client import Client, NoAnswerKind, Switches, Unreachable
from sentinel.core.errors import Conflict
from sentinel.core.money import Money
from sentinel.platform.ongoing_failures import STEADY_SECONDS
from sentinel.platform.outbound.failures import FailureKind
from tests.support.fixtures import Fixtures, guard_body
from tests.support.harness import actor, decide, let_leave_end, let_permits_expire
from tests.support.order_fixtures import OrderFixtures, make_intake, order_body
from tests.support.shop_server import FlakyShop
from worker.failpoints import Failpoints, OrderFailpoint
from worker.orders.authority import AuthorityClient
from worker.orders.order import KnownAccount, Order, Review, Score, Signal, to_order
from worker.orders.shop import ShopStatus
from worker.orders.silent_shops import SILENT_AFTER, SILENT_SECONDS, SilentShops
from worker.orders.store import DeliveredOrder, body_digest
from worker.outbound.effects import EffectResult, NoAnswer, Settled

NOWHERE = "http://127.0.0.1:9"
Answer = TypeVar("Answer")


def test_without_the_authority_nothing_is_answered_and_the_senders_retry_succeeds(
    fixtures: Fixtures, authority_url: str
) -> None:
    away = make_intake(fixtures, NOWHERE, authority_timeout_seconds=0.5)
    body = order_body("o-1")
    answer = away.deliver(body)
    assert (answer.status_code, answer.json["type"]) == (503, "urn:sentinel:problem:try-later")
    assert int(answer.headers["Retry-After"]) >= 1
    assert away.all("select lane, status from orders.reviews") == [(None, "SCORED")]
    for table in ("deliveries", "effects", "alerts", "simulated_shop"):
        assert away.one(f"select count(*) from orders.{table}") == 0
    back = make_intake(fixtures, authority_url)
    again = back.deliver(body)
    assert (again.status_code, again.json["status"]) == (200, "fulfilled")
    assert "X-Sentinel-Idempotent-Replay" not in again.headers
    for one in (away, back):
        one.close()


def test_an_order_goes_on_within_a_minute_of_the_authoritys_return_however_long_it_was_away(fixtures: Fixtures) -> None:
    """As docs/runbooks.md says. The finding: the pauses grew to more than six minutes."""
    away = make_intake(fixtures, NOWHERE, authority_timeout_seconds=0.5)
    try:
        assert away.deliver(order_body("o-1")).status_code == 503
        fixtures.admin.execute("update orders.reviews set attempts = 20")
        away.make_due()
        assert away.review.background.once() == 1
        assert away.all(
            "select attempts, next_attempt_at - clock_timestamp() <= interval '1 minute' from orders.reviews"
        ) == [(21, True)]
    finally:
        away.close()


@pytest.mark.parametrize("refusal", ["another question under its key", "a question that is none"])
def test_an_order_that_the_authority_refuses_to_be_asked_about_is_a_persons_who_holds_it(
    fixtures: Fixtures, authority_url: str, refusal: str
) -> None:
    over = {"lease_seconds": 3600.0, "budget_seconds": 30.0} if refusal == "a question that is none" else {}
    orders = make_intake(fixtures, authority_url, **over)
    if not over:
        taken = guard_body("order:demo:o-1", action="order.fulfill", agent_id="another")
        key = fixtures.new_key(agent_id="another", scopes=DEFAULT_SCOPES)
        assert fixtures.post("action/guard", taken, key=key).status_code == 200
    body = order_body("o-1")
    assert orders.deliver(body).status_code == 503
    for _ in range(2):
        orders.make_due()
        orders.rounds()
    assert orders.status_and_lane("o-1") == ("SCORED", None)
    assert orders.all("select kind, summary ~ 'held' from orders.alerts") == [("question_refused", False)]
    if not over:
        for told in orders.all("select last_error from orders.reviews union all select summary from orders.alerts"):
            assert "in the name of the agent another" in told[0] and "revoke that key" in told[0]
    pool, tenant_id = fixtures.console_pool, fixtures.tenant_id
    assert [one.order_id for one in queue(pool, tenant_id, limit=5)] == ["o-1"]
    assert queue_figures(pool, tenant_id).queued == orders.review.store.figures().queued == 1
    who = actor(fixtures, "approver")
    for decision in ("fulfil", "refund", "retry"):
        with pytest.raises(Conflict):
            resolve_order(pool, who, "demo", "o-1", decision=decision, reason="no", status="SCORED")
    assert resolve_order(pool, who, "demo", "o-1", decision="hold", reason="never asked").result == "hold"
    assert orders.status_and_lane("o-1") == ("HELD", "high")
    orders.rounds(until=lambda: orders.all("select order_id, status from orders.simulated_shop") == [("o-1", "held")])
    assert queue(pool, tenant_id, limit=5) == []
    assert orders.all("select decision, from_status from orders.analyst_decisions") == [("hold", "SCORED")]
    answer = orders.deliver(body)
    assert (answer.status_code, answer.json["status"]) == (200, "held")
    assert fixtures.broken_invariants() == []
    orders.close()


def test_an_order_that_is_merely_not_answered_about_is_nobodys_to_hold(fixtures: Fixtures) -> None:
    orders = make_intake(fixtures, NOWHERE, authority_timeout_seconds=0.5)
    orders.deliver(order_body("o-1"))
    assert queue(fixtures.console_pool, fixtures.tenant_id, limit=5) == []
    with pytest.raises(Conflict):
        resolve_order(
            fixtures.console_pool, actor(fixtures, "approver"), "demo", "o-1", decision="hold", reason="tired"
        )
    orders.close()


def test_a_question_that_is_taken_after_all_goes_its_way_and_leaves_the_queue(
    fixtures: Fixtures, authority_url: str
) -> None:
    refused = make_intake(fixtures, authority_url, lease_seconds=3600.0)
    assert refused.deliver(order_body("o-1")).status_code == 503
    refused.close()
    orders = make_intake(fixtures, authority_url)
    orders.make_due()
    orders.rounds(until=lambda: orders.status_and_lane("o-1") == ("FULFILLED", "low"))
    assert queue(fixtures.console_pool, fixtures.tenant_id, limit=5) == []
    orders.close()


class BrokenScorer:
    """Fails about every order."""

    def score(self, order: Order, known: KnownAccount, deadline: float, noticed: Sequence[Signal] = ()) -> Score:
        """Never returns."""
        raise ZeroDivisionError


def test_a_scorer_that_breaks_leaves_no_order_without_a_lane(fixtures: Fixtures, authority_url: str) -> None:
    broken = make_intake(fixtures, authority_url, parts={"scorer": BrokenScorer()})
    body = order_body("o-1")
    assert broken.deliver(body).status_code == 503
    broken.make_due()
    whole = make_intake(fixtures, authority_url)
    assert whole.deliver(body).json["status"] == "fulfilled"
    for one in (broken, whole):
        one.close()


def test_an_order_is_asked_about_as_it_was_stored_whatever_the_field_map_is_when_it_is_taken_up_again(
    fixtures: Fixtures, authority_url: str
) -> None:
    broken = make_intake(fixtures, authority_url, parts={"scorer": BrokenScorer()})
    body = order_body("o-1", total={"value": "7.00", "currency": "EUR"}, account_ref="acct-1")
    assert broken.deliver(order_body("o-0", account_ref="acct-1")).status_code == 503
    assert broken.deliver(body).status_code == 503
    broken.make_due()
    broken.close()
    orders = make_intake(fixtures, authority_url)
    changed = {"order_id": (("order", "id"),), "amount": (("order", "total"),)}
    mapped = to_order("demo", changed, json.loads(body))
    run = orders.review.processor.delivered(DeliveredOrder(mapped, body_digest(body)))
    orders.review.processor.run_all([run])
    run.result()
    assert run.known == KnownAccount(1, Money(4250, "USD"))
    asked = "select (guard_params #>> '{amount,value}')::float, guard_params ->> 'account_ref' from orders.reviews"
    assert orders.all(f"{asked} where order_id = 'o-1'") == [(42.5, "acct-1")]
    orders.close()


@pytest.mark.parametrize("script", [("down",), ("late",), ("down", "blind"), ("late", "blind", "blind")])
def test_a_shop_that_does_not_answer_keeps_the_order_in_its_lane_until_it_is_done_once(
    fixtures: Fixtures, authority_url: str, script: tuple[str, ...]
) -> None:
    shop = FlakyShop(*script)
    orders = make_intake(fixtures, authority_url, parts={"shop": shop})
    body = order_body("o-1")
    answer = orders.deliver(body)
    if orders.status_and_lane("o-1")[0] != "FULFILLED":
        assert (answer.status_code, answer.json["status"], answer.json["lane"]) == (202, "fulfilling", "low")
        for _ in range(4):
            orders.make_due()
            orders.rounds()
    assert orders.status_and_lane("o-1") == ("FULFILLED", "low")
    assert shop.done == [("fulfilled", "o-1")]
    assert orders.deliver(body).json["status"] == "fulfilled"
    orders.close()


def test_a_hold_that_the_shop_does_not_take_is_tried_until_it_does(fixtures: Fixtures, authority_url: str) -> None:
    shop = FlakyShop("down", "down")
    orders = make_intake(fixtures, authority_url, parts={"shop": shop})
    assert orders.deliver(order_body("o-1", "high")).status_code == 200
    assert orders.all("select kind, state from orders.effects") == [("hold", "intended")]
    for _ in range(3):
        orders.make_due()
        orders.rounds()
    assert orders.all("select kind, state from orders.effects") == [("hold", "done")]
    assert shop.done == [("held", "o-1")]
    orders.close()


def test_a_hold_that_got_no_answer_is_sent_again_once_it_cannot_be_under_way_any_more(
    fixtures: Fixtures, authority_url: str
) -> None:
    """The finding: it was looked at within that time, which then began anew, so with more than five minutes it was never sent again."""
    shop = FlakyShop("down")
    orders = make_intake(fixtures, authority_url, parts={"shop": shop}, shop_under_way_seconds=600.0)
    try:
        assert orders.deliver(order_body("o-1", "high")).json["status"] == "held"
        wait = "select extract(epoch from next_attempt_at - tried_at)::float8 from orders.effects"
        for _ in range(8):
            passed = orders.one(wait)
            fixtures.admin.execute(
                "update orders.effects set next_attempt_at = clock_timestamp(), tried_at = clock_timestamp() - make_interval(secs => %s)",
                [passed],
            )
            orders.rounds()
            if shop.done:
                break
        assert shop.done == [("held", "o-1")]
        assert orders.all("select state, tries from orders.effects") == [("done", 2)]
    finally:
        orders.close()


def test_what_the_shop_refuses_goes_to_a_person_who_ends_it(fixtures: Fixtures, authority_url: str) -> None:
    orders = make_intake(fixtures, authority_url, parts={"shop": FlakyShop("refuse")})
    answer = orders.deliver(order_body("o-1"))
    assert (answer.status_code, answer.json["status"]) == (202, "queued")
    assert orders.status_and_lane("o-1") == ("SHOP_REFUSED", "low")
    assert orders.all("select kind, state from orders.effects") == [("fulfil", "refused")]
    assert [row[0] for row in orders.all("select kind from orders.alerts")] == ["shop_refused"]
    orders.make_due()
    orders.rounds()
    # Nothing is reported while somebody may still have it tried again.
    assert orders.one("select count(*) from sentinel.operation_states where status = 'in_doubt'") == 0
    resolve_order(
        fixtures.console_pool, actor(fixtures, "approver"), "demo", "o-1", decision="hold", reason="out of stock"
    )
    assert orders.status_and_lane("o-1") == ("HELD", "low")
    orders.rounds()
    assert orders.all("select kind, state from orders.effects order by kind") == [
        ("fulfil", "refused"),
        ("hold", "done"),
    ]
    # Whether it happened is for a person to say.
    assert orders.one("select count(*) from sentinel.operation_states where status = 'in_doubt'") == 1
    assert fixtures.broken_invariants() == []
    orders.close()


def test_an_order_approved_before_it_was_queued_goes_on_at_once(fixtures: Fixtures, authority_url: str) -> None:
    """The authority had it and a person said yes, but its answer never came: it is started with the next question."""
    cut_off = make_intake(fixtures, authority_url, failpoints=Failpoints(OrderFailpoint.AFTER_GUARD, "raise"))
    assert cut_off.deliver(order_body("o-1", "medium")).status_code == 503
    cut_off.close()
    decide(fixtures, cut_off.one("select approval_id from sentinel.approvals"))
    orders = make_intake(fixtures, authority_url)
    # Another one's decision has moved the cursor on: nobody will tell of this one any more.
    fixtures.admin.execute(
        "insert into orders.approval_cursors (tenant_id, since) values (%s, clock_timestamp())", [fixtures.tenant_id]
    )
    fixtures.admin.execute("update sentinel.approvals set decided_at = decided_at - interval '2 minutes'")
    halted = set_halt(fixtures.console_pool, local_administrator(fixtures.tenant_id), scope="tenant", reason="drill")
    orders.make_due()
    orders.rounds()
    assert orders.status_and_lane("o-1") == ("SCORED", None), "a halt is for now; what was decided before it stands"
    lift_halt(fixtures.console_pool, local_administrator(fixtures.tenant_id), halted.halt_id, reason="over")
    orders.rounds(until=is_fulfilled_once_due(orders, "medium"))
    assert [row[0] for row in orders.all("select event from orders.events order by event_id")] == [
        "scored", "needs_analyst", "queued", "started", "fulfilled",
    ]  # fmt: skip
    orders.close()


def is_fulfilled_once_due(orders: OrderFixtures, lane: str) -> Callable[[], bool]:
    """Whether the one order is fulfilled; until then it is due again: halts are looked at from memory for half a second."""

    def look() -> bool:
        orders.make_due()
        return orders.status_and_lane("o-1") == ("FULFILLED", lane)

    return look


@pytest.mark.parametrize("halt", [{"scope": "global"}, {"scope": "tenant"}, {"scope": "agent_action", "target": "order-review order.fulfill"}, {"scope": "action", "target": "order.*"}], ids=str)  # fmt: skip
def test_an_order_that_arrives_under_a_halt_is_decided_after_it(
    fixtures: Fixtures, authority_url: str, halt: dict[str, str]
) -> None:
    """The finding: it was denied for good, and no lifting of the halt brought it back."""
    orders = make_intake(fixtures, authority_url)
    admin = local_administrator(fixtures.tenant_id)
    halted = set_halt(fixtures.console_pool, admin, reason="drill", **halt)  # type: ignore[arg-type]
    body = order_body("o-1")
    answer = orders.deliver(body)
    assert (answer.status_code, answer.json["status"]) == (202, "received")
    orders.make_due()
    orders.rounds()
    assert orders.deliver(body).status_code == 202
    assert orders.status_and_lane("o-1") == ("SCORED", None)
    assert orders.all("select last_error from orders.reviews") == [("halted",)]
    assert orders.one("select count(*) from sentinel.operations where action = 'order.fulfill'") == 0
    lift_halt(fixtures.console_pool, admin, halted.halt_id, reason="over")
    orders.rounds(until=is_fulfilled_once_due(orders, "low"))
    assert fixtures.broken_invariants() == []
    orders.close()


class DeafToHalts(Client):
    """Gets no answer about switches and halts while `is_deaf`, though all other questions are answered."""

    is_deaf = True

    def switches(self) -> Switches:
        """The present ones, or no answer."""
        if self.is_deaf:
            raise Unreachable(NoAnswerKind.TIMEOUT, "no answer in time")
        return super().switches()


def test_an_order_waits_while_it_is_not_known_whether_a_halt_is_in_force(
    fixtures: Fixtures, authority_url: str
) -> None:
    """The finding: without the list of halts it was asked about under one, and so denied and held for good."""
    orders = make_intake(fixtures, authority_url)
    client = DeafToHalts(authority_url, orders.settings.api_key, agent_id="order-review")
    orders.review.processor.authority = AuthorityClient(client)
    admin = local_administrator(fixtures.tenant_id)
    try:
        halted = set_halt(fixtures.console_pool, admin, scope="tenant", reason="drill")
        assert orders.deliver(order_body("o-1")).status_code == 503
        assert orders.all("select lane, status, attempts from orders.reviews") == [(None, "SCORED", 1)]
        lift_halt(fixtures.console_pool, admin, halted.halt_id, reason="over")
        client.is_deaf = False
        orders.rounds(until=is_fulfilled_once_due(orders, "low"))
    finally:
        client.close()
        orders.close()


def test_an_order_waits_where_the_intakes_key_may_not_read_which_halts_are_in_force(
    fixtures: Fixtures, authority_url: str
) -> None:
    """The finding: none counted as in force, so under one it was denied and held for good."""
    scopes = tuple(scope for scope in WORKER_SCOPES if scope != "heartbeat")
    orders = make_intake(fixtures, authority_url, api_key=fixtures.new_key(agent_id="order-review", scopes=scopes))
    whole = make_intake(fixtures, authority_url)
    admin = local_administrator(fixtures.tenant_id)
    try:
        halted = set_halt(fixtures.console_pool, admin, scope="tenant", reason="drill")
        assert orders.deliver(order_body("o-1")).status_code == 503
        assert orders.all("select lane, status, last_error ~ '403' from orders.reviews") == [(None, "SCORED", True)]
        lift_halt(fixtures.console_pool, admin, halted.halt_id, reason="over")
        whole.rounds(until=is_fulfilled_once_due(whole, "low"))
    finally:
        for one in (orders, whole):
            one.close()


def test_a_permit_that_ran_out_is_asked_for_again(fixtures: Fixtures) -> None:
    with listening(fixtures.app) as url:
        orders = make_intake(fixtures, url)
        orders.deliver(order_body("o-1", "medium"))
        decide(fixtures, orders.one("select approval_id from orders.reviews"))
        approval_id = str(orders.one("select approval_id from orders.reviews"))
        assert orders.review.store.wake([approval_id]) == 1
        [work] = orders.review.store.claim(5)
        [answer] = orders.review.processor.authority.guard([work])
        assert getattr(answer, "status", None) == "approved"
        let_permits_expire(fixtures)
        orders.review.processor.run_all(orders.review.processor.left_behind([work]))
        assert orders.status_and_lane("o-1") == ("FULFILLED", "medium")
        orders.close()


def test_an_approval_that_is_seen_after_a_later_one_wakes_its_order(fixtures: Fixtures, authority_url: str) -> None:
    """A decision is dated before its commit: it may be seen up to ten seconds after one that was made later."""
    orders = make_intake(fixtures, authority_url)
    try:
        assert orders.deliver(order_body("o-1", "medium")).status_code == 202
        fixtures.admin.execute("update orders.reviews set next_attempt_at = clock_timestamp() + interval '1 hour'")
        resolve_approval(
            fixtures.console_pool, actor(fixtures, "approver"), orders.one("select approval_id from orders.reviews"),
            verdict="approve", reason="called", digest=orders.digest("o-1"),
        )  # fmt: skip
        fixtures.admin.execute(
            "insert into orders.approval_cursors (tenant_id, since) select tenant_id, decided_at + interval '9 seconds' from sentinel.approvals"
        )
        orders.rounds(until=lambda: orders.status_and_lane("o-1")[0] == "FULFILLED")
    finally:
        orders.close()


def test_an_approval_that_is_given_after_the_clock_was_set_back_wakes_its_order(
    fixtures: Fixtures, authority_url: str
) -> None:
    """As after a failover to a server whose clock is right. The finding: the cursor stayed ahead, and the order waited for a day."""
    orders = make_intake(fixtures, authority_url)
    try:
        fixtures.admin.execute(
            "insert into orders.approval_cursors (tenant_id, since) values (%s, clock_timestamp() + interval '1 hour')",
            [fixtures.tenant_id],
        )
        assert orders.deliver(order_body("o-1", "medium")).status_code == 202
        fixtures.admin.execute("update orders.reviews set next_attempt_at = clock_timestamp() + interval '1 hour'")
        decide(fixtures, orders.one("select approval_id from orders.reviews"))
        orders.rounds(until=lambda: orders.status_and_lane("o-1")[0] == "FULFILLED")
        assert orders.one("select since <= clock_timestamp() from orders.approval_cursors")
    finally:
        orders.close()


def test_an_order_that_is_asked_about_too_early_waits_until_a_second_after_its_approval_by_the_database(
    fixtures: Fixtures, authority_url: str
) -> None:
    """The finding: it waited by the intake's clock, an hour too long where that was an hour behind, else asked each second."""
    orders = make_intake(fixtures, authority_url)
    try:
        assert orders.deliver(order_body("o-1", "medium")).status_code == 202
        fixtures.admin.execute("update orders.reviews set next_attempt_at = clock_timestamp()")
        assert orders.review.background.once() == 1
        late = "select r.next_attempt_at = a.expires_at + interval '1 second', r.attempts from orders.reviews r join sentinel.approvals a using (tenant_id, approval_id)"
        assert orders.all(late) == [(True, 1)]
    finally:
        orders.close()


def test_an_order_approved_under_a_halt_is_asked_about_once_a_pause_however_often_its_decision_is_read(
    fixtures: Fixtures, authority_url: str
) -> None:
    """The finding: the last minute's decisions are read again each round, and each time the order was due at once."""
    orders = make_intake(fixtures, authority_url)
    try:
        assert orders.deliver(order_body("o-1", "medium")).status_code == 202
        admin = local_administrator(fixtures.tenant_id)
        halted = set_halt(fixtures.console_pool, admin, scope="tenant", reason="drill")
        decide(fixtures, orders.one("select approval_id from orders.reviews"))
        taken = [orders.review.background.once() for _ in range(5)]
        assert taken == [1, 0, 0, 0, 0], "a round that took something is followed by the next without a pause"
        assert orders.all("select status, attempts, last_error from orders.reviews") == [("QUEUED", 1, "halted")]
        lift_halt(fixtures.console_pool, admin, halted.halt_id, reason="over")
        fixtures.admin.execute("update orders.reviews set next_attempt_at = clock_timestamp()")
        orders.rounds(until=lambda: orders.status_and_lane("o-1")[0] == "FULFILLED")
    finally:
        orders.close()


def test_a_background_task_that_fails_the_same_way_each_round_says_so_once(
    fixtures: Fixtures, authority_url: str
) -> None:
    """The finding: a key without the scope `approvals:read` filled the log with two lines a second for ever."""
    scopes = tuple(scope for scope in WORKER_SCOPES if scope != "approvals:read")
    orders = make_intake(fixtures, authority_url, api_key=fixtures.new_key(agent_id="order-review", scopes=scopes))
    whole = make_intake(fixtures, authority_url)
    may_not, may = orders.review.processor.authority, whole.review.processor.authority
    try:
        assert orders.deliver(order_body("o-1", "medium")).status_code == 202
        said = []
        for authority in (may_not, may_not, may_not, may, may_not, may_not):
            if authority is may:
                time.sleep(STEADY_SECONDS)
            orders.review.processor.authority = authority
            with capture_logs() as lines:
                orders.review.background.once()
            said.append([line["task"] for line in lines if line["event"] == "task_postponed"])
        assert said == [["fetch_approvals"], [], [], [], ["fetch_approvals"], []]
    finally:
        for one in (orders, whole):
            one.close()


class SilentShop:
    """Answers nothing until it is up, and counts what it is asked."""

    name = "silent"

    def __init__(self, how: FailureKind) -> None:
        self.how, self.is_up, self.calls = how, False, 0

    def fulfil(self, review: Review, operation_id: uuid.UUID) -> EffectResult:
        """Done once it is up."""
        return self._answer(Settled(str(operation_id)))

    def hold(self, review: Review, operation_id: uuid.UUID) -> EffectResult:
        """The same."""
        return self._answer(Settled(str(operation_id)))

    def look(self, review: Review) -> ShopStatus | NoAnswer:
        """Nothing is done yet."""
        return self._answer(ShopStatus("open"))

    def _answer(self, answer: Answer) -> Answer | NoAnswer:
        self.calls += 1
        return answer if self.is_up else NoAnswer(str(self.how))


@pytest.mark.parametrize("how", [FailureKind.TIMEOUT, FailureKind.NOT_SENT])
def test_many_orders_of_a_shop_that_answers_nothing_cost_few_calls_and_are_done_once_it_answers(
    fixtures: Fixtures, authority_url: str, how: FailureKind
) -> None:
    """The finding: each of them cost its whole time limit in each of its turns, and every other order waited behind them."""
    shop, seconds = SilentShop(how), [0.0]
    orders = make_intake(fixtures, authority_url, parts={"shop": shop})
    orders.review.processor.silent_shops = SilentShops(lambda: seconds[0])
    try:
        for number in range(20):
            assert orders.deliver(order_body(f"o-{number}")).json["status"] == "fulfilling"
            assert orders.deliver(order_body(f"high-{number}", "high")).json["status"] == "held"
        assert shop.calls == 4, "two orders, each of which asks and looks"
        assert orders.one("select count(tried_at) from orders.effects") == 2, (
            "the others' pages do not say that it was told"
        )
        seconds[0] = SILENT_SECONDS
        orders.make_due()
        orders.rounds()
        assert shop.calls == 5
        assert orders.one("select count(*) from orders.reviews where next_attempt_at < clock_timestamp()") == 0
        shop.is_up, seconds[0] = True, 2 * SILENT_SECONDS

        def are_done() -> bool:
            orders.make_due()
            return orders.one("select count(*) from orders.effects where state <> 'done'") == 0

        orders.rounds(10, until=are_done)
        assert orders.one("select count(*) from orders.reviews where status not in ('FULFILLED', 'HELD')") == 0
        assert fixtures.broken_invariants() == []
    finally:
        orders.close()


def test_the_orders_of_a_silent_shop_go_on_within_a_minute_of_its_return_however_long_it_was_silent(
    fixtures: Fixtures, authority_url: str
) -> None:
    """The finding: the pauses grew to more than six minutes, though only one of the orders makes a call."""
    shop, seconds = SilentShop(FailureKind.TIMEOUT), [0.0]
    orders = make_intake(fixtures, authority_url, parts={"shop": shop})
    orders.review.processor.silent_shops = SilentShops(lambda: seconds[0])
    try:
        for number in range(5):
            assert orders.deliver(order_body(f"o-{number}")).json["status"] == "fulfilling"
        fixtures.admin.execute("update orders.reviews set attempts = 20")
        asked, seconds[0] = shop.calls, SILENT_SECONDS
        orders.make_due()
        orders.review.background.once()
        assert shop.calls == asked + 1
        pause = "next_attempt_at - clock_timestamp() <= interval '1 minute'"
        assert orders.all(f"select distinct attempts, {pause} from orders.reviews") == [(21, True)]
    finally:
        orders.close()


def test_orders_of_a_silent_shop_that_were_not_executed_are_looked_up_one_at_a_time(
    fixtures: Fixtures, authority_url: str
) -> None:
    shop = SilentShop(FailureKind.TIMEOUT)
    orders = make_intake(fixtures, authority_url, parts={"shop": shop})
    orders.review.processor.silent_shops = SilentShops(lambda: 0.0)
    try:
        for number in range(5):
            assert orders.deliver(order_body(f"o-{number}")).json["status"] == "fulfilling"
        asked = shop.calls
        let_leave_end(fixtures)
        run_housekeeping(fixtures.authority.pool, 0)
        for (operation,) in orders.all("select operation_id from sentinel.operations"):
            resolve_in_doubt(
                fixtures.console_pool, actor(fixtures, "admin"), operation, executed=False, evidence="looked"
            )
        orders.make_due()
        orders.rounds()
        assert shop.calls == asked, "its next call is due in ten seconds"
        assert orders.all("select distinct status from orders.reviews") == [("STARTED",)]
        shop.is_up, orders.review.processor.silent_shops = True, SilentShops()
        orders.make_due()
        orders.rounds()
        assert orders.all("select distinct status from orders.reviews") == [("SHOP_REFUSED",)]
        assert fixtures.broken_invariants() == []
    finally:
        orders.close()


def test_an_order_that_waited_long_for_its_decision_is_not_late_at_the_shop_that_it_first_asks(
    fixtures: Fixtures, authority_url: str
) -> None:
    """The finding: its attempts at the authority counted, so that it was reported late and waited for minutes."""
    shop, silent = SilentShop(FailureKind.NOT_SENT), SilentShops(lambda: 0.0)
    orders = make_intake(fixtures, authority_url, parts={"shop": shop})
    for _ in range(SILENT_AFTER):
        silent.hear("demo", NoAnswer(str(FailureKind.NOT_SENT)))
    orders.review.processor.silent_shops = silent
    try:
        admin = local_administrator(fixtures.tenant_id)
        halted = set_halt(fixtures.console_pool, admin, scope="tenant", reason="drill")
        assert orders.deliver(order_body("o-0")).json["status"] == "received"
        fixtures.admin.execute("update orders.reviews set attempts = 20")
        lift_halt(fixtures.console_pool, admin, halted.halt_id, reason="over")

        def is_started() -> bool:
            if orders.status_and_lane("o-0")[0] == "STARTED":
                return True
            orders.make_due()
            return False

        orders.rounds(until=is_started)
        pause = "extract(epoch from next_attempt_at - clock_timestamp()) < 10"
        assert orders.all(f"select attempts, {pause} from orders.reviews") == [(1, True)]
        assert orders.all("select summary from orders.alerts") == []
    finally:
        orders.close()


@pytest.mark.parametrize(("address", "asked"), [("http://127.0.0.1:9", False), ("http://127.0.0.1:9/{source}", True)])
def test_the_sources_of_one_address_are_one_shop(
    fixtures: Fixtures, authority_url: str, address: str, asked: bool
) -> None:
    """The finding: each source found out by itself, and with four the background task waited for such calls all the time."""
    orders = make_intake(fixtures, authority_url, shop_url=address)
    try:
        for number in range(SILENT_AFTER):
            assert orders.deliver(order_body(f"o-{number}")).json["status"] == "fulfilling"
        assert not orders.review.processor.silent_shops.may_be_asked("demo")
        assert orders.review.processor.silent_shops.may_be_asked("shop") is asked
    finally:
        orders.close()

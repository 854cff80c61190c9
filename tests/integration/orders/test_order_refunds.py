"""A refund that an analyst files is paid on their decision, or the order comes back to them: never neither (B6)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from ops_console.api.orders import offers
from ops_console.read_models.order_views import find_order
from ops_console.resolve_order import resolve_order
from sentinel.authority.policy_inspector import PolicyInspector
from sentinel.core.errors import SentinelError
from sentinel.platform.resources import policies_dir
from sentinel.store.database import WORKER, Pool, with_role
from tests import mutants
from tests.support.fixtures import Fixtures, guard_body, start_body
from tests.support.harness import actor
from tests.support.ledger_fixtures import LedgerFixtures, wait_until, worker_process
from tests.support.order_fixtures import SECRET, OrderFixtures, make_intake, order_body
from worker.refunds.ledger import Ledger


def say(orders: OrderFixtures, order_id: str, decision: str, *, source: str = "demo", who: Any = None) -> str:
    """What became of a decision: the result, or the refusal's code."""
    person = who or actor(orders.fixtures, "approver")
    try:
        return resolve_order(
            orders.fixtures.console_pool,
            person,
            source,
            order_id,
            decision=decision,
            reason="called",
            digest=orders.digest(order_id),
            status=orders.status_and_lane(order_id)[0],
        ).result
    except SentinelError as error:
        return error.code


def work(orders: OrderFixtures, runs: int = 1) -> None:
    """Runs of a refund worker in this process, and the intake's rounds between them."""
    with closing(LedgerFixtures(orders.fixtures.url, orders.fixtures.tenant_id)) as ledger:
        for _ in range(runs):
            with ledger.agent(orders.authority_url, key=orders.fixtures.key) as agent:
                assert agent.run_once().why_outside is None
            orders.rounds()


def work_as_operators_do(orders: OrderFixtures, runs: int = 1, **env: str) -> None:
    """As `work`, each run a process of the command, with these settings too."""
    for _ in range(runs):
        done = worker_process(
            ["--once"], database_url=orders.fixtures.url, authority_url=orders.authority_url,
            **{"SENTINEL_REFUND_AGENT_API_KEY": orders.fixtures.key, "SENTINEL_TENANT_ID": str(orders.fixtures.tenant_id), **env},
        )  # fmt: skip
        out, errors = done.communicate(timeout=120)
        assert done.returncode in (0, 1), out + errors
        orders.rounds()


def rows(orders: OrderFixtures) -> list[tuple[Any, ...]]:
    """(entry, status, reason) of the ledger."""
    return orders.all("select ledger_entry_id, status, reason_code from refunds.ledger_entries order by created_at")


def test_a_guests_refund_is_paid_on_the_analysts_one_decision(orders: OrderFixtures) -> None:
    """The finding: 3 of 3 refunds of orders without an account were denied (`fact_missing`)."""
    names = [f"o-{number}" for number in range(3)]
    for name in names:
        assert orders.deliver(order_body(name, "medium", account_ref=None, account_age_days=None)).status_code == 202
        assert say(orders, name, "refund") == "refund"
    work_as_operators_do(orders, 2)
    assert [row[1] for row in rows(orders)] == ["EXECUTED"] * 3, rows(orders)
    assert {orders.status_and_lane(name)[0] for name in names} == {"REFUND_FILED"}
    assert orders.all("select distinct state, carried_result from orders.refunds") == [("paid", "approved")]
    votes = orders.all("select v.reason, a.reasons from sentinel.approval_votes v join sentinel.approvals a using (approval_id)"
                       " where a.action = 'refund.create'")  # fmt: skip
    assert votes == [("called", ["analyst_refund"])] * 3
    assert orders.fixtures.broken_invariants() == []


def asked_about(orders: OrderFixtures, **over: Any) -> str:
    """The state of the row of the order o-1's refund, which is filed and asked about; no vote is carried yet."""
    orders.deliver(order_body("o-1", "medium", **over))
    assert say(orders, "o-1", "refund") == "refund"
    with (
        closing(LedgerFixtures(orders.fixtures.url, orders.fixtures.tenant_id)) as ledger,
        ledger.agent(orders.authority_url, key=orders.fixtures.key) as agent,
    ):
        agent.run_once()
    return str(rows(orders)[0][1])


@pytest.mark.parametrize("alike", [False, True], ids=["another refund", "the same refund under another key"])
def test_an_analysts_vote_is_carried_to_the_approval_of_the_filed_refund_alone(
    orders: OrderFixtures, alike: bool
) -> None:
    """Which one its row names is written by the worker."""
    assert asked_about(orders) == "APPROVAL_REQUIRED"
    resource = {"resource": "refund/order:demo:o-1"} if alike else {}
    escalated = {"correlation_id": "c", "escalation": "analyst_refund"}
    other = orders.fixtures.guard(guard_body(value="42.50", evidence_context=escalated, **resource))["approval_id"]
    with orders.fixtures.as_role(WORKER) as connection:
        connection.execute(
            "update refunds.ledger_entries set approval_id = %s where ledger_entry_id = 'order:demo:o-1'", [other]
        )
    orders.rounds()
    assert orders.one("select status from sentinel.approvals where approval_id = %s", other) == "pending"
    assert orders.all("select carried_result from orders.refunds") == [("left_to_others",)]


@pytest.mark.parametrize(
    ("account", "reason"),
    [("acct-1", "limit_exceeded"), (None, "account_unknown")],
    ids=["an account's", "the guests'"],
)
def test_a_limit_of_the_account_keeps_no_decision_from_its_refund(
    orders: OrderFixtures, account: str | None, reason: str
) -> None:
    """A large order exceeds it by itself: its refund would always be decided twice."""
    for _ in range(2):
        paid = guard_body(value=150, params={"account_ref": account and f"demo:{account}"})
        assert orders.fixtures.guard(paid)["decision"] == "ALLOW"
    orders.deliver(order_body("o-1", "medium", account_ref=account))
    assert say(orders, "o-1", "refund") == "refund"
    work(orders, 2)
    decided = "select status, reasons from sentinel.approvals where action = 'refund.create'"
    assert orders.all(decided) == [("approved", ["analyst_refund", reason])]
    assert orders.all("select state, carried_result from orders.refunds") == [("paid", "approved")]


def test_a_limit_over_all_accounts_is_decided_by_somebody_who_sees_it(orders: OrderFixtures) -> None:
    """No order shows it."""
    assert asked_about(orders) == "APPROVAL_REQUIRED"
    orders.fixtures.admin.execute("set session_replication_role = replica")
    orders.fixtures.admin.execute(
        "update sentinel.approvals set reasons = reasons || 'total_exceeded'::text where action = 'refund.create'"
    )
    orders.fixtures.admin.execute("set session_replication_role = origin")
    orders.rounds()
    assert orders.all("select carried_result from orders.refunds") == [("left_to_others",)]


def test_from_500_on_two_people_pay_it_and_the_decision_on_the_order_is_the_first(orders: OrderFixtures) -> None:
    big = {"value": "600.00", "currency": "EUR"}
    orders.deliver(order_body("o-1", "medium", amount=big))
    ann, bob = actor(orders.fixtures, "approver"), actor(orders.fixtures, "admin")
    assert say(orders, "o-1", "refund", who=ann) == "refund"
    work(orders, 2)
    assert rows(orders)[0][1] == "APPROVAL_REQUIRED"
    assert orders.all("select state, carried_result from orders.refunds") == [("filed", "recorded")]
    from sentinel.authority.approvals import APPROVE, resolve_approval

    approval = orders.one("select approval_id from sentinel.approvals where action = 'refund.create'")
    shown = orders.one("select digest from sentinel.approvals where action = 'refund.create'")
    with pytest.raises(SentinelError):
        resolve_approval(orders.fixtures.console_pool, ann, approval, verdict=APPROVE, reason="me again", digest=shown)
    assert (
        resolve_approval(
            orders.fixtures.console_pool, bob, approval, verdict=APPROVE, reason="too", digest=shown
        ).result
        == "approved"
    )
    work(orders)
    assert rows(orders)[0][1] == "EXECUTED"
    assert orders.fixtures.broken_invariants() == []


@pytest.mark.parametrize(
    ("amount", "reason"),
    [({"value": "1500.00", "currency": "USD"}, "over_limit"), ({"value": "20000", "currency": "JPY"}, "currency_not_covered"),
     ({"value": "1000.01", "currency": "EUR"}, "over_limit"), ({"value": "90.00", "currency": "CHF"}, "currency_not_covered")],
)  # fmt: skip
def test_a_refund_that_is_denied_brings_its_order_back_with_the_reason_and_an_alert(
    orders: OrderFixtures, amount: dict[str, str], reason: str
) -> None:
    """Nothing asked the policy first here (the console does): the order comes back all the same, 4 of 4."""
    orders.deliver(order_body("o-1", "medium", amount=amount))
    assert say(orders, "o-1", "refund") == "refund"
    work(orders)
    assert rows(orders)[0][1:] == ("DENIED", reason)
    assert orders.status_and_lane("o-1") == ("REFUND_REFUSED", "medium")
    assert orders.one("select last_error from orders.reviews") == f"refund_denied: {reason}"
    told = f"the refund of an order was not paid: refund_denied: {reason}"
    assert orders.all("select kind, occasion, summary from orders.alerts") == [("refund_refused", "try 1", told)]
    assert say(orders, "o-1", "fulfil") == "conflict" and say(orders, "o-1", "refund") == "conflict"
    # Tried again it is a row of its own under the same refund id, and comes back again.
    assert say(orders, "o-1", "retry") == "retry"
    work(orders)
    assert [row[0] for row in rows(orders)] == ["order:demo:o-1", "order:demo:o-1/.try2"]
    assert orders.one("select count(distinct refund_id) from refunds.ledger_entries") == 1
    assert orders.status_and_lane("o-1")[0] == "REFUND_REFUSED"
    assert say(orders, "o-1", "hold") == "hold"
    orders.rounds()
    assert orders.all("select order_id, status from orders.simulated_shop") == [("o-1", "held")]
    assert orders.fixtures.broken_invariants() == []


def test_an_order_that_somebody_decides_on_is_tracked_in_the_next_round(orders: OrderFixtures) -> None:
    """The finding: its refund was locked, and then its review waited for, which the other one held: a deadlock."""
    assert asked_about(orders, amount={"value": "90.00", "currency": "CHF"}) == "DENIED"
    track = "select orders.track_filed_refunds(%s, 10, array[gen_random_uuid(), gen_random_uuid()])"
    with (
        psycopg.connect(orders.fixtures.url) as deciding,
        psycopg.connect(orders.fixtures.url, autocommit=True) as tracking,
    ):
        deciding.execute("select from orders.reviews where order_id = 'o-1' for update")
        tracking.execute("set lock_timeout = '2s'")
        assert tracking.execute(track, [orders.fixtures.tenant_id]).fetchone() == (0,)
        deciding.rollback()
        assert tracking.execute(track, [orders.fixtures.tenant_id]).fetchone() == (1,)
    assert orders.status_and_lane("o-1")[0] == "REFUND_REFUSED"


def filed_by_a_retry_of_the_shop(orders: OrderFixtures) -> int:
    """The checker: refunds that are filed on the decision of a person who saw that the shop had refused, when the refund was refused too."""
    orders.deliver(order_body("o-1", "medium"))
    assert say(orders, "o-1", "refund") == "refund"
    admin = orders.fixtures.admin
    admin.execute("set session_replication_role = replica")
    admin.execute("update refunds.ledger_entries set status = 'DENIED', reason_code = 'approval_expired'")
    admin.execute("set session_replication_role = origin")
    orders.rounds()
    assert orders.status_and_lane("o-1")[0] == "REFUND_REFUSED"
    person = actor(orders.fixtures, "approver")
    with suppress(SentinelError):
        resolve_order(
            orders.fixtures.console_pool,
            person,
            "demo",
            "o-1",
            decision="retry",
            reason="in stock",
            status="SHOP_REFUSED",
        )
    return len(rows(orders)) - 1


def test_a_retry_that_was_meant_for_the_shop_files_no_refund(orders: OrderFixtures) -> None:
    assert filed_by_a_retry_of_the_shop(orders) == 0


def test_mutant_that_takes_a_decision_wherever_its_order_stands_is_caught(orders: OrderFixtures) -> None:
    mutants.cut(orders.fixtures, "orders.resolve_review", "shown_status <> r.status", "false")
    assert filed_by_a_retry_of_the_shop(orders) == 1


def test_an_order_may_have_any_id_and_its_refund_is_no_second_try_of_anothers(orders: OrderFixtures) -> None:
    denied = {"value": "1500.00", "currency": "USD"}
    for order_id in ("o-1", "o-1:try2"):
        orders.deliver(order_body(order_id, "medium", amount=denied))
    assert say(orders, "o-1", "refund") == "refund"
    work(orders)
    assert (say(orders, "o-1", "retry"), say(orders, "o-1:try2", "refund")) == ("retry", "refund")
    work(orders, 2)
    assert {order_id: orders.status_and_lane(order_id)[0] for order_id in ("o-1", "o-1:try2")} == {
        "o-1": "REFUND_REFUSED",
        "o-1:try2": "REFUND_REFUSED",
    }
    assert len(rows(orders)) == 3 and orders.fixtures.broken_invariants() == []


ACCOUNTS = """
select l.account_ref, o.account_ref from refunds.ledger_entries l
join refunds.orders o using (tenant_id, channel, source, order_ref) where l.escalation = 'analyst_refund'
"""


def test_refunds_of_a_customer_do_not_count_against_whoever_has_the_same_id_at_another_source(
    fixtures: Fixtures, authority_url: str
) -> None:
    secrets = {"ORDERS_DEMO_SECRET": SECRET, "SHOP_WEBHOOK_SECRET": "only-for-tests-shop-secret-0123456789"}
    orders = make_intake(fixtures, authority_url, secrets=secrets)
    for number in range(5):
        orders.deliver(order_body(f"o-{number}", "medium", account_ref="1001"))
        assert say(orders, f"o-{number}", "refund") == "refund"
    body = order_body("o-other", "medium", account_ref="1001")
    digest = hmac.new(secrets["SHOP_WEBHOOK_SECRET"].encode(), body, hashlib.sha256).hexdigest()
    headers = {"X-Shop-Hmac-Sha256": digest, "Content-Type": "application/json"}
    assert orders.deliver(body, headers=headers, source="shop").status_code == 202
    assert say(orders, "o-other", "refund", source="shop") == "refund"
    work(orders, 2)
    assert rows(orders)[-1] == ("order:shop:o-other", "EXECUTED", "analyst_refund")
    assert sorted(set(orders.all(ACCOUNTS))) == [("demo:1001",) * 2, ("shop:1001",) * 2]
    assert fixtures.broken_invariants() == []
    orders.close()


TOLD = """insert into refunds.orders (tenant_id, source, order_ref, account_ref, ordered_at, paid_minor, currency)
  values (%s, 'demo', 'o-1', %s, clock_timestamp(), 4250, 'USD')"""
ENTERED = """insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, source, order_ref, account_ref)
  values (%s, 'lge-1', 'rf-1', 100, 'USD', 'demo', 'o-1', %s)"""


@pytest.mark.parametrize("known", [TOLD, ENTERED], ids=["the order's fact", "a row of the order"])
@pytest.mark.parametrize(
    ("account", "filed"),
    [("1001", "1001"), ("demo:1001", "demo:1001"), (None, "demo:1001"), ("somebody_else", "demo:1001")],
)
def test_the_account_of_a_filed_refund_is_what_the_ledger_calls_the_customer_already(
    orders: OrderFixtures, known: str, account: str | None, filed: str
) -> None:
    """Called in two ways the customer would be somebody else, for whom a person is asked. Whoever is called neither is somebody else."""
    orders.deliver(order_body("o-1", "medium", account_ref="1001"))
    orders.fixtures.admin.execute(known.encode(), [orders.fixtures.tenant_id, account])
    assert say(orders, "o-1", "refund") == "refund"
    of_order = account if known == TOLD else filed
    assert orders.all(ACCOUNTS) == [(filed, of_order)]


OTHERWISE_TOLD = """insert into refunds.orders (tenant_id, channel, source, order_ref, account_ref, ordered_at, paid_minor, currency)
  values (%s, %s, %s, 'o-1', 'acct-1', clock_timestamp() - interval '1 day', 4250, 'USD')"""
OTHERWISE_ENTERED = """insert into refunds.ledger_entries (tenant_id, channel, source, ledger_entry_id, refund_id, amount_minor, currency,
  order_ref, account_ref) values (%s, %s, %s, 'lge-1', 'rf-1', 4250, 'USD', 'o-1', 'acct-1')"""
ASKED = "APPROVAL_REQUIRED", "refunded_before"


@pytest.mark.parametrize(
    ("channel", "source", "ends_as"),
    [("retail", "", ASKED), ("private", "demo", ASKED), ("private", "", ASKED), ("retail", "shop", ("EXECUTED", "analyst_refund"))],
)  # fmt: skip
def test_an_order_that_was_refunded_under_another_budget_is_not_refunded_on_one_decision(
    orders: OrderFixtures, channel: str, source: str, ends_as: tuple[str, str]
) -> None:
    """Rows and facts without a source have a budget of their own, and so has another channel; another source's order is another."""
    orders.deliver(order_body("o-1", "medium"))
    for statement in (OTHERWISE_TOLD, OTHERWISE_ENTERED):
        orders.fixtures.admin.execute(statement.encode(), [orders.fixtures.tenant_id, channel, source])
    work(orders)
    assert rows(orders)[0][1] == ("EXECUTED" if channel == "retail" else "APPROVAL_REQUIRED")
    assert say(orders, "o-1", "refund") == "refund"
    work(orders, 2)
    assert rows(orders)[-1] == ("order:demo:o-1", *ends_as)
    carried = "left_to_others" if ends_as == ASKED else "approved"
    assert orders.all("select carried_result from orders.refunds") == [(carried,)]
    assert orders.fixtures.broken_invariants() == []


@pytest.mark.parametrize(("length", "filed"), [(123, 128), (124, 41), (200, 41)])
def test_an_account_that_the_ledgers_names_cannot_hold_goes_in_as_its_hash(
    orders: OrderFixtures, length: int, filed: int
) -> None:
    orders.deliver(order_body("o-1", "medium", account_ref="1" * length))
    assert say(orders, "o-1", "refund") == "refund"
    (accounts,) = orders.all(ACCOUNTS)
    assert accounts[0] == accounts[1] and (accounts[0][:5], len(accounts[0])) == ("demo:", filed)


UNSEEN = """
select count(*) from refunds.ledger_entries l join orders.reviews r on r.tenant_id = l.tenant_id and r.order_id = l.order_ref
where l.status = 'DENIED' and (r.status <> 'REFUND_REFUSED' or not exists (
  select from orders.alerts a where a.tenant_id = r.tenant_id and a.order_id = r.order_id and a.kind = 'refund_refused'))
"""


def died_unseen(orders: OrderFixtures) -> tuple[int, list[str]]:
    """The checker: denied refunds whose order is with nobody or that nobody hears of, and what the doctor says minutes later."""
    orders.deliver(order_body("o-1", "medium", amount={"value": "1500.00", "currency": "USD"}))
    assert say(orders, "o-1", "refund") == "refund"
    work(orders)
    assert rows(orders)[0][1] == "DENIED"
    orders.fixtures.admin.execute("set session_replication_role = replica")
    orders.fixtures.admin.execute("update refunds.ledger_entries set updated_at = updated_at - interval '3 minutes'")
    orders.fixtures.admin.execute("set session_replication_role = origin")
    return int(orders.one(UNSEEN)), orders.fixtures.broken_invariants()


def test_no_denied_refund_dies_unseen(orders: OrderFixtures) -> None:
    assert died_unseen(orders) == (0, [])


@pytest.mark.parametrize(
    ("fence", "instead", "doctor"),
    [
        ("l.status in ('EXECUTED', 'DENIED', 'ERROR')", "l.status = 'EXECUTED'", ["order_refund_died_unseen"]),
        ("set status = 'REFUND_REFUSED', last_event", "set last_event", ["order_refund_missing"]),
        ("and r.review_id = f.review_id\n      on conflict", "and false\n      on conflict", []),
    ],
    ids=["nobody looks at what was denied", "the order stays where it is", "the alert is lost"],
)
def test_mutant_that_lets_a_denied_refund_lie_is_caught(
    orders: OrderFixtures, fence: str, instead: str, doctor: list[str]
) -> None:
    mutants.cut(orders.fixtures, "orders.track_filed_refunds", fence, instead)
    assert died_unseen(orders) == (1, doctor)


def test_a_refund_that_failed_after_its_start_waits_until_a_person_says_what_happened(orders: OrderFixtures) -> None:
    orders.deliver(order_body("o-1", "medium"))
    assert say(orders, "o-1", "refund") == "refund"
    work(orders, 2)
    assert rows(orders)[0][1] == "EXECUTED"
    admin = orders.fixtures.admin
    admin.execute("set session_replication_role = replica")
    admin.execute("update refunds.ledger_entries set status = 'ERROR', last_error = 'settlement refused'")
    admin.execute("update orders.refunds set state = 'filed', ended_at = null")
    admin.execute(
        "update sentinel.operation_states set status = 'in_doubt', outcome = null,"
        " in_doubt_since = clock_timestamp(), in_doubt_reason = 'no_report' where reason_code = 'analyst_refund'"
    )
    admin.execute("set session_replication_role = origin")
    orders.rounds()
    assert orders.status_and_lane("o-1")[0] == "REFUND_REFUSED"
    told = orders.one("select summary from orders.alerts")
    assert told == "the refund of an order failed, and may have been paid: refund_failed: settlement refused"
    shown = find_order(orders.fixtures.console_pool, orders.fixtures.tenant_id, "demo", "o-1")
    assert shown is not None and shown.refund_is_live
    assert shown.refund_in_doubt == orders.one(
        "select operation_id from sentinel.operation_states where status = 'in_doubt'"
    )
    assert [say(orders, "o-1", decision) for decision in ("retry", "hold")] == ["conflict"] * 2
    # It had been done: the order's way is over, and nothing is filed anew.
    admin.execute(
        "update sentinel.operation_states set status = 'completed', outcome = 'success', in_doubt_since = null,"
        " in_doubt_reason = null where status = 'in_doubt'"
    )
    orders.rounds()
    assert orders.status_and_lane("o-1")[0] == "REFUND_FILED"
    assert orders.all("select state from orders.refunds") == [("paid",)]


NEVER_STARTED = "it was never started", None
NOT_EXECUTED = "a person said that it was not executed", "not_executed"


def ends(orders: OrderFixtures, why: str, **over: Any) -> None:
    """The filed refund's row stands in ERROR, with what is said of it."""
    fields = {"last_error": why, "reason_code": None, "budget_part": None, "act_until": None, **over}
    admin = orders.fixtures.admin
    admin.execute("set session_replication_role = replica")
    admin.execute(
        "update refunds.ledger_entries set status = 'ERROR', start_id = coalesce(start_id, gen_random_uuid()),"
        " last_error = %(last_error)s, reason_code = %(reason_code)s, last_event = 'gave_up', budget_part = %(budget_part)s,"
        " act_until = %(act_until)s",
        fields,
    )
    admin.execute("set session_replication_role = origin")
    orders.rounds()


@pytest.mark.parametrize(("why", "code"), [NEVER_STARTED, NOT_EXECUTED])
@pytest.mark.parametrize("doubted", [False, True], ids=["at once", "after it was in doubt"])
def test_a_refund_that_ended_unpaid_is_not_said_to_be_in_doubt(
    orders: OrderFixtures, why: str, code: str | None, doubted: bool
) -> None:
    orders.deliver(order_body("o-1", "medium"))
    assert say(orders, "o-1", "refund") == "refund"
    orders.rounds()
    if doubted:
        ends(orders, "gave up", budget_part="in_doubt", act_until=datetime.now(UTC))
        assert orders.one("select last_error from orders.reviews") == "refund_failed: gave up"
    ends(orders, why, reason_code=code)
    assert orders.status_and_lane("o-1")[0] == "REFUND_REFUSED"
    assert orders.one("select last_error from orders.reviews") == f"refund_unpaid: {why}"
    assert orders.all("select state, refused_code from orders.refunds") == [("refused", f"refund_unpaid: {why}")]
    first = (
        "failed, and may have been paid: refund_failed: gave up" if doubted else f"was not paid: refund_unpaid: {why}"
    )
    assert orders.all("select summary from orders.alerts") == [(f"the refund of an order {first}",)], (
        "one, as it was then"
    )
    before = orders.one("select updated_at from orders.reviews")
    orders.rounds()
    assert orders.one("select updated_at from orders.reviews") == before


@pytest.mark.parametrize("doubted", [False, True], ids=["at once", "after it was in doubt"])
def test_a_refund_whose_doubt_ended_as_handled_is_handled(orders: OrderFixtures, doubted: bool) -> None:
    orders.deliver(order_body("o-1", "medium"))
    assert say(orders, "o-1", "refund") == "refund"
    orders.rounds()
    if doubted:
        ends(orders, "gave up", budget_part="in_doubt", act_until=datetime.now(UTC))
        assert orders.status_and_lane("o-1")[0] == "REFUND_REFUSED"
    ends(orders, "a person handled it elsewhere", budget_part="handled")
    assert orders.status_and_lane("o-1")[0] == "REFUND_FILED"
    assert orders.all("select state, refused_code from orders.refunds") == [("handled", None)]


GIVES_UP = (
    "status = 'GUARDING', last_event = 'claimed', claim_epoch = claim_epoch + 1, claimed_by = 'w', waiting_for = null,"
    " lease_until = clock_timestamp() + interval '1 minute'",
    "status = 'ERROR', last_event = 'gave_up', last_error = 'gave up', claimed_by = null, lease_until = null",
)
RETRIED = "select ledger_entry_id, refusal from refunds.retry_entries(%s, null, 'op', 'mended')"


def given_up(orders: OrderFixtures) -> None:
    """The filed refund's row fails before its start, as a worker gives it up, and its order comes back."""
    for change in GIVES_UP:
        orders.fixtures.admin.execute(
            f"update refunds.ledger_entries set {change}, event_number = event_number + 1".encode()
        )
    orders.rounds()
    assert orders.status_and_lane("o-1")[0] == "REFUND_REFUSED"
    assert orders.one("select last_error from orders.reviews") == "refund_unpaid: gave up"


def refund_given_up(orders: OrderFixtures, *, approved: bool) -> None:
    """An order whose refund was filed by an approver and failed before its start; `approved`: the authority had it approved by then."""
    orders.deliver(order_body("o-1", "medium"))
    assert say(orders, "o-1", "refund") == "refund"
    if approved:
        work(orders)
        assert orders.all("select carried_result from orders.refunds") == [("approved",)]
    given_up(orders)


@pytest.mark.parametrize("approved", [False, True], ids=["before it was asked", "approved"])
def test_a_refund_of_an_order_that_was_held_since_is_not_tried_again(orders: OrderFixtures, approved: bool) -> None:
    refund_given_up(orders, approved=approved)
    assert say(orders, "o-1", "hold") == "hold"
    assert orders.all(RETRIED, orders.fixtures.tenant_id) == [("order:demo:o-1", "closed_by_analyst")]
    work(orders)
    assert [row[:2] for row in rows(orders)] == [("order:demo:o-1", "ERROR")]
    assert orders.status_and_lane("o-1")[0] == "HELD"
    assert orders.fixtures.broken_invariants() == []


@pytest.mark.parametrize("approved", [False, True], ids=["before it was asked", "approved"])
def test_a_refund_that_failed_before_its_start_is_tried_again_as_the_same_row_and_paid_once(
    orders: OrderFixtures, approved: bool
) -> None:
    """A new row of the same refund would be denied: what a person approved stays held for the first one."""
    refund_given_up(orders, approved=approved)
    admin = actor(orders.fixtures, "admin")
    assert say(orders, "o-1", "retry", who=admin) == "retry"
    assert [row[:2] for row in rows(orders)] == [("order:demo:o-1", "NEW")]
    assert orders.status_and_lane("o-1")[0] == "REFUND_FILED"
    assert orders.all("select attempt, state, filed_by from orders.refunds") == [(1, "filed", admin.operator_id)]
    tried = orders.all("select retried_by, reason from refunds.retries")
    assert len(tried) == 1 and tried[0][1] == "called" and "@" in tried[0][0]
    work(orders, 2)
    assert [row[:2] for row in rows(orders)] == [("order:demo:o-1", "EXECUTED")]
    assert orders.status_and_lane("o-1")[0] == "REFUND_FILED"
    assert orders.all("select state from orders.refunds") == [("paid",)]
    assert orders.fixtures.broken_invariants() == []


def test_each_failure_of_a_refund_that_was_tried_again_is_told(orders: OrderFixtures) -> None:
    refund_given_up(orders, approved=False)
    for number in (1, 2):
        assert say(orders, "o-1", "retry") == "retry"
        given_up(orders)
        assert orders.all("select occasion from orders.alerts order by created_at")[number:] == [
            (f"try 1, again {number}",)
        ]


def filed_beside_the_first(orders: OrderFixtures) -> None:
    """As "Try again" did once: the approved row that had failed is closed, and another of the same refund filed, which is denied."""
    refund_given_up(orders, approved=True)
    admin = orders.fixtures.admin
    admin.execute("set session_replication_role = replica")
    admin.execute("update orders.refunds set state = 'closed'")
    admin.execute("update orders.reviews set status = 'REFUND_FILED'")
    admin.execute("set session_replication_role = origin")
    admin.execute(
        "select orders.file_refund(r, f.filed_by, 'again', 'console') from orders.reviews r join orders.refunds f using (tenant_id, review_id)"
    )
    work(orders)
    assert rows(orders)[1] == ("order:demo:o-1/.try2", "DENIED", "duplicate_resource")


@pytest.mark.parametrize("by", ["the analyst", "worker retry"])
def test_an_approved_refund_that_was_closed_for_a_try_that_is_denied_for_it_is_tried_again_and_paid_once(
    orders: OrderFixtures, by: str
) -> None:
    """Whatever is filed beside it is denied for good: the authority holds the refund id for the first row."""
    filed_beside_the_first(orders)
    assert orders.one("select last_error from orders.reviews") == "refund_unpaid: gave up"
    if by == "the analyst":
        assert say(orders, "o-1", "retry") == "retry"
    else:
        assert orders.all(RETRIED, orders.fixtures.tenant_id) == [("order:demo:o-1", None)]
    work(orders, 2)
    assert [row[:2] for row in rows(orders)] == [("order:demo:o-1", "EXECUTED"), ("order:demo:o-1/.try2", "DENIED")]
    assert orders.status_and_lane("o-1")[0] == "REFUND_FILED"
    assert orders.all("select state from orders.refunds order by attempt") == [("paid",), ("closed",)]
    shown = find_order(orders.fixtures.console_pool, orders.fixtures.tenant_id, "demo", "o-1")
    assert shown is not None and shown.ledger_entry_id == "order:demo:o-1"
    assert orders.fixtures.broken_invariants() == []


def test_one_that_an_operator_had_tried_again_while_it_was_closed_takes_its_order_along(orders: OrderFixtures) -> None:
    """As `worker retry` did once."""
    refund_given_up(orders, approved=True)
    assert orders.all(RETRIED, orders.fixtures.tenant_id) == [("order:demo:o-1", None)]
    admin = orders.fixtures.admin
    admin.execute("set session_replication_role = replica")
    admin.execute("update orders.refunds set state = 'closed'")
    admin.execute(
        "update orders.reviews set status = 'REFUND_REFUSED', last_error = 'refund_denied: duplicate_resource'"
    )
    admin.execute(
        "insert into orders.refunds select (r).* from (select jsonb_populate_record(f, jsonb_build_object('attempt', 2, 'state', 'refused',"
        " 'ledger_entry_id', f.ledger_entry_id || '/.try2')) r from orders.refunds f) x"
    )
    admin.execute(
        "insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, status, reason_code)"
        " select tenant_id, ledger_entry_id || '/.try2', refund_id, amount_minor, currency, 'DENIED', 'duplicate_resource'"
        " from refunds.ledger_entries"
    )
    admin.execute("set session_replication_role = origin")
    work(orders, 2)
    assert [row[1] for row in rows(orders)] == ["EXECUTED", "DENIED"]
    assert orders.status_and_lane("o-1")[0] == "REFUND_FILED"
    assert orders.all("select state from orders.refunds order by attempt") == [("paid",), ("closed",)]


@pytest.mark.parametrize("moment", ["before the round", "after it"])
def test_such_a_refund_stays_closed_where_its_order_is_held(orders: OrderFixtures, moment: str) -> None:
    filed_beside_the_first(orders)
    if moment == "before the round":
        admin = orders.fixtures.admin
        admin.execute("set session_replication_role = replica")
        admin.execute("update orders.refunds set state = case attempt when 1 then 'closed' else 'refused' end")
        admin.execute("set session_replication_role = origin")
    assert say(orders, "o-1", "hold") == "hold"
    orders.rounds()
    assert orders.all("select distinct state from orders.refunds") == [("closed",)]
    assert orders.all(RETRIED, orders.fixtures.tenant_id) == [("order:demo:o-1", "closed_by_analyst")]
    assert orders.status_and_lane("o-1")[0] == "HELD"


@pytest.fixture
def refund_ledger(orders: OrderFixtures) -> Iterator[Ledger]:
    """The ledger as an operator's command opens it."""
    pool = Pool(with_role(orders.fixtures.url, WORKER), size=1)
    yield Ledger(pool, orders.fixtures.tenant_id, worker_id="op")
    pool.close()


@pytest.mark.parametrize("doubted", [False, True], ids=["surely unpaid", "in doubt before"])
def test_a_refund_that_a_person_handled_after_worker_retry_is_handled_though_no_round_came_between(
    orders: OrderFixtures, refund_ledger: Ledger, doubted: bool
) -> None:
    """As a restored backup is worked up, before the intake starts."""
    refund_given_up(orders, approved=False)
    if doubted:
        ends(orders, "gave up", budget_part="in_doubt", act_until=datetime.now(UTC))
        ends(orders, NEVER_STARTED[0])
    assert orders.all(RETRIED, orders.fixtures.tenant_id) == [("order:demo:o-1", None)]
    assert refund_ledger.handle("order:demo:o-1", who="op", reference="bank 7", why="paid since") is None
    orders.rounds()
    assert orders.status_and_lane("o-1")[0] == "REFUND_FILED"
    assert orders.all("select state, refused_code from orders.refunds") == [("handled", None)]
    assert say(orders, "o-1", "retry") == "conflict"
    assert orders.fixtures.broken_invariants() == []


@pytest.mark.parametrize("end", ["failed", "denied", "in doubt"])
def test_a_refund_that_ended_anew_between_two_rounds_is_told_as_it_ended_then(orders: OrderFixtures, end: str) -> None:
    refund_given_up(orders, approved=False)
    assert orders.all(RETRIED, orders.fixtures.tenant_id) == [("order:demo:o-1", None)]
    doubt = (
        ", start_id = gen_random_uuid(), act_until = clock_timestamp(), guard_request = '{}'"
        if end == "in doubt"
        else ""
    )
    ended = (
        "status = 'DENIED', last_event = 'denied', reason_code = 'over_limit', claimed_by = null, lease_until = null"
    )
    for change in (GIVES_UP[0] + doubt, ended if end == "denied" else GIVES_UP[1].replace("gave up", "once more")):
        orders.fixtures.admin.execute(
            f"update refunds.ledger_entries set {change}, event_number = event_number + 1".encode()
        )
    orders.rounds()
    told = {
        "failed": "refund_unpaid: once more",
        "denied": "refund_denied: over_limit",
        "in doubt": "refund_failed: once more",
    }[end]
    assert orders.status_and_lane("o-1")[0] == "REFUND_REFUSED"
    assert orders.one("select last_error from orders.reviews") == told
    assert orders.all("select state, refused_code from orders.refunds") == [("refused", told)]
    assert orders.all("select occasion, details ->> 'reason' from orders.alerts order by created_at") == [
        ("try 1", "refund_unpaid: gave up"),
        ("try 1, again 1", told),
    ]
    before = orders.one("select updated_at from orders.reviews")
    orders.rounds()
    assert orders.one("select updated_at from orders.reviews") == before
    assert orders.fixtures.broken_invariants() == []


def test_while_the_ledger_holds_a_refund_in_doubt_no_other_is_filed(orders: OrderFixtures) -> None:
    """The authority has no start of it, and the worker has not asked yet: a hold is heard, and stays."""
    orders.deliver(order_body("o-1", "medium"))
    assert say(orders, "o-1", "refund") == "refund"
    ends(orders, "gave up", budget_part="in_doubt", act_until=datetime.now(UTC))
    shown = find_order(orders.fixtures.console_pool, orders.fixtures.tenant_id, "demo", "o-1")
    assert shown is not None and (shown.refund_is_live, shown.refund_is_undecided) == (False, True)
    policies = PolicyInspector(policies_dir()).in_force(orders.fixtures.console_pool)
    assert offers(shown, policies) == ["hold"], "only what would be heard"
    assert say(orders, "o-1", "retry") == "conflict"
    assert len(rows(orders)) == 1
    assert say(orders, "o-1", "hold") == "hold"
    ends(orders, NEVER_STARTED[0])
    assert orders.all(RETRIED, orders.fixtures.tenant_id) == [("order:demo:o-1", "closed_by_analyst")]


def test_what_a_person_called_not_executed_is_filed_anew_whatever_its_effect_was_left_as(orders: OrderFixtures) -> None:
    orders.deliver(order_body("o-1", "medium"))
    assert say(orders, "o-1", "refund") == "refund"
    ends(orders, NOT_EXECUTED[0], reason_code=NOT_EXECUTED[1])
    admin = orders.fixtures.admin
    admin.execute("set session_replication_role = replica")
    admin.execute(
        "insert into refunds.effects (tenant_id, ledger_entry_id, effect_number, operation_reference, system, reference, must_total, state,"
        " last_error, claim_epoch) select tenant_id, ledger_entry_id, 1, start_id, 'platform_backend', start_id, 1, 'in_doubt', 'x', 1"
        " from refunds.ledger_entries"
    )
    admin.execute("set session_replication_role = origin")
    assert orders.one("select refunds.may_have_been_paid(e) from refunds.ledger_entries e") == "effects_open"
    assert say(orders, "o-1", "retry") == "retry"
    assert len(rows(orders)) == 2


@pytest.mark.usefixtures("patient")
def test_who_holds_an_order_waits_for_who_has_its_refund_tried_again_at_that_moment(orders: OrderFixtures) -> None:
    refund_given_up(orders, approved=False)
    waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    with psycopg.connect(orders.fixtures.url) as operator, ThreadPoolExecutor(1) as analyst:
        assert operator.execute(RETRIED, [orders.fixtures.tenant_id]).fetchall() == [("order:demo:o-1", None)]
        said = analyst.submit(say, orders, "o-1", "hold")
        try:
            wait_until(lambda: said.done() or orders.one(waits) > 0)
            assert not said.done(), "it did not wait"
        finally:
            operator.commit()
        assert said.result(60) == "conflict"
    work(orders, 2)
    assert [row[:2] for row in rows(orders)] == [("order:demo:o-1", "EXECUTED")]
    assert orders.status_and_lane("o-1")[0] == "REFUND_FILED"
    assert orders.fixtures.broken_invariants() == []


ANOTHER, NAMED_ALIKE = {"agent_id": "another"}, {"agent_id": "retail-refund-agent", "value": "42.50"}


def take_key(orders: OrderFixtures, key: str, went: str, **over: Any) -> None:
    """Another key's action under an idempotency key, gone as far as `went`: allowed, started, in_doubt or success."""
    fixtures, taken = orders.fixtures, guard_body(key, **over)
    other = fixtures.new_key()
    answer = fixtures.post("action/guard", taken, key=other)
    assert answer.json["status"] == "allowed", answer.text
    if went == "allowed":
        return
    assert fixtures.post("action/guard/start", start_body(taken, answer.json), key=other).status_code == 200
    if went == "started":
        return
    told = {name: taken[name] for name in ("idempotency_key", "action", "agent_id")}
    outcome = "success" if went == "success" else "error"
    assert fixtures.post("action/guard/report", {**told, "outcome": outcome}, key=other).status_code == 200


@pytest.mark.parametrize("over", [ANOTHER, NAMED_ALIKE], ids=["another agent", "in the same name, of the same amount"])
@pytest.mark.parametrize("went", ["allowed", "started", "in_doubt", "success"])
def test_what_becomes_of_who_took_a_filed_refunds_key_is_not_told_as_the_refunds(
    orders: OrderFixtures, went: str, over: dict[str, Any]
) -> None:
    """Its key is known to the shop. Tried again the refund is a row with another key, and paid once."""
    orders.deliver(order_body("o-1", "medium"))
    assert say(orders, "o-1", "refund") == "refund"
    take_key(orders, "refund:order:demo:o-1", went, **over)
    work(orders)
    assert rows(orders)[0][1] == "ERROR"
    assert str(orders.one("select last_error from orders.reviews")).startswith("refund_unpaid: key_conflict: ")
    shown = find_order(orders.fixtures.console_pool, orders.fixtures.tenant_id, "demo", "o-1")
    assert shown is not None
    assert (shown.refund_is_live, shown.refund_is_undecided, shown.refund_in_doubt) == (False, False, None)
    assert say(orders, "o-1", "retry") == "retry"
    assert orders.all(RETRIED, orders.fixtures.tenant_id) == [("order:demo:o-1", "closed_by_analyst")]
    work(orders, 2)
    assert [row[:2] for row in rows(orders)] == [("order:demo:o-1", "ERROR"), ("order:demo:o-1/.try2", "EXECUTED")]
    assert orders.status_and_lane("o-1")[0] == "REFUND_FILED"
    assert orders.all("select state from orders.refunds order by attempt") == [("closed",), ("paid",)]
    # The doctor names a success that somebody reported in the worker's name.
    told = ["execution_missing"] if went == "success" and over is NAMED_ALIKE else []
    assert orders.fixtures.broken_invariants() == told


def test_an_order_whose_refunds_key_was_taken_is_held_on_one_decision(orders: OrderFixtures) -> None:
    orders.deliver(order_body("o-1", "medium"))
    assert say(orders, "o-1", "refund") == "refund"
    take_key(orders, "refund:order:demo:o-1", "success", **ANOTHER)
    work(orders)
    assert say(orders, "o-1", "hold") == "hold"
    assert orders.status_and_lane("o-1")[0] == "HELD"


def test_a_refund_whose_answer_was_lost_is_in_doubt_by_the_operation_that_asks_the_same(orders: OrderFixtures) -> None:
    """Its row knows no operation."""
    orders.deliver(order_body("o-1", "medium"))
    assert say(orders, "o-1", "refund") == "refund"
    take_key(orders, "refund:order:demo:o-1", "in_doubt", **NAMED_ALIKE)
    ends(orders, "gave up after 8 attempts, the last: no answer")
    shown = find_order(orders.fixtures.console_pool, orders.fixtures.tenant_id, "demo", "o-1")
    assert shown is not None and shown.refund_is_live
    assert shown.refund_in_doubt == orders.one(
        "select operation_id from sentinel.operation_states where status = 'in_doubt'"
    )
    assert [say(orders, "o-1", decision) for decision in ("retry", "hold")] == ["conflict"] * 2


DEFAULT, EU = "retail-refund-agent", "eu"


@pytest.mark.parametrize(
    ("heard", "agent"),
    [([], DEFAULT), ([(EU, 1)], EU), ([(EU, 86400)], EU), ([(EU, 1), (DEFAULT, 60)], DEFAULT), ([(EU, 1), (DEFAULT, 3600)], EU)],
    ids=["none", "one of another name", "one that is down", "one of each", "one that was renamed"],
)  # fmt: skip
def test_a_filed_refund_is_of_an_agent_whose_worker_takes_it(
    orders: OrderFixtures, heard: list[tuple[str, int]], agent: str
) -> None:
    """One with a bound key takes the rows of its agent alone, and what a row asks for never changes."""
    for name, seconds in heard:
        orders.fixtures.admin.execute(
            "insert into refunds.workers (tenant_id, worker_id, agent_id, mode, status, last_seen_at)"
            " values (%s, %s, %s, 'loop', 'running', clock_timestamp() - make_interval(secs => %s))",
            [orders.fixtures.tenant_id, name, name, seconds],
        )
    orders.deliver(order_body("o-1", "medium"))
    assert say(orders, "o-1", "refund") == "refund"
    assert orders.all("select agent_id from refunds.ledger_entries") == [(agent,)]


def test_a_worker_of_another_name_with_a_bound_key_pays_what_an_analyst_files(orders: OrderFixtures) -> None:
    key = orders.fixtures.new_key(agent_id=EU)
    work_as_operators_do(orders, SENTINEL_REFUND_AGENT_API_KEY=key, WORKER_AGENT_ID=EU)
    orders.deliver(order_body("o-1", "medium"))
    assert say(orders, "o-1", "refund") == "refund"
    work_as_operators_do(orders, 2, SENTINEL_REFUND_AGENT_API_KEY=key, WORKER_AGENT_ID=EU)
    assert rows(orders)[0][1] == "EXECUTED"
    assert orders.status_and_lane("o-1")[0] == "REFUND_FILED"
    assert orders.fixtures.broken_invariants() == []


@pytest.mark.parametrize("kept", ["0001-01-01T00:00:00+01:00", "2026-11-01T00:00:00+23:59"])
def test_an_order_kept_with_a_time_that_is_none_to_the_database_is_filed_as_old_as_can_be(
    orders: OrderFixtures, kept: str
) -> None:
    """As the intake once kept it, before it read a time as its moment in UTC."""
    assert orders.deliver(order_body("o-1", "medium")).status_code == 202
    admin = orders.fixtures.admin
    admin.execute("set session_replication_role = replica")
    admin.execute(
        "update orders.reviews set order_facts = order_facts || jsonb_build_object('placed_at', %s::text)", [kept]
    )
    admin.execute("set session_replication_role = origin")
    assert say(orders, "o-1", "refund") == "refund"
    assert orders.all("select ordered_at::text from refunds.orders") == [("0001-01-01 00:00:00+00",)]
    work(orders)
    assert rows(orders)[0][1:] == ("DENIED", "stale_window")
    assert orders.status_and_lane("o-1")[0] == "REFUND_REFUSED", "it is with a person again"


@pytest.mark.parametrize(("placed", "status"), [("0001-01-01T00:00:00+01:00", 400), ("2026-11-01T00:00:00+23:59", 202)])
def test_a_delivered_time_is_one_that_a_refund_can_be_filed_of_or_refused_by_name(
    orders: OrderFixtures, placed: str, status: int
) -> None:
    answer = orders.deliver(order_body("o-1", "medium", placed_at=placed))
    assert answer.status_code == status
    if status == 400:
        assert answer.json["errors"] == {"order.placed_at": "must be an RFC 3339 time"}
    else:
        assert say(orders, "o-1", "refund") == "refund"
        assert orders.all("select ordered_at::text from refunds.orders") == [("2026-10-31 00:01:00+00",)]

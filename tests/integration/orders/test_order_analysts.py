"""From a delivery to an analyst's decision to the shop, with the real authority, intake, console function and refund worker."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ops_console.read_models.order_search import queue
from ops_console.read_models.order_views import analyst_decisions, find_order
from ops_console.resolve_order import DECISIONS, resolve_order
from sentinel.authority.approvals import HANDLED, find_approval, resolve_approval
from sentinel.cli.scratch import listening
from sentinel.core.errors import Conflict, SentinelError
from sentinel.platform.resources import policies_dir
from sentinel.store.database import ORDERS
from tests.corpora.retail import retail_lines
from tests.support.fixtures import Fixtures, guard_body
from tests.support.harness import actor, at_once
from tests.support.ledger_fixtures import wait_until, worker_process
from tests.support.order_fixtures import SECRET, OrderFixtures, make_intake, order_body
from tests.support.scripted_server import ScriptedServer
from worker.orders.alerts import Alert, Alerts
from worker.orders.background import Background
from worker.orders.replay_cli import replay_orders


def say(orders: OrderFixtures, order_id: str, decision: str, role: str = "approver") -> str:
    """What became of a decision: the result, or the refusal's code."""
    fixtures = orders.fixtures
    try:
        return resolve_order(
            fixtures.console_pool, actor(fixtures, role), "demo", order_id, decision=decision, reason="called the customer",
            digest=orders.digest(order_id),
        ).result  # fmt: skip
    except SentinelError as error:
        return error.code


def queued(orders: OrderFixtures, order_id: str) -> bytes:
    """A medium order, delivered."""
    body = order_body(order_id, "medium")
    assert orders.deliver(body).status_code == 202
    return body


def test_a_decision_on_an_order_decides_no_approval_of_anything_else(orders: OrderFixtures) -> None:
    """Which one an order names is written by the intake."""
    queued(orders, "o-1")
    other = orders.fixtures.guard(guard_body(value=300))["approval_id"]
    with orders.fixtures.as_role(ORDERS) as connection:
        connection.execute("update orders.reviews set approval_id = %s where order_id = 'o-1'", [other])
    assert [say(orders, "o-1", decision) for decision in DECISIONS] == ["conflict"] * 3
    assert orders.one("select status from sentinel.approvals where approval_id = %s", other) == "pending"


def test_a_decision_on_an_order_decides_no_other_order(orders: OrderFixtures) -> None:
    queued(orders, "o-1")
    queued(orders, "o-2")
    other = orders.one("select approval_id from orders.reviews where order_id = 'o-2'")
    with orders.fixtures.as_role(ORDERS) as connection:
        connection.execute("update orders.reviews set approval_id = %s where order_id = 'o-1'", [other])
    assert [say(orders, "o-1", decision) for decision in DECISIONS] == ["conflict"] * 3
    assert orders.one("select status from sentinel.approvals where approval_id = %s", other) == "pending"


def shop_rows(orders: OrderFixtures) -> list[tuple[Any, ...]]:
    """What the simulated shop did."""
    return orders.all("select order_id, status from orders.simulated_shop order by order_id")


def test_each_decision_has_its_effect_once_and_the_redelivery_says_where_the_order_stands(
    orders: OrderFixtures,
) -> None:
    bodies = {decision: queued(orders, f"o-{decision}") for decision in DECISIONS}
    assert shop_rows(orders) == []
    for decision in DECISIONS:
        assert say(orders, f"o-{decision}", decision) == decision
    orders.rounds(until=lambda: len(shop_rows(orders)) == 2 and orders.status_and_lane("o-fulfil")[0] == "FULFILLED")
    orders.rounds()
    assert shop_rows(orders) == [("o-fulfil", "fulfilled"), ("o-hold", "held")]
    ended = {"fulfil": "FULFILLED", "refund": "REFUND_FILED", "hold": "HELD"}
    for decision, body in bodies.items():
        assert orders.status_and_lane(f"o-{decision}") == (ended[decision], "medium")
        again = orders.deliver(body)
        # The same status as at first, and where the order stands now.
        assert (again.status_code, again.json["status"]) == (202, ended[decision].lower())
        assert say(orders, f"o-{decision}", "fulfil", "admin") == "conflict"
    assert orders.all("select kind, state from orders.effects order by kind") == [("fulfil", "done"), ("hold", "done")]
    assert orders.all("select ledger_entry_id, amount_minor from refunds.ledger_entries") == [
        ("order:demo:o-refund", 4250)
    ]
    assert orders.fixtures.broken_invariants() == []


def test_a_filed_refund_is_paid_once_on_the_decision_that_filed_it(orders: OrderFixtures) -> None:
    queued(orders, "o-1")
    assert say(orders, "o-1", "refund") == "refund"
    for _ in range(2):
        done = worker_process(
            ["--once"], database_url=orders.fixtures.url, authority_url=orders.authority_url,
            SENTINEL_REFUND_AGENT_API_KEY=orders.fixtures.key, SENTINEL_TENANT_ID=str(orders.fixtures.tenant_id),
        )  # fmt: skip
        out, errors = done.communicate(timeout=120)
        assert done.returncode in (0, 1), out + errors
        orders.rounds()
    assert orders.all("select ledger_entry_id, status, decision from refunds.ledger_entries") == [
        ("order:demo:o-1", "EXECUTED", "APPROVAL_REQUIRED")
    ]
    assert orders.one("select count(*) from refunds.executions") == 1
    assert (
        orders.one("select action from sentinel.operations where idempotency_key = 'refund:order:demo:o-1'")
        == "refund.create"
    )
    assert shop_rows(orders) == []


def two_people_are_asked(fixtures: Fixtures, folder: Path) -> None:
    """From now on two people say whether an order goes out."""
    text = (policies_dir() / "order_fraud.yaml").read_text()
    assert "people: 1" in text
    (folder / "order_fraud.yaml").write_text(text.replace("people: 1", "people: 2"))
    fixtures.authority.policies.directory = folder
    fixtures.authority.policies.reload()


@pytest.mark.parametrize("decision", ["fulfil", "refund", "hold"])
def test_an_order_whose_approval_is_asked_again_waits_for_the_new_one_in_the_queue(
    orders: OrderFixtures, tmp_path: Path, decision: str
) -> None:
    fixtures = orders.fixtures
    body = queued(orders, "o-1")
    first = orders.one("select approval_id from orders.reviews")
    two_people_are_asked(fixtures, tmp_path)
    assert say(orders, "o-1", "fulfil") == "fulfil"
    orders.rounds()
    waits = find_order(fixtures.console_pool, fixtures.tenant_id, "demo", "o-1")
    assert waits is not None and (waits.status, waits.resolution, waits.approval_status) == ("QUEUED", None, "pending")
    assert waits.approval_id != first
    assert [one.order_id for one in queue(fixtures.console_pool, fixtures.tenant_id, limit=5)] == ["o-1"]
    assert orders.deliver(body).json["approval_id"] == str(waits.approval_id)
    assert say(orders, "o-1", decision, "admin") == decision
    wanted = {"fulfil": "FULFILLED", "refund": "REFUND_FILED", "hold": "HELD"}[decision]
    orders.rounds(until=lambda: orders.status_and_lane("o-1") == (wanted, "medium"))
    said = analyst_decisions(fixtures.console_pool, fixtures.tenant_id, waits.review_id)
    assert [one.decision for one in said] == ["fulfil", decision]
    orders.rounds()
    assert fixtures.broken_invariants() == []


def test_a_vote_on_an_approval_that_was_shown_counts_on_none_that_was_asked_since(
    orders: OrderFixtures, tmp_path: Path
) -> None:
    """Both have the digest of the one operation: whoever looked at the first has not seen the stricter terms of the second."""
    fixtures = orders.fixtures
    queued(orders, "o-1")
    seen = find_order(fixtures.console_pool, fixtures.tenant_id, "demo", "o-1")
    two_people_are_asked(fixtures, tmp_path)
    assert say(orders, "o-1", "fulfil") == "fulfil"
    orders.rounds()
    now = find_order(fixtures.console_pool, fixtures.tenant_id, "demo", "o-1")
    assert seen is not None and now is not None
    assert (now.digest, now.status, now.approval_status) == (seen.digest, seen.status, "pending")
    decide: dict[str, Any] = {"reason": "called the customer", "digest": seen.digest, "status": seen.status}
    for decision in DECISIONS:
        with pytest.raises(Conflict, match="a new approval was requested"):
            resolve_order(
                fixtures.console_pool, actor(fixtures, "admin"), "demo", "o-1", decision=decision, approval_id=seen.approval_id, **decide
            )  # fmt: skip
    assert orders.one("select count(*) from sentinel.approval_votes") == 1
    done = resolve_order(
        fixtures.console_pool, actor(fixtures, "admin"), "demo", "o-1", decision="fulfil", approval_id=now.approval_id, **decide
    )  # fmt: skip
    assert done.result == "fulfil"


def test_an_order_whose_new_approval_is_rejected_elsewhere_is_held_at_once(
    orders: OrderFixtures, tmp_path: Path
) -> None:
    fixtures = orders.fixtures
    queued(orders, "o-1")
    two_people_are_asked(fixtures, tmp_path)
    say(orders, "o-1", "fulfil")
    orders.rounds()
    resolve_approval(
        fixtures.console_pool, actor(fixtures, "admin"), orders.one("select approval_id from orders.reviews"),
        verdict="reject", reason="no", digest=orders.digest("o-1"),
    )  # fmt: skip
    orders.rounds(until=lambda: orders.status_and_lane("o-1") == ("HELD", "medium"))


def test_nobody_says_of_an_order_that_it_was_handled_elsewhere(orders: OrderFixtures) -> None:
    """The authority would deny it, and the shop would be told to hold what somebody has sent."""
    queued(orders, "o-1")
    pool, approval = orders.fixtures.console_pool, orders.one("select approval_id from orders.reviews")
    row = find_approval(pool, orders.fixtures.tenant_id, approval)
    assert row is not None and row.offers == ["approve", "reject"]
    with pytest.raises(Conflict, match="not handled by hand"):
        resolve_approval(
            pool, actor(orders.fixtures, "approver"), approval, verdict=HANDLED, reason="sent by hand", digest=row.digest,
            reference="till-7",
        )  # fmt: skip
    orders.rounds()
    assert (orders.status_and_lane("o-1"), shop_rows(orders)) == (("QUEUED", "medium"), [])
    assert orders.one("select count(*) from sentinel.approval_votes") == 0
    assert say(orders, "o-1", "fulfil") == "fulfil"


@pytest.mark.usefixtures("patient")
def test_decisions_and_redeliveries_and_rounds_at_once_end_in_one_lane(orders: OrderFixtures) -> None:
    for number in range(4):
        order_id = f"o-{number}"
        body = queued(orders, order_id)
        jobs: list[Any] = [
            lambda w=w, r=r: say(orders, order_id, w, r) for w in DECISIONS for r in ("approver", "admin")
        ]  # type: ignore[misc]
        jobs += [lambda: orders.deliver(body).status_code, lambda: orders.review.background.once()] * 2
        said = at_once(jobs)
        won = [one for one in said if one in DECISIONS]
        assert len(won) == 1, said
        orders.rounds(until=lambda: orders.status_and_lane(order_id)[0] != "QUEUED")
        orders.rounds()
        assert (
            orders.status_and_lane(order_id)[0]
            == {"fulfil": "FULFILLED", "refund": "REFUND_FILED", "hold": "HELD"}[won[0]]
        )
    assert orders.fixtures.broken_invariants() == []


def test_an_alert_channel_that_is_down_leaves_the_order_held_and_the_alert_waiting_until_it_is_up(
    fixtures: Fixtures, authority_url: str
) -> None:
    with ScriptedServer().running() as channel:
        orders = make_intake(fixtures, authority_url, slack_webhook_url=channel.url, alerts_on_this_machine=True)
        try:
            assert orders.deliver(order_body("o-1", "high")).json["status"] == "held"
            orders.rounds(until=lambda: orders.one("select attempts from orders.alerts") == 1)
            assert orders.status_and_lane("o-1") == ("HELD", "high")
            assert orders.one("select last_error from orders.alerts") == "http_500"
            channel.script = lambda asked: asked.answer(200, b"ok", "text/plain")
            fixtures.admin.execute("update orders.alerts set next_attempt_at = clock_timestamp()")
            orders.rounds(until=lambda: orders.one("select delivered_by from orders.alerts") == "slack")
            assert "o-1" in channel.asked[-1].json["text"]
            assert shop_rows(orders) == [("o-1", "held")]
        finally:
            orders.close()


class Silent:
    """A channel that answers nothing until it is let go."""

    name, longest_seconds = "silent", 5.0

    def __init__(self) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()

    def send(self, alert: Alert) -> str | None:
        """Taken once it is let go."""
        self.asked.set()
        self.go_on.wait(60)
        return None


def test_an_alert_channel_that_does_not_answer_holds_up_no_order(orders: OrderFixtures) -> None:
    fixtures, channel = orders.fixtures, Silent()
    queued(orders, "o-1")
    orders.deliver(order_body("o-2", "high"))
    background = Background(
        orders.review.processor, Alerts(orders.review.pool, fixtures.tenant_id, channel), poll_seconds=0.05
    )
    background.start()
    try:
        assert channel.asked.wait(60)
        assert say(orders, "o-1", "fulfil") == "fulfil"
        wait_until(lambda: orders.status_and_lane("o-1")[0] == "FULFILLED", 20)
        channel.go_on.set()
        wait_until(lambda: orders.one("select count(*) from orders.alerts where delivered_by = 'silent'") == 1, 20)
    finally:
        channel.go_on.set()
        background.stop()


# Real orders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lines", retail_lines())
def test_real_orders_sent_twice_out_of_order_and_concurrently_have_each_effect_once(
    orders: OrderFixtures, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: list[str]
) -> None:
    monkeypatch.setenv("ORDERS_DEMO_SECRET", SECRET)
    file = tmp_path / "orders.csv"
    file.write_text("".join(lines), encoding="utf-8")
    with listening(orders.app) as url:
        result = CliRunner().invoke(
            replay_orders, [str(file), "--url", url, "--redeliver", "--rate", "300", "--limit", "80", "--json"]
        )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])  # the intake of this process logs beside it
    assert (found["orders"], found["deliveries"], found["other_body"]) == (80, 160, 0)
    assert found["replays"] >= 80
    stored = dict(orders.all("select lane, count(*) from orders.reviews group by lane"))
    assert stored == found["lanes"]
    assert (
        dict(orders.all("select status, count(*) from orders.simulated_shop group by status"))["fulfilled"]
        == stored["low"]
    )
    assert orders.one("select count(*) from orders.reviews") == 80
    assert orders.fixtures.broken_invariants() == []

"""The first page: what needs a person by count, money and age, decisions by the minute, and whether the machines run."""

from __future__ import annotations

import json
import re
import uuid
from html import unescape
from typing import Any, cast

import pytest

from ops_console.pages.decision_minutes import DecisionMinutes, Part, in_steps
from ops_console.read_models import overview as figures
from ops_console.read_models.overview import MinuteRow
from sentinel.authority import approval_queue
from sentinel.authority.housekeeping import run_housekeeping
from sentinel.store.database import Pool
from tests.integration.console.test_console_refunds import add_worker
from tests.support.orders_console_fixtures import never_asked, queued, refused_by_shop


def lines(page: str) -> dict[str, list[str]]:
    """The table of what needs a person: its first word → the other cells as text."""
    found = {}
    for row in re.findall(r'<tr id="line-.*?</tr>', page, re.S):
        cells = [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in re.findall(r"<td.*?</td>", row, re.S)]
        found[cells[0].partition(" wait")[0].split(" ")[0]] = [unescape(cell) for cell in cells[1:]]
    return found


def test_what_is_counted_up_to_a_bound_says_so(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MOST_ANSWERS", 2)
    vic, ann = fixtures.browser("vic", "viewer"), fixtures.person("ann")
    for _ in range(3):
        assert ann.approve(fixtures.approval("200.00")).status_code == 200
    for _ in range(3):
        fixtures.approval("200.00")
    fixtures.sql(
        "update sentinel.approvals set expires_at = created_at + interval '1 microsecond' where status = 'pending'"
    )
    run_housekeeping(fixtures.authority.pool, 900)
    page = " ".join(re.sub(r"<[^>]+>", " ", vic.get("/ops/overview/now").text).split())
    assert "median of the latest 2 in 24 h" in page
    assert "Expired undecided 2 or more not decided in time" in page


def test_pending_approvals_are_counted_up_to_a_bound_and_the_page_says_so(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approval_queue, "MOST_COUNTED", 3)
    vic = fixtures.browser("vic", "viewer")
    for minutes in range(3):
        fixtures.sql(
            "update sentinel.approvals set expires_at = expires_at - make_interval(mins => %s) where approval_id = %s",
            minutes, fixtures.approval("200.00"),
        )  # fmt: skip
    page = vic.get("/ops/overview/now").text
    assert lines(page)["Refunds"][:3] == ["3", "–", "600.00 USD"]
    assert "or more" not in page and "More approvals are pending" not in page

    for _ in range(4):
        fixtures.approval("210.00")
    page = vic.get("/ops/overview/now").text
    assert {name: cells[0] for name, cells in lines(page).items()} == {
        "Refunds": "4 or more", "Escalations": "0 or more", "Orders": "0 or more", "Operators": "0 or more", "Other": "0 or more",
        "Refused": "0", "In": "0", "Stopped": "0", "Errors": "0", "Alerts": "0",
    }  # fmt: skip
    assert "More approvals are pending than are counted" in page
    assert "4 or more pending" in page


def test_the_overview_counts_what_needs_a_person_and_refreshes_itself(fixtures: Any) -> None:
    vic = fixtures.browser("vic", "viewer")
    assert {name: cells[0] for name, cells in lines(vic.get("/ops").get_data(as_text=True)).items()} == {
        "Refunds": "0", "Escalations": "0", "Orders": "0", "Refused": "0", "In": "0", "Stopped": "0", "Errors": "0", "Alerts": "0",
    }  # fmt: skip

    for value in ("200.00", "250.50", "600.00"):
        fixtures.approval(value)
    escalated, ended = fixtures.approval("300.00"), fixtures.approval("400.00")
    fixtures.sql("update sentinel.approvals set reasons = '{open_complaint}' where approval_id = %s", escalated)
    fixtures.sql("update sentinel.approvals set expires_at = clock_timestamp() where approval_id = %s", ended)
    fixtures.guard("10.00")
    fixtures.sql("update sentinel.operation_states set status = 'in_doubt', started_at = now(), in_doubt_reason = 'no_report',"
              " in_doubt_since = now() - interval '2 h' where decision = 'ALLOW'")  # fmt: skip
    fixtures.sql("insert into orders.alerts (tenant_id, kind, source, order_id, summary) values (%s, 'held', 'demo', 'o1', 'x')",
              fixtures.tenant_id)  # fmt: skip
    fixtures.sql("insert into sentinel.halts (tenant_id, halt_id, scope, target, level, reason, set_by, set_at)"
              " values (%s, gen_random_uuid(), 'agent', 'a-halted-one', 'kill', 'x', 'x', now())", fixtures.tenant_id)  # fmt: skip
    for name, who in (("refund.small.fee", "agent retail-refund-agent"), ("refund.small.defect", "ann@demo.local")):
        fixtures.sql("insert into sentinel.switches (tenant_id, name, is_on, canary_percent, changed_at, changed_by, reason)"
                  " values (%s, %s, false, 0, now(), %s, 'a wrong <b>execution</b>')", fixtures.tenant_id, name, who)  # fmt: skip
    fixtures.sql("insert into refunds.outbox (tenant_id, outbox_id, ledger_entry_id, payload)"
              " values (%s, gen_random_uuid(), 'lge', '{}')", fixtures.tenant_id)  # fmt: skip

    page = vic.get("/ops/overview/now").get_data(as_text=True)
    shown = lines(page)
    assert shown["Refunds"][:3] == ["3", "1 high", "1,050.50 USD"]
    assert shown["Refunds"][4].startswith("in 29 min")
    assert shown["Escalations"][:3] == ["1", "–", "300.00 USD"]
    assert shown["In"][:4] == ["1", "–", "10.00 USD", "2 h 0 min"]
    assert shown["Alerts"][0] == "1"
    assert "a-halted-one" in page
    assert "refund.small.fee" in page
    assert "refund.small.defect" not in page
    assert "<b>execution" not in page
    for address in (
        "/ops/approvals?kind=refund",
        "/ops/in-doubt",
        "/ops/ledger?status=ERROR",
        "/ops/halts",
        "/ops/policies",
    ):
        assert f'href="{address}"' in page, address
    errors = re.search(r'status=ERROR">Errors</a> <small>([^<]+)</small>', page)
    assert errors is not None
    assert "may have been paid" in errors[1]
    assert "not executed" not in errors[1]
    assert "never seen" in page
    assert "nothing expired in 24 h" in page
    run_housekeeping(fixtures.authority.pool, 900)
    after = " ".join(re.sub(r"<[^>]+>", " ", vic.get("/ops/overview/now").get_data(as_text=True)).split())
    assert "Expired undecided 1 not decided in time in 24 h, therefore denied" in after
    assert "the latest" not in after
    assert 'hx-get="/ops/overview/now"' in vic.get("/ops").get_data(as_text=True)

    parts = vic.get("/ops/overview/decisions").get_data(as_text=True)
    minutes, *columns = json.loads(unescape(re.findall(r'data-minutes="([^"]+)"', parts)[0]))
    assert (len(minutes), [sum(column) for column in columns]) == (60, [1, 5, 0])
    assert "Approval required" in parts
    fixtures.guard("2000.00")
    assert re.findall(r"Denied</span> (\d+)", vic.get("/ops/overview/decisions").get_data(as_text=True)) == ["1"]

    # Another tenant's person sees nothing of it.
    other = fixtures.operator("eve", "viewer", fixtures.tenant("other"))
    assert {cells[0] for cells in lines(fixtures.at_page(other.email).get("/ops").get_data(as_text=True)).values()} == {
        "0"
    }


def test_the_workers_of_every_agent_are_shown(fixtures: Any) -> None:
    vic = fixtures.browser("vic", "viewer")

    def workers() -> list[str]:
        cards = re.findall(r'<li><a href="/ops/ledger">Refund worker</a>(.*?)</li>', vic.get("/ops").text, re.S)
        return [" ".join(re.sub(r"<[^>]+>", " ", card).split()) for card in cards]

    assert workers() == ["none never seen"]
    add_worker(fixtures, agent_id="my-agent")
    (only,) = workers()
    assert only.startswith("running last decided: refund.create")
    add_worker(fixtures, name="w2", agent_id="another", status="authority_unreachable")
    add_worker(fixtures, name="w3", agent_id="gone-a-while", seen="23 hours")
    add_worker(fixtures, name="w4", agent_id="gone-a-while", mode="once", seen="25 hours")
    add_worker(fixtures, name="w5", agent_id="long-gone", seen="25 hours")
    begun = [card.partition(" last")[0] for card in workers()]
    assert begun == [
        "of another authority unreachable not working", "of gone-a-while silent no heartbeat", "of my-agent running",
    ]  # fmt: skip
    fixtures.sql("delete from refunds.workers where worker_id <> 'w5'")
    (only,) = workers()
    assert only.startswith("silent no heartbeat"), "where none runs the last one is shown however long it is gone"


def test_of_many_agents_those_that_do_not_work_are_shown_first(fixtures: Any) -> None:
    for n in range(9):
        add_worker(fixtures, name=f"w{n}", agent_id=f"agent-{n}", status="running" if n < 8 else "stopped")
    page = " ".join(re.sub(r"<[^>]+>", " ", fixtures.browser("vic", "viewer").get("/ops").text).split())
    assert "Refund worker of agent-8 stopped not working" in page
    assert "and 3 more, of other agents" in page and "agent-7" not in page


def test_orders_that_came_back_are_counted_where_a_shift_begins(fixtures: Any) -> None:
    vic, ann = fixtures.browser("vic", "viewer"), fixtures.person("ann")
    queued(fixtures)
    refused, unasked, held_back = refused_by_shop(fixtures), never_asked(fixtures), refused_by_shop(fixtures)
    fixtures.sql(
        "set session_replication_role = replica; update orders.reviews set decided_at = decided_at - interval '3 hours',"
        f" status = case when order_id = '{held_back}' then 'REFUND_REFUSED' else status end where order_id <> '{unasked}'"
    )
    page = vic.get("/ops/overview/now").text
    assert lines(page)["Refused"][:4] == ["3", "–", "600.00 USD", "3 h 0 min"]
    assert 'href="/ops/orders?status=WAITING">Refused orders</a>' in page
    listed = vic.get("/ops/orders?status=WAITING").text
    assert all(f"/ops/orders/demo/{order_id}" in listed for order_id in (refused, unasked, held_back))
    for order_id in (refused, unasked, held_back):
        assert ann.analyst(order_id, "hold").status_code == 200
    assert lines(vic.get("/ops/overview/now").text)["Refused"][0] == "0"


def test_a_refund_that_a_bank_sent_back_has_a_line_until_its_order_was_refunded_again(fixtures: Any) -> None:
    vic = fixtures.browser("vic", "viewer")
    fixtures.sql("insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, order_ref)"
              " select %s, 'lge_' || n, 'rf_' || n, 100, 'USD', 'o-1' from generate_series(1, 2) n", fixtures.tenant_id)  # fmt: skip
    fixtures.sql("insert into refunds.settlement_findings (tenant_id, system, system_refund, finding, payment_ref, amount_minor, currency,"
              " ledger_entry_id) values (%s, 'stripe', 're_1', 'refund_failed', 'pi_1', 100, 'USD', 'lge_1')", fixtures.tenant_id)  # fmt: skip
    page = vic.get("/ops/overview/now").get_data(as_text=True)
    assert lines(page)["Settlement"][0] == "1" and "`worker reconcile` lists each" in page
    fixtures.sql("set session_replication_role = replica; update refunds.ledger_entries set status = 'EXECUTED',"
              " budget_part = 'executed', updated_at = clock_timestamp() where ledger_entry_id = 'lge_2'")  # fmt: skip
    assert "Settlement" not in lines(vic.get("/ops/overview/now").get_data(as_text=True))


def test_an_error_that_needs_nobody_any_more_is_not_counted(fixtures: Any) -> None:
    entries = (
        "('given up', 'rf_1', null, null, 1), ('handled', 'rf_2', 'settlement_refused', 'handled', 1),"
        " ('not executed', 'rf_3', 'not_executed', null, 1), ('entered anew', 'rf_4', 'not_executed', null, 1),"
        " ('anew', 'rf_4', null, null, 0), ('long ago', 'rf_5', 'not_executed', null, 31), ('closed', 'rf_6', null, null, 1)"
    )
    fixtures.sql("set session_replication_role = replica;"
        " insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, status, last_error, reason_code,"
        " budget_part, created_at, updated_at)"
        f" select '{fixtures.tenant_id}', replace(name, ' ', '-'), refund, 100, 'USD', 'ERROR', 'x', reason, part,"
        " now() - make_interval(days => days), now() - make_interval(days => days)"
        f" from (values {entries}) as e (name, refund, reason, part, days);"
        " insert into orders.refunds (tenant_id, review_id, attempt, ledger_entry_id, reason, via, state, ended_at)"
        f" values ('{fixtures.tenant_id}', gen_random_uuid(), 1, 'closed', 'x', 'x', 'closed', now())")  # fmt: skip
    assert figures.ledger_load(fixtures.pool, fixtures.tenant_id).failed == 3, "given up, not executed and anew"


def test_minutes_that_are_over_are_asked_for_once_and_drop_out_after_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    tenant_id, no_pool = uuid.uuid4(), cast(Pool, None)
    asked: list[int] = []
    stored = {100: 3, 130: 4, 159: 5, 160: 1}
    now = [160]

    def answer(pool: Any, tenant_id: Any, *, since: int, minutes: int) -> list[MinuteRow]:
        asked.append(since)
        first = max(since, now[0] - minutes)
        return [MinuteRow(at, "ALLOW", n) for at, n in stored.items() if at >= first] + [MinuteRow(now[0], "NOW", 0)]

    monkeypatch.setattr("ops_console.read_models.overview.decision_minutes", answer)
    minutes = DecisionMinutes(no_pool)

    def counted() -> dict[int, int]:
        return {part.begins: part.total for part in minutes.last_hour(tenant_id) if part.total}

    assert counted() == {130: 4, 159: 5, 160: 1}, "the hour begins at 101"
    stored[159], stored[160], now[0] = 6, 2, 161
    assert counted() == {130: 4, 159: 6, 160: 2}, "what came late is seen"
    stored[100], stored[130], now[0] = 9, 9, 189
    assert counted() == {130: 4, 159: 6, 160: 2}
    now[0] = 400
    assert counted() == {}
    assert asked[:3] == [0, 157, 158]


def test_steps_lose_no_decision() -> None:
    parts = [Part(minute, {"ALLOW": minute, "APPROVAL_REQUIRED": 1, "DENY": 0}) for minute in range(60)]
    steps = in_steps(parts, 5)
    assert [step.begins for step in steps] == list(range(55, -1, -5))
    assert sum(step.total for step in steps) == sum(part.total for part in parts)

"""The orders' pages: lanes and queue, search and pages by key, an order's life with its lit lane, signals fenced, no customer."""

from __future__ import annotations

import html
import json
import re
import uuid
from typing import Any
from urllib.parse import urljoin

import pytest
from prometheus_client import REGISTRY

from ops_console.pages import highlighted_diagram as graph
from ops_console.pages import orders
from ops_console.read_models.order_search import ended_today, lane_states, queue, search_orders
from sentinel.store.database import CONSOLE, Pool, with_role
from tests.integration.console.test_page_in_doubt import doubted
from tests.support.orders_console_fixtures import held, never_asked, queued, refused_by_shop, status_and_resolution

HOSTILE = '‮evil‬ <script>alert(1)</script>​ " onload=x'


def names(answer: Any, part: str = "rows") -> list[str]:
    """The orders that a section of the list shows, in order."""
    assert answer.status_code == 200, answer.text
    section = answer.text.partition(f'<section aria-labelledby="{part}"')[2].partition("</section>")[0]
    return re.findall(r'<a href="/ops/orders/demo/([^"]+)"><strong>', section)


def test_the_queue_is_first_and_the_soonest_due_is_on_top(fixtures: Any) -> None:
    first, second, third = (queued(fixtures) for _ in range(3))
    held(fixtures)
    fixtures.sql("update sentinel.approvals a set expires_at = created_at + interval '5 minutes' from orders.reviews r where r.approval_id = a.approval_id and r.order_id = %s", third)  # fmt: skip
    ann = fixtures.browser("ann", "viewer")
    page = ann.get("/ops/orders")
    assert names(page, "queue") == [third, first, second]
    assert "Queue: 3 pending" in page.text
    assert page.text.index('id="queue"') < page.text.index('id="rows"')
    assert len(names(page)) == 4
    assert "secret" not in page.text
    assert page.text.count(">Decide<") == 3
    # One that somebody has spoken on waits for the intake, and no more for a person.
    fixtures.person("rex").analyst(first, "fulfil", "called")
    assert names(ann.get("/ops/orders"), "queue") == [third, second]


def test_one_that_the_authority_cannot_be_asked_about_is_in_the_queue_and_can_be_held(fixtures: Any) -> None:
    refused = never_asked(fixtures)
    ann = fixtures.browser("ann", "approver")
    assert names(ann.get("/ops/orders"), "queue") == [refused]
    page = ann.get(f"/ops/orders/demo/{refused}")
    assert "The authority refuses to decide on it: 422: another question." in page.text
    assert re.findall(r'name="decision" value="(\w+)"', page.text) == ["hold"]
    assert fixtures.person("rex").analyst(refused, "hold", "never asked").status_code == 200
    assert names(ann.get("/ops/orders"), "queue") == []
    page = ann.get(f"/ops/orders/demo/{refused}").text
    assert "a person had the order held" in page and "<dt>Operation</dt>" not in page


def test_all_that_wait_are_shown_in_the_order_of_the_queue_and_no_others(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "QUEUE_SHOWN", 2)
    monkeypatch.setattr(orders, "PAGE", 2)
    waiting = [queued(fixtures) for _ in range(3)]
    fixtures.sql("update sentinel.approvals a set expires_at = created_at + interval '5 minutes' from orders.reviews r where r.approval_id = a.approval_id and r.order_id = %s", waiting[2])  # fmt: skip
    back, unasked = refused_by_shop(fixtures), never_asked(fixtures)
    spoken = queued(fixtures)
    fixtures.person("rex").analyst(spoken, "fulfil", "called")
    held(fixtures)
    ann = fixtures.browser("ann", "viewer")
    wanted = [back, unasked, waiting[2], waiting[0], waiting[1]]
    page = ann.get("/ops/orders")
    assert sorted(names(page, "queue")) == sorted(wanted[:2]) and "Queue: 5 pending" in page.text
    address = re.search(r'<a href="([^"]+)">All 5</a>', page.text)
    assert address is not None
    page, seen = ann.get(html.unescape(address[1])), []
    for _ in range(3):
        seen.append(names(page))
        older = re.search(r'href="([^"]+cursor=[^"]+)"', page.text)
        page = ann.get(html.unescape(older[1])) if older else page
    assert [sorted(seen[0]), *seen[1:]] == [sorted(wanted[:2]), wanted[2:4], wanted[4:]]
    assert names(ann.get("/ops/orders?status=WAITING&lane=medium")) == waiting[2:] + waiting[:1]


def test_an_order_that_came_back_is_not_overdue(fixtures: Any) -> None:
    late, back = queued(fixtures), queued(fixtures)
    for order_id in (late, back):
        fixtures.sql("update sentinel.approvals a set expires_at = created_at + interval '1 ms' from orders.reviews r where r.approval_id = a.approval_id and r.order_id = %s", order_id)  # fmt: skip
        fixtures.sql(
            "update orders.reviews set due_at = clock_timestamp() - interval '1 hour' where order_id = %s", order_id
        )
    fixtures.sql("set session_replication_role = replica; update orders.reviews set status = 'SHOP_REFUSED' where order_id = '"
              + back + "'; set session_replication_role = origin")  # fmt: skip
    page = fixtures.browser("ann", "viewer").get("/ops/orders").text.partition('id="alerts"')[0]
    assert "Queue: 2 pending, 1 overdue" in page
    assert page.count("overdue by") == 1
    assert "<dt>Due</dt>" not in fixtures.browser("bea", "viewer").get(f"/ops/orders/demo/{back}").text


def test_lanes_are_counted_by_what_is_open_and_what_ended_in_a_day(fixtures: Any) -> None:
    queued(fixtures)
    queued(fixtures)
    held(fixtures)
    found = {(one.lane, one.status): one.orders for one in lane_states(fixtures.pool, fixtures.tenant_id)}
    assert found == {("medium", "QUEUED"): 2}
    assert [(one.lane, one.status, one.orders) for one in ended_today(fixtures.pool, fixtures.tenant_id)] == [
        ("high", "HELD", 1)
    ]
    page = fixtures.browser("ann", "viewer").get("/ops/orders").text
    lanes = re.sub(r"<[^>]+>|\s+", " ", page.partition('id="lanes"')[2].partition("</section>")[0])
    assert re.search(r"medium\s+2\s+queued\s+oldest", lanes)
    assert re.search(r"high\s+0\s+open\s+Of those received in the last 24 hours:\s+1 held", lanes)


def test_orders_are_narrowed_searched_and_paged_by_key_each_once(fixtures: Any) -> None:
    wanted = [queued(fixtures, f"a_{n}") for n in range(3)] + [held(fixtures, f"b-{n}") for n in range(2)]
    ann = fixtures.browser("ann", "viewer")
    for query, found in (
        ("lane=high", {"b-0", "b-1"}), ("status=QUEUED", {"a_0", "a_1", "a_2"}), ("q=a_1", {"a_1"}), ("q=a_", {"a_0", "a_1", "a_2"}),
        ("q=aX", set()), ("q=%25", set()), ("status=REFUND_FILED", set()), ("lane=medium&status=HELD", set()),
    ):  # fmt: skip
        assert set(names(ann.get(f"/ops/orders?{query}"))) == found, query
    seen: list[str] = []
    before = None
    for _ in range(10):
        rows = search_orders(fixtures.pool, fixtures.tenant_id, before=before, limit=2)
        seen += [row.order_id for row in rows]
        if len(rows) < 2:
            break
        before = (rows[-1].received_at, rows[-1].review_id)
    assert sorted(seen) == sorted(wanted)
    for bad in ("lane=LOW", "status=queued", "q=%00", "q=%E2%80%AE", "cursor=x", "q=" + "x" * 200):
        answer = ann.get(f"/ops/orders?{bad}")
        assert answer.status_code == 400, bad
        assert 'role="alert"' in answer.text


def test_orders_that_were_held_or_refunded_are_found_without_reading_those_that_were_let_through(fixtures: Any) -> None:
    back = refused_by_shop(fixtures)
    decided = "status = 'REFUND_FILED', resolution = 'refund', resolved_at = clock_timestamp()"
    fixtures.sql(
        "set session_replication_role = replica; insert into orders.reviews (tenant_id, review_id, source, order_id, body_sha256,"
        " amount_minor, currency, order_facts, status, lane, decision, operation_id, band, guard_params, next_attempt_at)"
        f" select '{fixtures.tenant_id}', gen_random_uuid(), 'demo', 'let-' || n, sha256('x'), 1, 'USD', '{{}}', 'FULFILLED', 'low', 'ALLOW',"
        " gen_random_uuid(), 'low', '{}', 'infinity' from generate_series(1, 3000) n;"
        f" update orders.reviews set {decided} where order_id = '{back}'; set session_replication_role = origin"
    )
    stopped = held(fixtures)
    pool = Pool(with_role(fixtures.url, CONSOLE), size=1)

    def rows_read() -> int:
        with pool.connection() as connection:
            connection.execute("select pg_stat_force_next_flush()")
        read = "select seq_tup_read + idx_tup_fetch from pg_stat_user_tables where relid = 'orders.reviews'::regclass"
        return int(fixtures.sql(read)[0][0])

    for status, found in (("HELD", stopped), ("REFUND_FILED", back)):
        before = rows_read()
        rows = search_orders(pool, fixtures.tenant_id, status=status, limit=50)
        assert [one.order_id for one in rows] == [found]
        assert rows_read() - before < 10, status
    pool.close()


def test_an_orders_page_fences_what_was_noticed_and_lights_its_lane(fixtures: Any) -> None:
    order_id = queued(fixtures)
    fixtures.sql("set session_replication_role = replica; update orders.reviews set signals = '"
              + json.dumps([{"code": "model_says", "detail": HOSTILE}]).replace("'", "''") + "'")  # fmt: skip
    page = fixtures.browser("ann", "viewer").get(f"/ops/orders/demo/{order_id}")
    assert page.status_code == 200
    figure = page.text.partition('<figure class="untrusted">')[2].partition("</figure>")[0]
    assert "Untrusted text from the order or the model" in figure
    assert "U+202E" in figure
    assert "U+200B" in figure
    assert "<script>alert" not in page.text
    assert "secret" not in page.text
    assert "style=" not in page.text
    for part in ("at-none-RECEIVED", "way-none-RECEIVED--none-SCORED", "way-none-SCORED--medium-DECIDED", "way-medium-DECIDED--medium-QUEUED"):  # fmt: skip
        assert re.search(rf'class="(?:at|way) lit" id="{part}"', page.text), part
    assert 'class="at lit end" id="at-medium-QUEUED"' in page.text
    assert 'class="at" id="at-high-HELD"' in page.text
    assert "RECEIVED → SCORED → medium DECIDED → medium QUEUED" in page.text
    assert "Pending an analyst" in page.text
    assert "Show the approval" in page.text
    assert "Rule results" in page.text


def test_a_resolved_orders_life_says_who_why_and_what_came_of_it(fixtures: Any) -> None:
    kept, given_back = queued(fixtures), queued(fixtures)
    rex = fixtures.person("rex")
    rex.analyst(kept, "hold", "the address is a drop")
    rex.analyst(given_back, "refund", "customer cancelled")
    ann = fixtures.browser("ann", "viewer")
    page = ann.get(f"/ops/orders/demo/{kept}").text
    assert "the address is a drop" in page
    assert "rex@demo.local" in page
    assert "An analyst held it" in page
    assert "Pending an analyst" not in page
    assert 'class="at lit end" id="at-medium-HELD"' in page
    page = ann.get(f"/ops/orders/demo/{given_back}").text
    entry = f"order:demo:{given_back}"
    assert f'href="/ops/ledger/{entry}"' in page
    assert ann.get(f"/ops/ledger/{entry}").status_code == 200


def test_undelivered_alerts_stand_on_the_page_until_they_are_delivered(fixtures: Any) -> None:
    order_id = held(fixtures)
    fixtures.sql(
        "insert into orders.alerts (tenant_id, kind, source, order_id, summary, attempts, last_error)"
        " values (%s, 'order_held', 'demo', %s, 'held', 3, 'timeout')", fixtures.tenant_id, order_id,
    )  # fmt: skip
    ann = fixtures.browser("ann", "viewer")
    page = ann.get("/ops/orders").text
    assert "Undelivered alerts: 1" in page
    assert "no answer in time" in page
    assert "not delivered yet, 3 attempts" in ann.get(f"/ops/orders/demo/{order_id}").text
    fixtures.sql("update orders.alerts set delivered_at = clock_timestamp(), delivered_by = 'log'")
    assert "Every alert was delivered" in ann.get("/ops/orders").text
    assert "delivered</span> by log" in ann.get(f"/ops/orders/demo/{order_id}").text


def test_an_order_whose_refund_was_denied_says_why_in_words(fixtures: Any) -> None:
    order_id = refused_by_shop(fixtures)
    fixtures.sql(
        "set session_replication_role = replica; update orders.reviews set status = 'REFUND_REFUSED',"
        " last_error = 'refund_denied: approval_expired'"
    )
    ann = fixtures.browser("ann", "viewer")
    page = ann.get(f"/ops/orders/demo/{order_id}").text
    assert "The refund that was filed was not paid (denied: Nobody decided in time)." in page
    assert "denied: Nobody decided in time<br>" in ann.get("/ops/orders").text
    assert "refund_denied" not in page


def page_after(fixtures: Any, last_error: str) -> str:
    """The page of an order whose refund came to this, in one line."""
    order_id = refused_by_shop(fixtures)
    fixtures.sql(
        "set session_replication_role = replica;"
        f" update orders.reviews set status = 'REFUND_REFUSED', last_error = '{last_error}'"
    )
    return " ".join(fixtures.browser("ann", "viewer").get(f"/ops/orders/demo/{order_id}").text.split())


def test_an_order_whose_refund_failed_is_not_said_to_be_unpaid(fixtures: Any) -> None:
    """It may have been paid: its settlement system did it after a person had said "not executed", or its start is in doubt."""
    page = page_after(
        fixtures, "refund_failed: resolved as not executed, but stripe did it: re_1. This is reported to the authority"
    )
    assert "not paid" not in page
    assert "The refund that was filed failed, but may have been paid anyway" in page
    assert "stripe did it: re_1" in page
    assert '<a href="/ops/in-doubt">In doubt</a>' in page


def test_an_order_whose_refund_ended_unpaid_is_not_said_to_be_in_doubt(fixtures: Any) -> None:
    page = page_after(fixtures, "refund_unpaid: a person said that it was not executed")
    assert "was not paid (failed: a person said that it was not executed)." in page
    assert "may have been paid" not in page and "refund_unpaid" not in page


def hidden_fields(browser: Any, path: str) -> dict[str, str]:
    """What the form on an order's page sends by itself."""
    form = browser.get(path).text.partition('<section aria-labelledby="say">')[2].partition("</form>")[0]
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form))


def refund_denied(fixtures: Any) -> None:
    """The refund that was filed of the one order is denied, as worker and intake leave it."""
    fixtures.sql(
        "set session_replication_role = replica;"
        " update refunds.ledger_entries set status = 'DENIED', reason_code = 'approval_expired';"
        " update orders.refunds set state = 'refused', ended_at = clock_timestamp();"
        " update orders.reviews set status = 'REFUND_REFUSED', last_error = 'refund_denied: approval_expired',"
        " next_attempt_at = '9999-12-31'"
    )


def test_a_page_that_was_left_open_over_a_refund_asks_the_shop_nothing_and_files_none(fixtures: Any) -> None:
    order_id, bob = refused_by_shop(fixtures), fixtures.person("bob")
    ann, path = fixtures.browser("ann", "approver", proved=True), f"/ops/orders/demo/{order_id}"
    form = hidden_fields(ann, path)
    assert "The shop is asked once more to fulfil it." in ann.get(path).text
    assert bob.analyst(order_id, "refund").status_code == 200
    refund_denied(fixtures)
    refused = ann.submit(path, **form, decision="retry", reason="it is in stock again")
    assert refused.status_code == 409
    assert "look at it again" in refused.text and ">it is in stock again<" in refused.text
    assert 'value="retry" required checked' not in refused.text, "it would be another decision now"
    assert fixtures.sql("select decision, decided_by from orders.analyst_decisions") == [("refund", "bob@demo.local")]
    assert fixtures.sql("select count(*) from orders.refunds") == [(1,)]
    # Who has seen what it means now may say so.
    assert "Its refund is tried again, of the same amount." in refused.text
    said = ann.submit(path, **hidden_fields(ann, path), decision="retry", reason="the same amount")
    assert said.status_code == 303, said.text
    assert "Recorded: its refund is tried again." in ann.get(path).text
    assert fixtures.sql("select count(*) from orders.refunds") == [(2,)]


def test_a_page_that_was_left_open_over_a_hold_does_not_say_that_a_refund_is_filed(fixtures: Any) -> None:
    order_id, bob = refused_by_shop(fixtures), fixtures.person("bob")
    assert bob.analyst(order_id, "refund").status_code == 200
    refund_denied(fixtures)
    ann, path = fixtures.browser("ann", "approver", proved=True), f"/ops/orders/demo/{order_id}"
    form = hidden_fields(ann, path)
    assert bob.analyst(order_id, "hold").status_code == 200
    assert ann.submit(path, **form, decision="retry", reason="the customer waits").status_code == 409
    assert fixtures.sql("select decision from orders.analyst_decisions order by decision_id") == [
        ("refund",),
        ("hold",),
    ]


def test_a_decision_on_an_orders_page_is_counted_as_any_other(fixtures: Any) -> None:
    def counted() -> float:
        return REGISTRY.get_sample_value("console_orders_resolved_total", {"result": "hold"}) or 0.0

    ann, before = fixtures.browser("ann", "approver"), counted()
    path = f"/ops/orders/demo/{never_asked(fixtures)}"
    form = {**hidden_fields(ann, path), "decision": "hold", "reason": "never asked"}
    assert ann.submit(path, **form).status_code == 303
    assert counted() == before + 1
    assert ann.submit(path, **form).status_code == 409, "said twice"
    assert counted() == before + 1


def test_an_order_that_was_shipped_before_its_hold_is_not_said_to_wait_for_it(fixtures: Any) -> None:
    order_id = held(fixtures)
    fixtures.sql(
        "insert into orders.effects (tenant_id, review_id, kind, lane, operation_id)"
        " select tenant_id, review_id, 'hold', lane, operation_id from orders.reviews"
    )
    ann, rex, path = fixtures.browser("ann", "approver"), fixtures.person("rex"), f"/ops/orders/demo/{order_id}"
    page = ann.get(path).text
    assert "The shop has not accepted the hold yet." in page and "The shop is asked once more to hold it." in page
    fixtures.sql("update orders.effects set state = 'refused', last_error = 'it was fulfilled before it could be held'")
    page = ann.get(path).text
    assert "The shop fulfilled it before it could be held: the goods have been shipped. Nothing is retried." in page
    assert "not accepted the hold yet" not in page and 'name="decision"' not in page
    assert "shipped before it could be held" in ann.get("/ops/orders").text
    assert rex.get(f"/ops/api/orders/demo/{order_id}").json["offers"] == []
    assert rex.analyst(order_id, "retry").status_code == 409
    assert fixtures.sql("select state from orders.effects") == [("refused",)]


def test_while_its_refund_is_in_doubt_an_order_offers_no_decision_and_leads_to_the_doubt(fixtures: Any) -> None:
    order_id, rex = refused_by_shop(fixtures), fixtures.person("rex")
    assert rex.analyst(order_id, "refund").status_code == 200
    operation = doubted(fixtures, "120.00", 1)
    fixtures.sql(
        "set session_replication_role = replica;"
        f" update sentinel.operation_rows set idempotency_key = 'refund:order:demo:{order_id}' where operation_id = '{operation}';"
        f" update refunds.ledger_entries set status = 'ERROR', last_error = 'gave up', operation_id = '{operation}';"
        " update orders.refunds set state = 'refused', ended_at = clock_timestamp();"
        " update orders.reviews set status = 'REFUND_REFUSED', last_error = 'refund_failed: gave up', next_attempt_at = '9999-12-31'"
    )
    ann, path = fixtures.browser("ann", "approver", proved=True), f"/ops/orders/demo/{order_id}"
    page = ann.get(path).text
    assert f'<a href="/ops/in-doubt/{operation}">' in page and "It cannot be decided until" in page
    assert 'name="decision"' not in page and "until a person decides" not in page
    assert ann.get(f"/ops/in-doubt/{operation}").status_code == 200
    listed = ann.get("/ops/orders")
    assert (
        names(listed, "queue") == [order_id]
        and "its refund is in doubt" in listed.text
        and ">Decide<" not in listed.text
    )
    shown = rex.get(f"/ops/api/orders/demo/{order_id}").json
    assert (shown["offers"], shown["refund_in_doubt"]) == ([], operation)
    assert rex.analyst(order_id, "hold").status_code == 409
    fixtures.sql(
        "set session_replication_role = replica; update sentinel.operation_states set status = 'completed', outcome = 'error',"
        f" in_doubt_since = null, in_doubt_reason = null where operation_id = '{operation}'"
    )
    shown = rex.get(f"/ops/api/orders/demo/{order_id}").json
    assert (shown["offers"], "refund_in_doubt" in shown) == (["retry", "hold"], False)
    assert len(re.findall(r'name="decision"', ann.get(path).text)) == 2


def test_an_order_whose_fulfilment_a_person_called_not_executed_offers_no_retry(fixtures: Any) -> None:
    """The finding: its page said that the shop had refused it, and offered to ask the shop once more, which never happens."""
    order_id, operation, rex = refused_by_shop(fixtures), doubted(fixtures, "120.00", 1), fixtures.person("rex")
    fixtures.sql(f"update orders.reviews set operation_id = '{operation}'")
    assert rex.get(f"/ops/api/orders/demo/{order_id}").json["offers"] == ["retry", "refund", "hold"]
    fixtures.sql(
        "set session_replication_role = replica; update sentinel.operation_states set status = 'completed', outcome = 'error',"
        f" in_doubt_since = null, in_doubt_reason = null, not_executed_at = clock_timestamp() where operation_id = '{operation}'"
    )
    assert rex.get(f"/ops/api/orders/demo/{order_id}").json["offers"] == ["refund", "hold"]
    page = fixtures.browser("ann", "approver").get(f"/ops/orders/demo/{order_id}").text
    assert re.findall(r'name="decision" value="(\w+)"', page) == ["refund", "hold"]
    assert "A person resolved its fulfilment as not executed, which is final" in page
    assert "The shop refused to fulfil it" not in page
    refusal = rex.analyst(order_id, "retry")
    assert (refusal.status_code, "which is final" in refusal.json["detail"]) == (409, True)
    assert status_and_resolution(fixtures, order_id) == ("SHOP_REFUSED", None)


def test_the_lanes_say_in_words_where_their_orders_stand(fixtures: Any) -> None:
    refused_by_shop(fixtures)
    lanes = (
        fixtures.browser("ann", "viewer").get("/ops/orders").text.partition('id="lanes"')[2].partition("</section>")[0]
    )
    assert "</strong> shop refused<br>" in lanes


def test_what_is_no_order_or_another_tenants_is_not_there(fixtures: Any) -> None:
    order_id = queued(fixtures, "#1/x")
    ann = fixtures.browser("ann", "viewer")
    assert ann.get("/ops/orders/demo/%231/x").status_code == 200
    assert '/ops/orders/demo/%231/x"' in ann.get("/ops/orders").text
    for path in (
        "demo/none",
        "other/" + order_id.replace("#", "%23"),
        "demo/%00",
        "demo/a%0d%0ab",
        "demo/" + "x" * 300,
        "demo/%F0%9F%92%A9",
    ):
        assert ann.get(f"/ops/orders/{path}").status_code == 404, path
    stranger = fixtures.at_page(fixtures.operator("eve", "admin", fixtures.tenant("other")).email, tenant="other")
    assert stranger.get("/ops/orders/demo/%231/x").status_code == 404
    assert names(stranger.get("/ops/orders")) == []
    assert queue(fixtures.pool, uuid.uuid4(), limit=5) == []


@pytest.mark.parametrize("order_id", ["a/../../b", "..", "./a/.", "/a", "a//b", "a/"])
def test_the_links_to_an_order_lead_to_it_whatever_its_id(fixtures: Any, order_id: str) -> None:
    queued(fixtures, order_id)
    ann = fixtures.browser("ann", "approver")
    linked = re.findall(r'href="(/ops/orders/demo/[^"]+)"', ann.get("/ops/orders").text)
    assert linked
    for path in linked:
        assert urljoin("http://console.example/ops/orders", path) == "http://console.example" + path, (
            "browsers shorten it"
        )
        page = ann.get(path)
        assert page.status_code == 200
        assert order_id in page.text
    approval_id = fixtures.sql("select approval_id from orders.reviews")[0][0]
    assert f'href="{linked[0]}"' in ann.get(f"/ops/approvals/{approval_id}").text
    api = linked[0].replace("/ops/", "/ops/api/")
    assert fixtures.person("vic", "viewer").get(api).json["order_id"] == order_id


def test_every_standing_that_an_order_can_have_is_in_the_drawing(fixtures: Any) -> None:
    drawn = graph.highlight(graph.LANES, graph.PathTaken((), (), None, ""))
    ways = fixtures.sql("select from_lane, from_status, to_lane, to_status from orders.transitions where not retired")
    assert len(ways) > 10
    for start_lane, start, to_lane, to in ways:
        a, b = (f"{'none' if lane == '-' else lane}-{status}" for lane, status in ((start_lane, start), (to_lane, to)))
        for part in (f"at-{a}", f"at-{b}", f"way-{a}--{b}"):
            assert f'id="{part}"' in drawn, part


def test_an_order_with_nothing_to_pay_says_so_alike_in_the_list_and_on_its_page(fixtures: Any) -> None:
    fixtures.sql(
        "insert into orders.reviews (tenant_id, review_id, source, order_id, body_sha256, amount_minor, currency, account_ref, order_facts)"
        " values (%s, %s, 'demo', 'free', sha256('x'), 0, 'EUR', 'acct', '{}')", fixtures.tenant_id, uuid.uuid4(),
    )  # fmt: skip
    ann = fixtures.browser("ann", "viewer")
    assert all(">0.00 EUR<" in ann.get(path).text for path in ("/ops/orders", "/ops/orders/demo/free"))

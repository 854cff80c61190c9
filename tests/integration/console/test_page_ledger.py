"""The ledger's pages: narrowed and searched, paged by key, a row's life and its lit way, no customer, one act that repeats nothing."""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import psycopg
import pytest
from jinja2 import Environment, PackageLoader

from ops_console.pages import highlighted_diagram as graph
from ops_console.pages import ledger as ledger_pages
from ops_console.pages import ledger_timeline as ledger_life
from ops_console.pages.ledger_timeline import last_path, steps_of, timeline
from ops_console.pages.text import FILTERS
from ops_console.process_one import process_one
from ops_console.read_models import ledger_search
from ops_console.read_models.ledger_history import (
    Card,
    LedgerEventRow,
    LedgerExecutionRow,
    LedgerReportRow,
    Life,
    Trail,
    Wrong,
)
from ops_console.read_models.ledger_search import LedgerFilter, beginning, counted, search_ledger
from sentinel.platform.resources import drawing
from sentinel.store import queries as rows
from sentinel.store.ids import new_id
from tests.integration.console.conftest import Person
from tests.integration.console.test_console_refunds import add_entries, add_executed, add_worker

HOSTILE = "‮evil‬ <script>alert(1)</script>​ 'quoted'"
STEPS = [
    {"step": "kill_switch", "next": "check_params", "at_ms": 1.0, "output": {"switch": "retail.standard"}},
    {"step": "check_params", "next": "gate_common", "at_ms": 2.0},
    {"step": "gate_common", "next": "query_order", "at_ms": 3.0},
    {"step": "query_order", "next": "transfer_to_human", "at_ms": 4.0, "message": "order_unknown",
     "output": {"order_ref": "order-secret", "words": "secret words of a model", "degraded": HOSTILE}},
    {"step": "transfer_to_human", "next": "ask_authority", "at_ms": 5.0, "output": {"escalation": "order_unknown"}},
    {"step": "ask_authority", "at_ms": 9.5, "tool": "action/guard", "output": {"status": "pending"}},
]  # fmt: skip


def names(answer: Any) -> list[str]:
    """The entries that a list shows, in order."""
    assert answer.status_code == 200, answer.text
    return re.findall(r'href="/ops/ledger/([^"]+)"', answer.text)


def add_various(fixtures: Any) -> None:
    """Nine rows, a minute apart, that differ in everything that can be asked for."""
    fixtures.sql("set session_replication_role = replica; "
        "insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, channel, scenario, status,"
        " decision, reason_code, last_error, account_ref, order_ref, reason, created_at, budget_part)"
        f" select '{fixtures.tenant_id}', 'lge_' || n, 'rf_' || n, n * 1000, (array['USD','EUR','JPY'])[1 + n % 3],"
        " (array['retail','private'])[1 + n % 2], (array['standard','fee'])[1 + n % 2],"
        " (array['NEW','DENIED','EXECUTED','ERROR'])[1 + n % 4], (array[null,'DENY','ALLOW','DENY'])[1 + n % 4],"
        " (array[null,'over_limit','within_policy_limit','stale_window'])[1 + n % 4], 'it broke', 'acct-secret', 'order-secret',"
        " 'my secret words', timestamptz '2026-01-01 12:00Z' + n * interval '1 minute',"
        " (array[null,null,'executed',null])[1 + n % 4] from generate_series(1, 9) n")  # fmt: skip


def test_the_list_is_narrowed_by_every_field_and_shows_no_customer(fixtures: Any) -> None:
    add_various(fixtures)
    ann = fixtures.browser("ann", "viewer")
    page = ann.get("/ops/ledger")
    assert names(page) == [f"lge_{n}" for n in range(9, 0, -1)]
    assert "secret" not in page.text
    for query, wanted in (
        ("status=DENIED", (9, 5, 1)), ("channel=private", (9, 7, 5, 3, 1)), ("scenario=standard", (8, 6, 4, 2)),
        ("currency=JPY", (8, 5, 2)), ("decision=ALLOW", (6, 2)), ("reason=stale_window", (7, 3)),
        ("currency=USD&least=30&most=60", (6, 3)), ("currency=JPY&least=5000", (8, 5)), ("currency=EUR&most=40.00", (4, 1)),
        ("since=2026-01-01T12:08", (9, 8)), ("since=2026-01-01T12:02&until=2026-01-01T12:04", (3, 2)),
        ("since=2026-01-01T13:08%2B01:00", (9, 8)), ("q=lge_7", (7,)), ("q=rf_3", (3,)), ("q=lge_&status=NEW", (8, 4)),
        ("q=lge%25", ()), ("status=GUARDING", ()),
    ):  # fmt: skip
        assert names(ann.get(f"/ops/ledger?{query}")) == [f"lge_{n}" for n in wanted], query
    assert "No matching rows" in ann.get("/ops/ledger?q=lge%25").text


def test_what_cannot_be_looked_for_is_told_by_its_field_and_nothing_is_lost(fixtures: Any) -> None:
    ann = fixtures.browser("ann", "viewer")
    for query in ("status=new", "least=1", "currency=USD&least=1.005", "currency=usd", "since=yesterday", "q=%00", "q=%E2%80%AE",
                  "decision=MAYBE", "cursor=x", "until=99999-01-01T00:00", "reason=" + "x" * 200, "since=0001-01-01T00:00%2B23:00"):  # fmt: skip
        answer = ann.get(f"/ops/ledger?{query}&channel=retail")
        assert answer.status_code == 400, query
        assert 'role="alert"' in answer.text
        assert 'value="retail"' in answer.text
    assert 'class="fault"' in ann.get("/ops/ledger?least=5").text


def test_an_operation_is_found_by_its_id_and_by_the_beginning_of_it(fixtures: Any) -> None:
    operation = fixtures.guard("120.00").operation_id
    key = fixtures.sql("select idempotency_key from sentinel.operations")[0][0]
    fixtures.sql("insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency) values (%s, %s, 'rf', 12000, 'USD')",
              fixtures.tenant_id, key.removeprefix("refund:"))  # fmt: skip
    ann, entry = fixtures.browser("ann", "viewer"), key.removeprefix("refund:")
    for text in (str(operation), str(operation)[:13], operation.hex[:20].upper()):
        assert names(ann.get(f"/ops/ledger?q={text}")) == [entry], text
    for text in (str(operation)[:7], str(new_id()), "not-an-operation"):
        assert names(ann.get(f"/ops/ledger?q={text}")) == [], text


def test_a_beginning_that_more_operations_have_than_are_looked_at_is_said(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = (fixtures.guard("20.00").operation_id for _ in range(3))
    # The first eight digits are those of 65 seconds, which may have ended in between once.
    one = first if first.hex[:8] == second.hex[:8] else second
    ann, told = fixtures.browser("ann", "viewer"), "Enter more of the id."
    assert told not in ann.get(f"/ops/ledger?q={one.hex[:8]}").text
    monkeypatch.setattr(ledger_search, "MOST_OPERATIONS", 1)
    for path in ("/ops/ledger", "/ops/ledger-now"):
        assert told in ann.get(f"{path}?q={one.hex[:8]}").text
        assert told not in ann.get(f"{path}?q={one}").text
        assert told not in ann.get(path).text


def test_pages_follow_by_key_each_row_once_also_while_rows_come_in(fixtures: Any) -> None:
    add_entries(fixtures, 120)
    ann, seen, address = fixtures.browser("ann", "viewer"), [], "/ops/ledger?status=NEW"
    for _ in range(10):
        page = ann.get(address)
        seen += names(page)
        fixtures.sql("insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency) values (%s, 'late_' || gen_random_uuid(), 'rf', 1, 'USD')", fixtures.tenant_id)  # fmt: skip
        older = re.search(r'role="button" class="secondary outline" href="([^"]+)"', page.text)
        if older is None:
            break
        address = older[1].replace("&amp;", "&")
        assert "status=NEW" in address
    assert len(seen) == len(set(seen)) == 120
    assert not any(name.startswith("late_") for name in seen[50:])


def test_paging_counts_no_rows_from_the_start(fixtures: Any) -> None:
    add_entries(fixtures, 3)
    first = search_ledger(fixtures.pool, fixtures.tenant_id, LedgerFilter(), before=None, limit=2)
    after = (first[-1].created_at, first[-1].ledger_entry_id)
    assert len(search_ledger(fixtures.pool, fixtures.tenant_id, LedgerFilter(), before=after, limit=2)) == 1
    behind = ledger_search.page_sql(tuple(ledger_search.CONDITIONS), behind=True)
    assert " offset " not in (behind + ledger_search.COUNTS).lower()
    assert "(e.created_at, e.ledger_entry_id) <" in behind


def test_a_filter_without_an_index_looks_at_a_part_of_the_ledger_at_a_time_and_says_so(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: a filter that few rows match walked through all rows of the tenant, each time the list refreshed itself."""
    add_various(fixtures)
    monkeypatch.setattr(ledger_search, "LOOKED_AT", 2)
    ann = fixtures.browser("ann", "viewer")

    def parts(query: str) -> list[list[str]]:
        """What each page shows, from the newest to the end."""
        found, address = [], f"/ops/ledger?{query}"
        while address:
            page = ann.get(address)
            found.append(names(page))
            (end,) = re.findall(r'<a role="button"[^>]* href="([^"]+)">([^<]+)</a></p>', page.text) or [("", "")]
            assert end[1] in ("", "Search older rows")
            assert ("among those searched so far" in page.text) == (not found[-1] and end[1] != "")
            address = end[0].replace("&amp;", "&")
        return found

    ids = {n: f"lge_{n}" for n in range(1, 10)}
    assert parts("reason=stale_window") == [[], [ids[7]], [], [ids[3]], []]
    assert parts("currency=JPY&least=5000&status=EXECUTED") == [[] for _ in range(5)]
    assert parts("channel=private&since=2026-01-01T12:07") == [[ids[9]], [ids[7]]]
    # What an index finds is looked for in the whole ledger.
    for query, wanted in (("q=rf_3&channel=private", [ids[3]]), ("status=NEW&channel=retail", [ids[8], ids[4]]), ("status=DENIED", [ids[9], ids[5], ids[1]])):  # fmt: skip
        assert parts(query) == [wanted], query


@pytest.mark.fresh_database  # counts what is read
def test_a_filter_that_nothing_matches_reads_no_more_of_a_ledger_that_grows(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_search, "LOOKED_AT", 500)

    def reads() -> int:
        """Blocks that one page reads."""
        wanted = LedgerFilter(reason_code="nowhere")
        with psycopg.connect(fixtures.url, autocommit=True) as connection:
            fields = {"tenant_id": fixtures.tenant_id, "offset": 499, "limit": 1}
            end = connection.execute(ledger_search.part_end_sql((), behind=False), fields).fetchone()
            assert end is not None
            fields |= {"reason_code": wanted.reason_code, "last_at": end[0], "last_id": end[1], "limit": 51}
            total = 0
            for statement in (
                ledger_search.part_end_sql((), behind=False),
                ledger_search.page_sql(("reason_code",), behind=False, up_to=True),
            ):
                found = connection.execute(f"explain (analyze, buffers, format json) {statement}", fields).fetchone()
                assert found is not None
                plan = found[0][0]["Plan"]
                total += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return int(total)

    add_executed(fixtures, 1, 1_000)
    few = reads()
    add_executed(fixtures, 1_001, 20_000)
    assert reads() <= 2 * few


def test_counts_stop_at_their_bound_and_say_so(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    add_various(fixtures)
    fixtures.sql("set session_replication_role = replica; insert into refunds.executions (tenant_id, execution_id, ledger_entry_id, refund_id, amount_minor, currency, operation_id, start_id, start_event_id, claim_epoch) "
              f"select '{fixtures.tenant_id}', gen_random_uuid(), 'lge_' || n, 'rf_' || n, 1, 'USD', gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 1 from generate_series(1, 2) n")  # fmt: skip
    found = counted(fixtures.pool, fixtures.tenant_id)
    assert {name: one.entries for name, one in found.items() if one.entries} == {
        "NEW": 2,
        "DENIED": 3,
        "EXECUTED": 2,
        "ERROR": 2,
    }
    monkeypatch.setattr(ledger_search, "MOST_COUNTED", 2)
    found = counted(fixtures.pool, fixtures.tenant_id)
    assert (found["DENIED"].entries, found["DENIED"].is_all, found["NEW"].is_all) == (2, False, True)
    assert "<strong>2+</strong>" in fixtures.browser("ann", "viewer").get("/ops/ledger").text


def test_a_pattern_takes_its_signs_literally() -> None:
    assert beginning("a_b%c\\d") == "a\\_b\\%c\\\\d%"


def add_life(fixtures: Any, decide: Callable[[Any, Any], Any] = Person.reject) -> str:
    """A row that a worker put to a person, who rejected it or did as `decide` does; the name of the row."""
    recorded = fixtures.guard("200.00")
    entry = fixtures.sql("select idempotency_key from sentinel.operations where operation_id = %s", recorded.operation_id)[0][0].removeprefix("refund:")  # fmt: skip
    fixtures.sql("insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, account_ref, order_ref, reason)"
              " values (%s, %s, 'rf_1', 20000, 'USD', 'acct-secret', 'order-secret', 'secret words')", fixtures.tenant_id, entry)  # fmt: skip
    fixtures.sql("update refunds.ledger_entries set status = 'GUARDING', last_event = 'claimed', event_number = 1, claim_epoch = 1,"
              " claimed_by = 'worker-7', lease_until = clock_timestamp() + interval '1 minute'")  # fmt: skip
    fixtures.sql("insert into refunds.step_trails (tenant_id, ledger_entry_id, claim_epoch, steps) values (%s, %s, 1, %s::jsonb)", fixtures.tenant_id, entry, json.dumps(STEPS))  # fmt: skip
    fixtures.sql("update refunds.ledger_entries set status = 'APPROVAL_REQUIRED', last_event = 'approval_required', event_number = 2, waiting_for = 'operator',"
              " lease_until = null, decision = 'APPROVAL_REQUIRED', reason_code = 'amount_needs_approval', operation_id = %s, approval_id = %s",
              recorded.operation_id, recorded.approval_id)  # fmt: skip
    decide(fixtures.person("rex", "approver"), recorded.approval_id)
    return str(entry)


def test_a_rows_life_is_told_in_order_with_its_lit_way_and_without_the_customer(fixtures: Any) -> None:
    entry = add_life(fixtures)
    page = fixtures.browser("ann", "viewer").get(f"/ops/ledger/{entry}")
    assert page.status_code == 200
    said = re.sub(r"<[^>]+>", " ", page.text)
    order = [
        "Claimed by a worker",
        "Run of the workflow",
        "transfer_to_human",
        "Pending approval",
        "Vote",
        "Rejected",
    ]
    places = [said.index(each) for each in order]
    assert places == sorted(places)
    assert "not this one" in said
    assert "rex@demo.local" in said
    assert "secret" not in page.text
    assert "<script>alert" not in page.text
    assert "U+202E" in page.text
    for part in ("at-kill_switch", "at-query_order", "at-transfer_to_human", "way-query_order--transfer_to_human"):
        assert re.search(rf'class="(?:at|way) lit" id="{part}"', page.text), part
    assert 'class="at lit end" id="at-ask_authority"' in page.text
    for part in ("at-confirm_card", "at-execute_by_system", "way-query_order--check_order"):
        assert re.search(rf'class="(?:at|way)" id="{part}"', page.text), part
    assert "style=" not in page.text
    assert "The last run passed kill_switch, check_params" in page.text
    assert 'href="/ops/approvals/' in page.text


def test_what_a_person_handled_is_called_so_and_its_person_named_once(fixtures: Any) -> None:
    entry = add_life(fixtures, Person.handled)
    page = fixtures.browser("ann", "viewer").get(f"/ops/ledger/{entry}").text
    decided = page.partition("<dt>Approval</dt>")[2].partition("</dd>")[0]
    assert '<span class="chip handled">handled</span>' in decided and "rejected" not in decided
    moment = page.partition("<strong>Handled by a person</strong>")[2].partition("</li>")[0]
    assert moment.count("rex@demo.local") == 1 and "till-7" in moment


def test_an_effect_is_told_by_what_it_is_found_by_in_its_system(fixtures: Any) -> None:
    reference = uuid.uuid4()
    fixtures.sql("insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency)"
              " values (%s, 'lge_1', 'rf_1', 1, 'USD')", fixtures.tenant_id)  # fmt: skip
    for number, system in enumerate(("ticket", "stripe"), 1):
        fixtures.sql("insert into refunds.effects (tenant_id, ledger_entry_id, effect_number, operation_reference, system, reference, must_total,"
                  " claim_epoch, payment_ref) values (%s, 'lge_1', %s, %s, %s, %s, 2, 1, 'pi_7')",
                  fixtures.tenant_id, number, reference, system, reference)  # fmt: skip
    page = fixtures.browser("ann", "viewer").get("/ops/ledger/lge_1").text
    ticket, stripe = (
        page.partition(f"Effect {number} in {system}")[2].partition("</li>")[0]
        for number, system in ((1, "ticket"), (2, "stripe"))
    )
    assert str(reference) in ticket and "pi_7" not in ticket
    assert "pi_7" in stripe and "as ledger_entry_id in its metadata" in stripe
    assert str(reference) not in stripe, "Stripe never heard of it"


def test_a_report_that_a_person_discarded_is_not_called_acknowledged() -> None:
    moment = datetime.now(UTC)

    def shown(last_error: str | None) -> tuple[str, str | None]:
        report = LedgerReportRow(1, last_error, moment, moment)
        _, last = timeline(Life([], [], [], [], [], [report], [], []))
        return last.title, last.words

    assert shown(None) == ("Report acknowledged by the authority", None)
    assert shown("discarded by anna: CASE-7") == (
        "Report discarded",
        "discarded by anna: CASE-7",
    )


def test_a_permit_that_came_with_its_start_is_shown_before_the_execution_of_the_same_transaction() -> None:
    """Which writes the execution and its report a moment before the changes of the row."""
    claimed = datetime.now(UTC)
    first, second, *times = [claimed + timedelta(milliseconds=n) for n in range(1, 6)]
    changes = [
        LedgerEventRow(event, state, 1, "w", None, at)
        for event, state, at in (
            ("claimed", "GUARDING", claimed), ("allowed", "ALLOWED", times[0]), ("executed", "EXECUTED", times[1]),
        )
    ]  # fmt: skip
    for executed_at, queued_at in ((first, second), (second, first)):
        execution = LedgerExecutionRow(uuid.uuid4(), "simulated_refund", 100, "USD", executed_at)
        report = LedgerReportRow(1, None, times[2], queued_at)
        assert [one.title for one in timeline(Life(changes, [], [], [], [execution], [report], [], []))] == [
            "Claimed by a worker", "Permit issued to the worker", "Executed", "Execution recorded", "Report queued for the authority",
            "Report acknowledged by the authority",
        ]  # fmt: skip


def test_a_confirm_card_says_whether_its_link_was_sent() -> None:
    opened = datetime.now(UTC)
    asked = (1999, "USD", opened, opened + timedelta(days=1), None)
    sent = Card(
        "expired", *asked, delivered_at=opened + timedelta(seconds=1), delivery_attempts=1, last_delivery_error=None
    )
    assert [one.title for one in timeline(Life([], [], [], [sent], [], [], [], []))] == [
        "Confirm card opened", "Link handed to the notifier", "No answer in time",
    ]  # fmt: skip
    kept = Card("pending", *asked, delivered_at=None, delivery_attempts=2, last_delivery_error="smtp: refused")
    (opening,) = timeline(Life([], [], [], [kept], [], [], [], []))
    assert ("link not sent", "smtp: refused (2 attempts)") in opening.facts


def test_a_refund_that_a_bank_sent_back_is_not_called_a_wrong_execution() -> None:
    found = [Wrong(finding, datetime.now(UTC)) for finding in ("refund_failed", "other_system")]
    assert [one.title for one in timeline(Life([], [], [], [], [], [], found, []))] == [
        "Sent back: the customer does not have the refund", "Wrong execution found: other system",
    ]  # fmt: skip


def test_a_codes_chip_reads_as_words_and_a_ledgers_state_as_it_is_called() -> None:
    chips = '{% import "pages/macros.html" as ui %}{{ ui.chip("in_doubt") }} {{ ui.chip("to be confirmed") }} {{ ui.chip("APPROVAL_REQUIRED") }} {{ ui.chip(none) }}'
    templates = Environment(loader=PackageLoader("ops_console"), autoescape=True)
    templates.filters.update(FILTERS)
    said = templates.from_string(chips).render()
    assert re.findall(r'class="chip ([^"]+)">([^<]+)<', said) == [
        ("in-doubt", "in doubt"), ("to-be-confirmed", "to be confirmed"), ("approval-required", "APPROVAL_REQUIRED"), ("none", "–"),
    ]  # fmt: skip


def test_mutant_that_shows_all_that_a_step_noted_would_show_the_customer(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = add_life(fixtures)
    monkeypatch.setattr(ledger_life, "_NOTED", (*ledger_life._NOTED, "order_ref", "words"))
    assert "secret" in fixtures.browser("ann", "viewer").get(f"/ops/ledger/{entry}").text


def test_what_is_no_row_or_another_tenants_is_not_there(fixtures: Any) -> None:
    entry = add_life(fixtures)
    ann = fixtures.browser("ann", "viewer")
    for path in ("none", "a%00b", "x" * 300, "%F0%9F%92%A9", entry + "/more"):
        assert ann.get(f"/ops/ledger/{path}").status_code == 404, path
    stranger = fixtures.at_page(fixtures.operator("eve", "admin", fixtures.tenant("other")).email, tenant="other")
    assert stranger.get(f"/ops/ledger/{entry}").status_code == 404
    assert names(stranger.get("/ops/ledger")) == []


@pytest.mark.parametrize("entry", ["shop/../7", "..", "a/./b", "/7", "7//1"])
def test_the_link_to_a_row_leads_to_it_whatever_its_id(fixtures: Any, entry: str) -> None:
    fixtures.sql(
        "insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency) values (%s, %s, 'rf_1', 1, 'USD')",
        fixtures.tenant_id, entry,
    )  # fmt: skip
    ann = fixtures.browser("ann", "viewer")
    (path,) = re.findall(r'href="(/ops/ledger/[^"]+)"', ann.get("/ops/ledger").text)
    assert urljoin("http://console.example/ops/ledger", path) == "http://console.example" + path, "browsers shorten it"
    assert entry in ann.get(path).text


def test_a_name_that_the_drawing_has_not_lights_nothing_and_is_not_written() -> None:
    drawn = graph.highlight(graph.WORKFLOW, graph.PathTaken((HOSTILE,), (("kill_switch", HOSTILE),), HOSTILE, HOSTILE))
    assert " lit" not in drawn
    assert "<script>" not in drawn
    assert (
        graph.highlight(graph.WORKFLOW, graph.PathTaken(("confirm",), (), "confirm", "x")).count('class="at lit end"')
        == 1
    )


def test_the_drawings_travel_with_the_program() -> None:
    shipped = (
        (Path(__file__).parents[3] / "setup.cfg")
        .read_text()
        .partition("sentinel._deploy = roles.sql")[2]
        .partition("\n")[0]
    )
    for name in (graph.WORKFLOW, graph.LANES):
        assert drawing(name).is_file()
        assert name in shipped


def test_a_trail_of_a_form_that_is_not_known_is_told_as_far_as_it_goes() -> None:
    odd = Trail(1, [{"step": "new_step", "next": None}, {"step": None}], datetime.now(UTC))
    assert [step.name for step in steps_of(odd)] == ["new_step", "None"]
    assert last_path([]) is None
    life = Life([], [odd, Trail(2, [], odd.occurred_at + timedelta(seconds=1))], [], [], [], [], [], [])
    assert len(timeline(life)) == 2


def test_the_pages_ask_a_fixed_number_of_questions(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows there are: nothing is asked row by row."""
    add_entries(fixtures, 30)
    ann, asked, really = fixtures.browser("ann", "viewer"), [], rows.call_with_retry
    monkeypatch.setattr(rows, "call_with_retry", lambda pool, call: asked.append(1) or really(pool, call))

    def questions(query: str, found: int) -> int:
        asked.clear()
        assert len(names(ann.get(f"/ops/ledger?{query}"))) == found
        return len(asked)

    # The least of three: the database's time is asked anew once a second, in whichever request that falls.
    numbers = [min(questions(query, found) for _ in range(3)) for query, found in (("q=lge_30", 1), ("q=lge_", 30))]
    assert numbers[0] == numbers[1] <= 6


# Process one ---------------------------------------------------------------------------------------------------------


EXECUTED = {"processed": 1, "ledger_entry_id": "lge_1", "decision": "ALLOW", "status": "EXECUTED"}


def answer_requests(fixtures: Any, times: int, stop: threading.Event, result: dict[str, Any] = EXECUTED) -> None:
    """A worker that processes what it is asked to, and counts."""
    done = 0
    while not stop.is_set() and done < times:
        done += len(fixtures.sql(
            "update refunds.process_requests set claimed_by = 'w1', finished_at = clock_timestamp(), result = %s"
            " where finished_at is null returning 1", json.dumps(result)))  # fmt: skip
        time.sleep(0.02)


def test_processing_one_twice_by_one_form_processes_one(fixtures: Any) -> None:
    add_worker(fixtures)
    ann, stop = fixtures.browser("ann", "approver"), threading.Event()
    request_id = re.search(r'name="request_id" value="([^"]+)"', ann.get("/ops/ledger").text)
    assert request_id is not None
    worker = threading.Thread(target=answer_requests, args=(fixtures, 5, stop))
    worker.start()
    try:
        for _ in range(2):
            assert ann.submit("/ops/ledger", request_id=request_id[1]).status_code == 303
    finally:
        stop.set()
        worker.join()
    assert "The worker processed lge_1: ALLOW, EXECUTED." in ann.get("/ops/ledger").text
    assert fixtures.sql("select count(*) from refunds.process_requests") == [(1,)]


@pytest.mark.parametrize(
    ("result", "kind", "said"),
    [
        (EXECUTED, "done", "The worker processed lge_1: ALLOW, EXECUTED."),
        ({"processed": 0, "detail": "nothing is due"}, "warning", "Nothing is due."),
        ({"processed": 1, "ledger_entry_id": "lge_1", "status": "ERROR", "failed": True}, "warning", "The worker processed lge_1: ERROR."),
        (
            {"processed": 0, "detail": "nothing is due here; no worker of their own for 3 due rows of the agent b"},
            "warning", "Nothing is due here; no worker of their own for 3 due rows of the agent b.",
        ),
        (
            {"processed": 1, "ledger_entry_id": "lge_1", "status": "NEW", "failed": True, "detail": "no answer within 2 s"},
            "warning", "The worker processed lge_1: NEW. It failed: no answer within 2 s.",
        ),
        (
            {"processed": 1, "ledger_entry_id": "lge_1", "status": "NEW", "failed": False, "detail": "the limit is full"},
            "done", "The worker processed lge_1: NEW.",
        ),
    ],
)  # fmt: skip
def test_the_page_says_what_the_worker_answered(fixtures: Any, result: dict[str, Any], kind: str, said: str) -> None:
    add_worker(fixtures)
    ann, stop = fixtures.browser("ann", "approver"), threading.Event()
    worker = threading.Thread(target=answer_requests, args=(fixtures, 1, stop, result))
    worker.start()
    try:
        answer = ann.submit("/ops/ledger?status=ERROR", request_id=str(uuid.uuid4()))
    finally:
        stop.set()
        worker.join()
    assert (answer.status_code, answer.headers["Location"]) == (303, "/ops/ledger?status=ERROR"), "the filter is kept"
    page = ann.get("/ops/ledger?status=ERROR").text
    assert f'<p class="said {kind}">{said}</p>' in page and 'action="/ops/ledger?status=ERROR#refused"' in page


def test_mutant_that_names_each_question_anew_processes_two(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    add_worker(fixtures)
    ann, stop = fixtures.browser("ann", "approver"), threading.Event()
    monkeypatch.setattr(ledger_pages, "process_one", lambda pool, person, **_: process_one(pool, person))
    worker = threading.Thread(target=answer_requests, args=(fixtures, 5, stop))
    worker.start()
    try:
        for _ in range(2):
            ann.submit("/ops/ledger", request_id=str(uuid.UUID(int=1)))
    finally:
        stop.set()
        worker.join()
    assert fixtures.sql("select count(*) from refunds.process_requests") == [(2,)]


def test_processing_one_is_refused_without_a_worker_a_role_or_a_form_of_ours(fixtures: Any) -> None:
    ann, vic = fixtures.browser("ann", "approver"), fixtures.browser("vic", "viewer")
    assert "Process one now" not in vic.get("/ops/ledger").text
    answer = ann.submit("/ops/ledger", request_id=str(uuid.uuid4()))
    assert answer.status_code == 503
    assert "no worker is running" in answer.text
    assert ann.submit("/ops/ledger", request_id="mine").status_code == 400
    assert vic.submit("/ops/ledger", request_id=str(uuid.uuid4())).status_code == 403
    assert ann.client.post("/ops/ledger", data={"request_id": str(uuid.uuid4())}).status_code == 403
    assert fixtures.sql("select 1 from refunds.process_requests") == []


def test_a_row_in_error_says_how_it_is_tried_again_and_others_do_not(fixtures: Any) -> None:
    add_various(fixtures)
    ann = fixtures.browser("ann", "viewer")
    assert "worker retry lge_3 --reason" in ann.get("/ops/ledger/lge_3").text
    assert "worker retry" not in ann.get("/ops/ledger/lge_2").text


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        ("reason_code = 'not_executed'", "which is final; to pay it, enter it again"),
        ("budget_part = 'handled'", "nothing is left to do"),
        ("reason_code = 'settlement_refused'", "it may have been paid; resolve it first"),
        ("reason_code = 'closed'", "an analyst has since decided to hold its order"),
    ],
)
def test_a_row_in_error_that_cannot_be_tried_again_says_why(fixtures: Any, ended: str, said: str) -> None:
    add_various(fixtures)
    fixtures.sql(
        f"set session_replication_role = replica; update refunds.ledger_entries set {ended} where status = 'ERROR';"
        " insert into orders.refunds (tenant_id, review_id, attempt, ledger_entry_id, reason, via, state, ended_at)"
        " select tenant_id, gen_random_uuid(), 1, ledger_entry_id, 'x', 'x', 'closed', now() from refunds.ledger_entries"
        " where reason_code = 'closed'"
    )
    page = fixtures.browser("ann", "viewer").get("/ops/ledger/lge_3").text
    assert said in page and "worker retry" not in page

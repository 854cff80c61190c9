"""The pages of doubt: by age and money, with evidence; one decision ends it, and a second one is told what was said before."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ops_console.pages import in_doubt
from tests.integration.console.conftest import PASSWORD
from tests.integration.console.test_page_policies import EVIL, words

DOUBT = (
    "update sentinel.operation_states set status = 'in_doubt', started_at = clock_timestamp(), in_doubt_reason = %s,"
    " in_doubt_since = clock_timestamp() - make_interval(hours => %s) where operation_id = %s"
)


def doubted(fixtures: Any, value: str, hours: int, why: str = "no_report") -> str:
    recorded = fixtures.guard(value)
    fixtures.sql(DOUBT, why, hours, recorded.operation_id)
    return str(recorded.operation_id)


def looked_at(browser: Any, operation_id: str) -> str:
    """Which doubt the form of the page is about."""
    found = re.search(r'name="in_doubt_since" value="([^"]+)"', browser.get(f"/ops/in-doubt/{operation_id}").text)
    assert found is not None
    return found[1]


def test_doubts_are_listed_by_age_or_money_and_each_shows_its_evidence(fixtures: Any) -> None:
    app = fixtures.app()
    vic = fixtures.browser("vic", "viewer", app)
    assert "Nothing is in doubt." in words(vic.get("/ops/in-doubt"))
    small_old, large_new = doubted(fixtures, "10.00", 5), doubted(fixtures, "140.00", 1, "error_reported")
    by_age, by_money = (
        vic.get(f"/ops/in-doubt{query}").get_data(as_text=True) for query in ("", "?sort=amount")
    )  # fmt: skip
    assert by_age.index(small_old) < by_age.index(large_new) and by_money.index(large_new) < by_money.index(small_old)
    told = words(vic.get("/ops/in-doubt"))
    assert "150.00 USD 2 operations" in told and "the money may have moved all the same" in told
    one = vic.get(f"/ops/in-doubt/{large_new}")
    assert (
        "140.00 USD" in words(one) and "sha256:" in words(one) and "Only an administrator can resolve it." in words(one)
    )
    assert "/resolve" not in one.get_data(as_text=True)
    assert vic.get("/ops/in-doubt?sort=luck").status_code == 400
    other = fixtures.at_page(
        fixtures.operator("oda", "admin", fixtures.tenant("elsewhere")).email, app
    )  # fmt: skip
    assert other.get(f"/ops/in-doubt/{large_new}").status_code == 404, "another tenant's is not there"
    assert small_old not in other.get("/ops/in-doubt").get_data(as_text=True)


def test_amounts_of_different_currencies_are_not_compared(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 JPY is less than 999.99 USD, and has more minor units."""
    amounts = (("JPY", 100_000), ("USD", 99_999), ("USD", 200), ("JPY", 200_000), ("KWD", 150_000))
    ids = {}
    for currency, minor in amounts:
        ids[currency, minor] = doubted(fixtures, "10.00", 1)
        fixtures.sql(
            f"set session_replication_role = replica; update sentinel.operation_rows set currency = '{currency}',"
            f" amount_minor = {minor} where operation_id = '{ids[currency, minor]}'"
        )
    vic = fixtures.browser("vic", "viewer")

    def shown(query: str) -> list[tuple[str, int]]:
        page = vic.get(f"/ops/in-doubt{query}").text
        return sorted((key for key, one in ids.items() if one in page), key=lambda key: page.index(ids[key]))

    yen, dollars = [("JPY", 200_000), ("JPY", 100_000)], [("USD", 99_999), ("USD", 200)]
    assert shown("?sort=amount") == [*yen, ("KWD", 150_000), *dollars]
    page = vic.get("/ops/in-doubt").text
    for currency in ("JPY", "KWD", "USD"):
        assert f'href="/ops/in-doubt?sort=amount&amp;currency={currency}"' in page
    assert shown("?sort=amount&currency=USD") == dollars
    # What is cut off is the least of a currency, whatever there is of others.
    monkeypatch.setattr(in_doubt, "MOST_SHOWN", 1)
    assert shown("?sort=amount&currency=USD") == dollars[:1]
    assert "Only the first 1 in this order are shown." in vic.get("/ops/in-doubt?sort=amount&currency=USD").text
    assert "Nothing is in doubt in EUR." in words(vic.get("/ops/in-doubt?sort=amount&currency=EUR"))
    for bad in ("?sort=amount&currency=usd", "?currency=USD&sort=age", "?sort=amount&currency=%00"):
        assert vic.get(f"/ops/in-doubt{bad}").status_code == 400, bad


def test_the_order_of_the_list_is_kept_by_the_pages_of_its_operations(fixtures: Any) -> None:
    operation_id, abe = doubted(fixtures, "100.00", 1), fixtures.browser("abe", "admin", proved=True)
    kept, path = "?sort=amount&currency=USD", f"/ops/in-doubt/{operation_id}"
    shown = kept.replace("&", "&amp;")
    assert f'href="{path}{shown}"' in abe.get(f"/ops/in-doubt{kept}").text
    page = abe.get(f"{path}{kept}").text
    assert f'<a href="/ops/in-doubt{shown}">In doubt</a>' in page
    assert f'action="{path}/resolve{shown}#refused"' in page
    form = {"executed": "yes", "evidence": "the bank has it", "in_doubt_since": looked_at(abe, operation_id)}
    done = abe.submit(f"{path}/resolve{kept}", **form)
    assert (done.status_code, done.headers["Location"]) == (303, f"{path}{kept}")


@pytest.mark.parametrize(("executed", "budget"), [("yes", "captured"), ("no", "released")])
def test_a_decision_with_evidence_and_proof_ends_a_doubt_once(fixtures: Any, executed: str, budget: str) -> None:
    app, operation_id = fixtures.app(), doubted(fixtures, "100.00", 1)
    path = f"/ops/in-doubt/{operation_id}/resolve"
    ann, abe = fixtures.browser("ann", "approver", app), fixtures.browser("abe", "admin", app)
    form = {"executed": executed, "evidence": EVIL, "in_doubt_since": looked_at(abe, operation_id)}
    assert ann.submit(path, **form).status_code == 403
    shown = words(abe.get(f"/ops/in-doubt/{operation_id}"))
    assert "100.00 USD count as paid against its limits" in shown and "can then be executed twice" in shown
    for given in ({}, {"proof": "wrong"}):
        assert abe.submit(path, **form, **given).status_code == 400
    for given in ({"executed": ""}, {"executed": "perhaps"}, {"evidence": " "}, {"evidence": "\u202etxt"},
                  {"in_doubt_since": ""}, {"in_doubt_since": "today"}):  # fmt: skip
        assert abe.submit(path, **{**form, **given}, proof=PASSWORD).status_code == 400, given
    assert fixtures.sql("select state from sentinel.reservations") == [("held",)]
    assert abe.submit(path, **form).status_code == 303
    again = abe.submit(path, **{**form, "executed": "no" if executed == "yes" else "yes"})
    assert again.status_code == 409 and "This was already resolved" in words(again) and "abe@demo.local" in words(again)
    assert "<img src=x" not in again.get_data(as_text=True)
    assert fixtures.sql("select state from sentinel.reservations") == [(budget,)]
    assert fixtures.sql("select count(*) from sentinel.events where kind = 'in_doubt_resolved'") == [(1,)]


def test_the_page_says_who_ended_a_doubt_however_much_was_recorded_before(fixtures: Any) -> None:
    """The finding: it read the oldest 200 events of the operation, and knew of no resolution behind them."""
    operation = doubted(fixtures, "100.00", 1)
    fixtures.sql(
        "select sentinel.append_event(%s, gen_random_uuid(), 'asked_again', %s, 'retail-refund-agent', clock_timestamp(), '{}')"
        " from generate_series(1, 210)", fixtures.tenant_id, operation,
    )  # fmt: skip
    abe, path = fixtures.browser("abe", "admin", proved=True), f"/ops/in-doubt/{operation}"
    form = {"executed": "yes", "evidence": "the bank has it", "in_doubt_since": looked_at(abe, operation)}
    assert abe.submit(f"{path}/resolve", **form).status_code == 303
    page = words(abe.get(path))
    assert "already resolved as executed by abe@demo.local" in page and "the bank has it" in page
    assert re.search(r"by abe@demo\.local at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", page), "as every other time"
    assert "Only the newest 200" in page


def test_not_executed_waits_for_who_may_act_and_the_page_says_until_when(fixtures: Any) -> None:
    operation_id = doubted(fixtures, "100.00", 1)
    fixtures.sql("update sentinel.operation_states set act_until = clock_timestamp() + interval '1 hour'")
    until = fixtures.sql(
        "select to_char(act_until at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') from sentinel.operation_states"
    )[0][0]
    abe = fixtures.browser("abe", "admin", fixtures.app())
    page = abe.get(f"/ops/in-doubt/{operation_id}")
    assert "can be recorded from" in words(page) and 'value="no" disabled' in page.get_data(as_text=True)
    path = f"/ops/in-doubt/{operation_id}/resolve"
    about = {"evidence": "statement", "in_doubt_since": looked_at(abe, operation_id)}
    early = abe.submit(path, executed="no", proof=PASSWORD, **about)
    assert early.status_code == 409 and until in words(early)
    assert fixtures.sql("select state from sentinel.reservations") == [("held",)]
    assert abe.submit(path, executed="yes", **about).status_code == 303


def test_a_form_that_was_left_open_does_not_end_the_doubt_that_came_after_it(fixtures: Any) -> None:
    """A colleague said "not executed" meanwhile, and a success was reported after that."""
    operation_id = doubted(fixtures, "100.00", 1)
    abe = fixtures.browser("abe", "admin", fixtures.app(), proved=True)
    path, old = f"/ops/in-doubt/{operation_id}/resolve", looked_at(abe, operation_id)
    fixtures.sql(DOUBT, "contradiction", 0, operation_id)
    for executed in ("no", "yes"):
        answer = abe.submit(path, executed=executed, evidence="statement of this morning", in_doubt_since=old)
        assert (answer.status_code, "has changed since you looked at it" in words(answer)) == (409, True)
        assert ">statement of this morning<" in answer.text and f'value="{executed}" checked' not in answer.text
        assert "This action of this agent is halted" in words(answer)
    assert fixtures.sql("select status, in_doubt_reason from sentinel.operation_states") == [
        ("in_doubt", "contradiction")
    ]
    assert fixtures.sql("select state from sentinel.reservations") == [("held",)]
    assert fixtures.sql("select count(*) from sentinel.events where kind = 'in_doubt_resolved'") == [(0,)]
    now = {"executed": "yes", "evidence": "the bank has it", "in_doubt_since": looked_at(abe, operation_id)}
    assert abe.submit(path, **now).status_code == 303
    assert fixtures.sql("select state from sentinel.reservations") == [("captured",)]


def test_a_contradiction_is_named_on_the_overview_and_on_its_page(fixtures: Any) -> None:
    app, operation_id = fixtures.app(), doubted(fixtures, "100.00", 1, "contradiction")
    vic = fixtures.browser("vic", "viewer", app)
    assert "Contradictions" in words(vic.get("/ops")) and "resolved them as “not executed”" in words(vic.get("/ops"))
    assert "This action of this agent is halted" in words(vic.get(f"/ops/in-doubt/{operation_id}"))
    fixtures.sql("update sentinel.operation_states set in_doubt_reason = 'no_report'")
    assert "Contradictions" not in words(vic.get("/ops"))

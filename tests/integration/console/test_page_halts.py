"""The page of halts: setting with suggestions, lifting with proof, and what got through is measured, not claimed."""

from __future__ import annotations

import re
import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest

from sentinel.authority.halts import HaltRow, LastEffect, last_effect
from sentinel.store.ids import new_id, random_bytes, unix_milliseconds, uuid7
from tests.integration.console.conftest import PASSWORD
from tests.integration.console.test_page_policies import EVIL, words
from tests.support.ledger_fixtures import wait_until

START = "select sentinel.append_event(%s, %s, 'start', %s, 'retail-refund-agent', clock_timestamp(), '{}')"


def start(fixtures: Any, recorded: Any) -> None:
    """A start at this moment, past every check: what a broken authority would commit."""
    fixtures.sql(START, fixtures.tenant_id, new_id(), recorded.operation_id)


def test_a_halt_says_how_long_before_it_the_last_effect_was_and_names_what_got_through(fixtures: Any) -> None:
    app, before = fixtures.app(), fixtures.guard("100.00")
    start(fixtures, before)
    ann = fixtures.browser("ann", "approver", app)
    page = ann.get("/ops/halts").get_data(as_text=True)
    assert (
        '<option value="retail-refund-agent" label="agent">' in page
        and '<option value="refund.create" label="action">' in page
    )
    assert 'name="proof"' not in page, "stopping is easy"
    for scope, target in (("action", "refund.*"), ("agent", "another-agent"), ("agent", "retail-refund-agent")):
        assert ann.submit("/ops/halts", scope=scope, target=target, reason=EVIL, level="kill").status_code == 303
    told = words(ann.get("/ops/halts"))
    assert told.count("The last effect was") == 2 and told.count("Nothing got through.") == 3, told
    assert "<img" not in ann.get("/ops/halts").get_data(as_text=True).replace('<img src="/static', "")
    # The mutant: an authority that does not look at halts. The page, in another process, must turn red.
    start(fixtures, before)
    told = words(fixtures.browser("una", "viewer", fixtures.app()).get("/ops/halts"))
    assert told.count("1 got through, the last") == 2 and told.count("Nothing got through.") == 1
    assert 'action="/ops/halts' not in fixtures.browser("vera", "viewer", app).get("/ops/halts").get_data(as_text=True)


def test_a_consoles_clock_that_is_ahead_hides_nothing_that_gets_through(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: what had been measured in the halt's first seconds was shown for a day."""

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return super().now(tz) + timedelta(hours=1)

    monkeypatch.setattr("ops_console.pages.halts.datetime", Ahead)
    before, ann = fixtures.guard("100.00"), fixtures.browser("ann", "approver")
    assert ann.submit("/ops/halts", scope="agent", target="retail-refund-agent", reason="x").status_code == 303
    assert "Nothing got through." in words(ann.get("/ops/halts"))
    start(fixtures, before)
    wait_until(lambda: "1 got through, the last" in words(ann.get("/ops/halts")))


def test_the_page_says_how_far_off_an_authoritys_clock_may_be_for_what_it_finds(fixtures: Any) -> None:
    """An effect is looked for by its id, which has the time of the authority's machine."""
    before, ann = fixtures.guard("100.00"), fixtures.browser("ann", "approver")
    assert ann.submit("/ops/halts", scope="agent", target="retail-refund-agent", reason="x").status_code == 303
    ahead = uuid7(unix_milliseconds() + 50_000, random_bytes(10))
    fixtures.sql(START, fixtures.tenant_id, ahead, before.operation_id)
    told = words(ann.get("/ops/halts"))
    assert "1 got through, the last" in told
    assert "found only where the clock of the authority that recorded it is within a minute of the database's" in told


def test_what_was_measured_long_after_a_halt_is_not_measured_again(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixtures.sql(
        "insert into sentinel.halts (tenant_id, halt_id, scope, target, level, reason, set_by, set_at)"
        " select %s, gen_random_uuid(), 'agent', 'a-' || n, 'kill', 'x', 'x', clock_timestamp() - n * interval '9 min'"
        " from generate_series(1, 2) n", fixtures.tenant_id,
    )  # fmt: skip
    ann = fixtures.browser("ann", "approver")
    monkeypatch.setattr("ops_console.pages.halts.Remembered.get", lambda _, key, ask: ask())
    assert words(ann.get("/ops/halts")).count("Nothing got through.") == 2
    asked: list[str] = []

    def measured(pool: Any, tenant_id: uuid.UUID, halt: HaltRow) -> LastEffect:
        asked.append(halt.target)
        return last_effect(pool, tenant_id, halt)

    monkeypatch.setattr("ops_console.pages.halts.last_effect", measured)
    assert words(ann.get("/ops/halts")).count("Nothing got through.") == 2
    assert asked == ["a-1"]


def test_of_what_no_longer_changes_the_page_holds_a_bounded_number(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixtures.sql(
        "insert into sentinel.halts (tenant_id, halt_id, scope, target, level, reason, set_by, set_at)"
        " select %s, gen_random_uuid(), 'agent', 'a-' || n, 'kill', 'x', 'x', clock_timestamp() - n * interval '1 hour'"
        " from generate_series(1, 2) n", fixtures.tenant_id,
    )  # fmt: skip
    monkeypatch.setattr("ops_console.pages.halts.MOST_FINAL", 1)
    monkeypatch.setattr("ops_console.pages.halts.Remembered.get", lambda _, key, ask: ask())
    asked: list[str] = []

    def measured(pool: Any, tenant_id: uuid.UUID, halt: HaltRow) -> LastEffect:
        asked.append(halt.target)
        return last_effect(pool, tenant_id, halt)

    monkeypatch.setattr("ops_console.pages.halts.last_effect", measured)
    ann = fixtures.browser("ann", "approver")
    assert [words(ann.get("/ops/halts")).count("Nothing got through.") for _ in range(2)] == [2, 2]
    assert asked == ["a-1", "a-2"] * 2, "the second gave way to the first, and the other way round"


def test_a_halt_in_force_stays_on_the_page_behind_any_number_that_were_lifted(fixtures: Any) -> None:
    abe = fixtures.browser("abe", "admin", proved=True)
    assert abe.submit("/ops/halts", scope="agent", target="stopped-in-january", reason="x").status_code == 303
    fixtures.sql(
        "insert into sentinel.halts (tenant_id, halt_id, scope, target, level, reason, set_by, set_at, lifted_at, lifted_by)"
        " select %s, gen_random_uuid(), 'agent', 'drill-' || n, 'kill', 'x', 'x', clock_timestamp() + n * interval '1 s',"
        " clock_timestamp() + n * interval '2 s', 'x' from generate_series(1, 250) n", fixtures.tenant_id,
    )  # fmt: skip
    answer = abe.get("/ops/halts")
    told = words(answer)
    assert "No halt is in force" not in told
    assert "agent stopped-in-january" in told
    assert "drill-250" in told, "the newest of those that were lifted"
    assert told.count("drill-") == 200
    api = abe.get("/ops/api/halts?lifted=true").json["halts"]
    assert [one["target"] for one in api if "lifted_at" not in one] == ["stopped-in-january"]
    (halt_id,) = fixtures.sql("select halt_id from sentinel.halts where lifted_at is null")[0]
    assert f'"/ops/halts/{halt_id}/lift#refused"' in answer.text
    assert abe.submit(f"/ops/halts/{halt_id}/lift", reason="over").status_code == 303
    assert "No halt is in force" in words(abe.get("/ops/halts"))


def test_of_many_halts_in_force_the_newest_are_drawn_and_a_search_finds_the_others(fixtures: Any) -> None:
    """The finding: all were, each with its form: with 3,000, as breakers may set for agents of any name, that is 4 MB."""
    abe = fixtures.browser("abe", "admin")
    assert abe.submit("/ops/halts", scope="tenant", reason="stop all").status_code == 303
    fixtures.sql(
        "insert into sentinel.halts (tenant_id, halt_id, scope, target, level, reason, set_by, set_at)"
        " select %s, gen_random_uuid(), 'agent', 'run-' || n, 'kill', 'too much', 'x', clock_timestamp() + n * interval '1 s'"
        " from generate_series(1, 150) n", fixtures.tenant_id,
    )  # fmt: skip
    answer = abe.get("/ops/halts")
    told = words(answer)
    assert answer.text.count("/lift#refused") == 101 and "stop all" in told, "what stops everything is always there"
    assert "50 more are in force: only the newest 100 are shown" in told
    assert "run-51 " in told and "run-50 " not in told
    assert told.count("Nothing got through.") == 20
    found = words(abe.get("/ops/halts?q=RUN-50"))
    assert "run-50 " in found and "run-51 " not in found and "stop all" in found
    ((about,),) = fixtures.sql("select halt_id::text from sentinel.halts where target = 'run-7'")
    refused = abe.submit(f"/ops/halts/{about}/lift", reason="over")
    assert refused.status_code == 400 and f"/ops/halts/{about}/lift#refused" in refused.text, "a proof is missing"
    fixtures.sql("update sentinel.halts set lifted_at = clock_timestamp(), lifted_by = 'x' where scope = 'tenant'")
    assert "No halt in force matches." in words(abe.get("/ops/halts?q=nowhere"))
    fixtures.sql("update sentinel.halts set lifted_at = clock_timestamp(), lifted_by = 'x' where lifted_at is null")
    assert "No halt is in force." in words(abe.get("/ops/halts"))


def test_who_lifts_one_halt_of_a_search_sees_the_others_of_it(fixtures: Any) -> None:
    """The finding: after each of many halts the search was gone, and the next one had to be sought again."""
    abe = fixtures.browser("abe", "admin")
    for target, why in (("run-1", "cost & fees"), ("run-2", "cost & fees"), ("unrelated", "a drill")):
        assert abe.submit("/ops/halts", scope="agent", target=target, reason=why).status_code == 303
    found = abe.get("/ops/halts?q=cost+%26+fees")
    lifts = re.findall(r'action="(/ops/halts/[^"]+/lift[^"]*)#refused"', found.text)
    assert len(lifts) == 2 and all(one.endswith("/lift?q=cost+%26+fees") for one in lifts)
    refused = abe.submit(lifts[0], reason="over")
    assert refused.status_code == 400, "a proof is missing"
    assert re.findall(r'action="(/ops/halts/[^"]+/lift[^"]*)#refused"', refused.text) == lifts
    assert "unrelated" not in words(refused).partition("Set a halt")[0]
    done = abe.submit(lifts[0], reason="over", proof=PASSWORD)
    assert (done.status_code, done.headers["Location"]) == (303, "/ops/halts?q=cost+%26+fees")
    assert (
        re.findall(r'action="(/ops/halts/[^"]+/lift[^"]*)#refused"', abe.get(done.headers["Location"]).text)
        == lifts[1:]
    )


def test_a_global_halt_is_shown_with_where_it_is_lifted_and_no_form(fixtures: Any) -> None:
    abe = fixtures.browser("abe", "admin", proved=True)
    set_it = "select halt_id from sentinel.set_halt(%s, %s, 'global', '', 'kill', 'x', 'root', %s)"
    (halt_id,) = fixtures.sql(set_it, uuid.UUID(int=0), uuid.uuid4(), uuid.uuid4())[0]
    answer = abe.get("/ops/halts")
    assert f"/ops/halts/{halt_id}/lift" not in answer.text
    assert f"Only on the command line: sentinel halts lift {halt_id}" in words(answer)
    refused = abe.submit(f"/ops/halts/{halt_id}/lift", reason="over")
    assert refused.status_code == 403
    assert "a global halt is lifted on the machine itself" in words(refused)
    assert fixtures.sql("select count(*) from sentinel.halts where lifted_at is null") == [(1,)]


def test_letting_go_takes_an_administrator_and_a_proof(fixtures: Any) -> None:
    app = fixtures.app()
    ann, abe = fixtures.browser("ann", "approver", app), fixtures.browser("abe", "admin", app)
    assert [ann.submit("/ops/halts", scope="tenant", reason="x").status_code for _ in range(2)] == [303, 303]
    (halt_id,) = fixtures.sql("select halt_id from sentinel.halts")[0]
    path = f"/ops/halts/{halt_id}/lift"
    assert ann.submit(path, reason="fine").status_code == 403
    for proof in ({}, {"proof": "wrong"}):
        refused = abe.submit(path, reason="fine again", **proof)
        assert refused.status_code == 400 and 'value="fine again"' in refused.get_data(as_text=True)
    assert fixtures.sql("select lifted_at from sentinel.halts") == [(None,)]
    assert abe.submit(path, reason="fine again", proof=PASSWORD).status_code == 303
    again = abe.submit(path, reason="fine again")
    assert again.status_code == 404 and "no halt with this id in force" in words(again)
    assert abe.submit(f"/ops/halts/{uuid.uuid4()}/lift", reason="x").status_code == 404

"""A velocity breaker that tripped, on the pages: the overview says so, and only an administrator lets the agent go on (G53)."""

from __future__ import annotations

from typing import Any

from sentinel.authority.housekeeping import run_housekeeping
from tests.integration.console.conftest import PASSWORD
from tests.integration.console.test_page_overview import lines
from tests.integration.console.test_page_policies import words

FITS = 33
"""Of 150.00 within five minutes: the shipped policy declares 5,000.00."""


def tripped(fixtures: Any) -> Any:
    """The id of the halt that a breaker has set."""
    answers = [fixtures.guard("150.00") for _ in range(FITS + 1)]
    assert [(one.decision, one.reason_code) for one in answers[-2:]] == [
        ("ALLOW", "within_policy_limit"),
        ("DENY", "velocity_halted"),
    ]
    ((halt_id,),) = fixtures.sql("select halt_id from sentinel.halts where lifted_at is null")
    return halt_id


def test_what_stopped_by_itself_stands_on_the_overview_and_on_the_page_of_halts(fixtures: Any) -> None:
    app = fixtures.app()
    vic = fixtures.browser("vic", "viewer", app)
    assert lines(vic.get("/ops/overview/now").get_data(as_text=True))["Stopped"][0] == "0"
    tripped(fixtures)
    page = vic.get("/ops/overview/now")
    shown = lines(page.get_data(as_text=True))["Stopped"]
    assert shown[:2] == ["1", "1 high"]
    assert "Stopped by a velocity breaker" in words(page) and "nothing is paid until a person lifts the halt" in words(
        page
    )
    assert "retail-refund-agent" in words(page)
    halts = words(vic.get("/ops/halts"))
    assert (
        "velocity breaker retail-refund/agent_velocity" in halts
        and "Set automatically: review what was allowed before it." in halts
    )
    # Another tenant's person sees nothing of it.
    elsewhere = fixtures.operator("eve", "viewer", fixtures.tenant("elsewhere"))
    theirs = fixtures.at_page(elsewhere.email, app).get("/ops/overview/now").get_data(as_text=True)
    assert lines(theirs)["Stopped"][0] == "0"


def test_neither_time_nor_an_approver_lifts_it_but_an_administrator_with_a_proof(fixtures: Any) -> None:
    app, halt_id = fixtures.app(), tripped(fixtures)
    in_force = "select count(*) from sentinel.halts where lifted_at is null"
    # Long after: what was counted is forgotten, the halt is not.
    fixtures.sql("update sentinel.velocity set bucket = bucket - interval '2 days'")
    run_housekeeping(fixtures.authority.pool, 300)
    assert fixtures.sql("select count(*) from sentinel.velocity") == [(0,)]
    assert fixtures.guard("150.00").reason_code == "halted" and fixtures.sql(in_force) == [(1,)]
    path = f"/ops/halts/{halt_id}/lift"
    for name, role in (("vic", "viewer"), ("ann", "approver")):
        assert fixtures.browser(name, role, app).submit(path, reason="fine", proof=PASSWORD).status_code == 403
    abe = fixtures.browser("abe", "admin", app)
    assert abe.submit(path, reason="fine").status_code == 400, "without a proof"
    assert fixtures.sql(in_force) == [(1,)] and fixtures.guard("150.00").reason_code == "halted"
    assert abe.submit(path, reason="looked at all of them", proof=PASSWORD).status_code == 303
    assert lines(abe.get("/ops/overview/now").get_data(as_text=True))["Stopped"][0] == "0"
    assert fixtures.sql("select lifted_by from sentinel.halts") == [("abe@demo.local",)]
    assert fixtures.guard("150.00").decision == "ALLOW"
    assert fixtures.sql("select sum(operations) from sentinel.velocity") == [(1,)], "counting begins anew"

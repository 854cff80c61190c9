"""Everything that matters without a script in the browser: plain forms, plain links, plain pages."""

from __future__ import annotations

import re
import uuid

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import People, notice, sign_in
from tests.browser.place import Place
from tests.integration.console.conftest import PASSWORD

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("browser")]


def test_an_operator_signs_in_approves_and_halts_without_scripts(people: People, place: Place) -> None:
    approval, agent = place.fixtures.approval("270.00"), f"agent-{uuid.uuid4().hex[:8]}"
    page = people.visitor(java_script_enabled=False)
    sign_in(page, place.operator(), path="/ops")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.get_by_role("link", name="Decisions by outcome, as a table").click()
    expect(page.locator("table")).to_contain_text("Allowed")
    page.goto(f"/ops/approvals/{approval}")
    page.get_by_role("radio", name=re.compile("^Approve")).check()
    page.get_by_label("Reason").fill("looked at it")
    page.get_by_label("Your password").fill(PASSWORD)
    page.get_by_role("button", name="Decide").click()
    expect(notice(page)).to_contain_text("Approved.")
    assert place.fixtures.approval_status(approval) == "approved"
    page.goto("/ops/halts")
    page.get_by_label("Scope").select_option("agent")
    page.get_by_label("Target").fill(agent)
    page.get_by_label("Reason").fill("it pays too much")
    page.get_by_role("button", name="Halt").click()
    expect(page.get_by_role("row", name=agent)).to_be_visible()
    page.reload()
    assert place.fixtures.sql("select count(*) from sentinel.halts where target = %s", agent) == [(1,)]


def test_the_board_and_a_proof_are_readable_without_scripts(people: People, place: Place) -> None:
    page = people.visitor(java_script_enabled=False)
    page.goto("/live")
    expect(page.locator("#events tr").first).to_be_visible()
    expect(page.locator("#state")).to_contain_text("Reloads every")
    expect(page.get_by_role("region", name="How decisions come out")).to_be_visible()
    assert page.locator("noscript").count() == 1
    page.locator("#events a").first.click()
    expect(page.get_by_role("heading", name="Proof of a decision")).to_be_visible()
    expect(page.get_by_text("sha256sum").first).to_be_visible()
    expect(page.get_by_role("button", name="Verify in this browser")).to_be_hidden()
    expect(page.locator("noscript").first).to_be_attached()

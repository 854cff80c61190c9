"""Halts, keys and doubts as people handle them: done once however often one clicks, shown once, and told when it is too late."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import PHONE, People, notice, refusal, sign_in
from tests.browser.place import Place
from tests.browser.watch import Watch
from tests.integration.console.conftest import PASSWORD
from tests.integration.console.test_page_in_doubt import doubted

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("browser")]


def fill_halt(page: Any, agent: str) -> None:
    """The form for stopping one agent."""
    page.get_by_label("Scope").select_option("agent")
    page.get_by_label("Target").fill(agent)
    page.get_by_label("Reason").last.fill("it pays too much")


def test_a_double_click_sets_one_halt_and_lifting_it_takes_a_proof(people: People, place: Place, watch: Watch) -> None:
    watch.expect("status 400")
    agent = f"agent-{uuid.uuid4().hex[:8]}"
    page = people.operator("admin", path="/ops/halts")
    fill_halt(page, agent)
    page.get_by_role("button", name="Halt").dblclick()
    row = page.get_by_role("region", name="In force").get_by_role("row", name=agent)
    expect(row).to_be_visible()
    assert place.fixtures.sql("select count(*) from sentinel.halts where target = %s", agent) == [(1,)]

    row.get_by_text("Lift", exact=False).first.click()
    row.get_by_label("Reason for lifting").fill("it was repaired")
    row.get_by_label("Your password").fill("wrong wrong wrong")
    row.get_by_role("button", name="Lift").click()
    expect(refusal(page).first).to_be_visible()
    assert place.fixtures.sql("select count(*) from sentinel.halts where target = %s and lifted_at is null", agent) == [
        (1,)
    ]
    row.get_by_label("Your password").fill(PASSWORD)
    row.get_by_role("button", name="Lift").click()
    expect(page.get_by_role("region", name="Lifted").get_by_role("row", name=agent)).to_be_visible()
    expect(notice(page)).not_to_be_empty()
    assert place.fixtures.sql("select count(*) from sentinel.halts where target = %s and lifted_at is null", agent) == [
        (0,)
    ]


SHOWS_FOCUS = """() => {
  const on = document.activeElement, style = getComputedStyle(on);
  return on === document.body ? null : [on.innerText || on.name || on.tagName, style.outlineStyle !== "none" || style.boxShadow !== "none"];
}"""


def test_what_has_the_keyboard_shows_it_and_what_is_called_a_button_takes_the_space_bar(
    people: People, place: Place
) -> None:
    page = people.operator(path=place.paths["order"])
    decide = page.get_by_role("button", name="Decide")
    stops: list[tuple[str, bool]] = []
    while not decide.evaluate("it => it === document.activeElement"):
        assert len(stops) < 40, stops
        page.keyboard.press("Tab")
        stops.append(tuple(page.evaluate(SHOWS_FOCUS)))
    assert "Sign out" in dict(stops) and [name for name, is_seen in stops if not is_seen] == []
    page.keyboard.press("Space")
    expect(page.get_by_role("heading", name="Your decision")).to_be_visible()


def test_an_act_whose_connection_breaks_says_so_and_may_be_done_again(
    people: People, place: Place, watch: Watch
) -> None:
    watch.expect(
        "request failed.*/ops/halts", "ERR_CONNECTION_REFUSED|ERR_INTERNET_DISCONNECTED", "status", "console: "
    )
    agent = f"agent-{uuid.uuid4().hex[:8]}"
    page = people.operator("approver", path="/ops/halts", viewport=PHONE)
    fill_halt(page, agent)
    page.context.set_offline(True)
    page.get_by_role("button", name="Halt").click()
    expect(page.get_by_text("The connection was lost.")).to_be_in_viewport()
    page.context.set_offline(False)
    page.get_by_role("button", name="Halt").click()
    expect(page.get_by_role("region", name="In force").get_by_role("row", name=agent)).to_be_visible()
    expect(page.get_by_text("The connection was lost.")).to_be_hidden()
    assert place.fixtures.sql("select count(*) from sentinel.halts where target = %s", agent) == [(1,)]


def test_a_key_is_shown_once_however_often_its_form_is_sent(people: People, place: Place, watch: Watch) -> None:
    watch.expect("status 409")
    label = f"key {uuid.uuid4().hex[:8]}"
    page = people.operator("admin", path="/ops/keys")
    place.leave_one_administrator()
    page.get_by_role("region", name="Create a key").get_by_label("Label").fill(label)
    page.get_by_role("region", name="Create a key").get_by_label("Your password").fill(PASSWORD)
    page.get_by_role("button", name="Create the key").dblclick()
    shown = page.locator("#secret")
    expect(shown).to_be_visible()
    key = shown.inner_text()
    assert key.startswith("snt_live_")
    assert place.fixtures.sql("select count(*) from sentinel.agent_keys where label = %s", label) == [(1,)]
    for leave in (lambda: page.goto("/ops/keys"), page.go_back, page.reload):
        leave()
        assert key not in page.content()
    page.goto("/ops/keys")
    row = page.get_by_role("row", name=label)
    row.get_by_text("Rotate or revoke").click()
    row.get_by_role("button", name="Revoke at once").click()
    expect(page.get_by_role("region", name="Revoked and expired").get_by_role("row", name=label)).to_be_visible()


def test_of_two_administrators_one_asks_for_a_key_and_the_other_approves_it(
    people: People, place: Place, watch: Watch
) -> None:
    place.operator("admin")
    page, label = people.operator("admin", path="/ops/keys"), f"key {uuid.uuid4().hex[:8]}"
    page.get_by_role("region", name="Create a key").get_by_label("Label").fill(label)
    page.get_by_role("region", name="Create a key").get_by_label("Your password").fill(PASSWORD)
    page.get_by_role("button", name="Create the key").click()
    expect(notice(page)).to_contain_text("waits for a second administrator")
    asked = page.url
    assert place.fixtures.sql("select count(*) from sentinel.agent_keys where label = %s", label) == [(0,)]
    second = people.operator("admin", path="/ops/approvals")
    second.goto(asked)
    expect(second.get_by_role("heading", level=1)).to_contain_text("New key for any agent")
    second.get_by_text("The change is made exactly as shown here").click()
    second.get_by_label("Reason").fill("we spoke about it")
    second.get_by_label("Your password").fill(PASSWORD)
    second.get_by_role("button", name="Decide").click()
    expect(notice(second)).to_contain_text("It is done when the requester collects the password or key")
    expect(second.get_by_role("button", name="Create the key and show it")).to_have_count(0)
    page.goto(asked)
    page.get_by_role("button", name="Create the key and show it").click()
    key = page.locator("#secret").inner_text()
    assert key.startswith("snt_live_")
    expect(page.get_by_role("button", name="Copy")).to_be_visible()
    assert place.fixtures.sql("select count(*) from sentinel.agent_keys where label = %s", label) == [(1,)]
    page.goto(asked)
    expect(page.get_by_text("it was done")).to_be_visible()
    assert key not in page.content()


def test_a_question_that_a_form_led_to_goes_to_sign_in_as_a_whole_once_the_session_is_over(
    people: People, place: Place
) -> None:
    place.operator("admin")
    page = people.operator("admin", path="/ops/keys")
    page.get_by_role("region", name="Create a key").get_by_label("Label").fill(f"key {uuid.uuid4().hex[:8]}")
    page.get_by_role("region", name="Create a key").get_by_label("Your password").fill(PASSWORD)
    page.get_by_role("button", name="Create the key").click()
    expect(notice(page)).to_contain_text("waits for a second administrator")
    page.context.clear_cookies()
    expect(page.get_by_label("E-mail")).to_be_visible(timeout=60_000)
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
    expect(page.get_by_role("heading", level=1)).not_to_contain_text("New key")


def test_a_form_filled_before_signing_in_anew_elsewhere_is_kept_where_one_acts_and_sent_once_more(
    people: People, place: Place, watch: Watch
) -> None:
    watch.expect("status 403")
    who, whom, label = place.operator("admin"), place.operator("viewer"), f"key {uuid.uuid4().hex[:8]}"
    place.leave_one_administrator()
    page = people.visitor(viewport=PHONE)
    sign_in(page, who, path="/ops/keys")
    page.get_by_role("region", name="Create a key").get_by_label("Label").fill(label)
    page.get_by_label("Expires after days").fill("77")
    sign_in_anew(page, who)
    page.get_by_role("region", name="Create a key").get_by_label("Your password").fill(PASSWORD)
    page.get_by_role("button", name="Create the key").click()
    expect(refusal(page)).to_contain_text("Your session was renewed in another tab. Nothing was changed")
    expect(refusal(page)).to_be_in_viewport()
    expect(page.get_by_label("Expires after days")).to_have_value("77")
    expect(page.get_by_role("region", name="Create a key").get_by_label("Your password")).to_have_value("")
    page.get_by_role("region", name="Create a key").get_by_label("Your password").fill(PASSWORD)
    page.get_by_role("button", name="Create the key").click()
    expect(page.locator("#secret")).to_be_visible()
    assert place.fixtures.sql("select count(*) from sentinel.agent_keys where label = %s", label) == [(1,)]

    page.goto(f"/ops/operators/{whom.operator_id}")
    page.get_by_role("combobox", name="Role").select_option("approver")
    sign_in_anew(page, who)
    page.get_by_role("button", name="Change the role").click()
    expect(page.get_by_role("combobox", name="Role")).to_have_value("approver")
    page.get_by_label("Your password").fill(PASSWORD)
    page.get_by_role("button", name="Change the role").click()
    expect(notice(page)).to_contain_text("is approver.")


def sign_in_anew(page: Any, who: Any) -> None:
    """Sign out and in again in another tab of the same browser."""
    other = page.context.new_page()
    other.goto("/ops/account")
    other.get_by_role("button", name="Sign out").click()
    expect(other.get_by_label("E-mail")).to_be_visible()
    sign_in(other, who)
    expect(other.get_by_role("heading", name="Your account")).to_be_visible()
    other.close()


def test_a_list_shows_what_comes_but_not_under_a_hand_that_types_or_marks(people: People, place: Place) -> None:
    page, asked = people.operator("viewer", path="/ops/ledger"), []
    page.on("request", lambda request: asked.append(request.url) if "/ops/ledger-now" in request.url else None)

    def entered() -> str:
        name = f"lge_{uuid.uuid4().hex[:12]}"
        place.fixtures.sql(
            "insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, next_attempt_at)"
            " values (%s, %s, %s, 100, 'USD', now() + interval '1 day')", place.fixtures.tenant_id, name, name)  # fmt: skip
        return name

    expect(page.get_by_role("row", name=entered())).to_be_visible(timeout=60_000)
    page.get_by_label("Search").fill("abc")
    before, late = len(asked), entered()
    page.wait_for_timeout(6_000)
    # In one step, between which and the next nothing is fetched.
    page.get_by_label("Search").evaluate(
        "(field) => { field.value = ''; getSelection().selectAllChildren(document.querySelector('h1')); }"
    )
    page.wait_for_timeout(6_000)
    assert len(asked) == before
    expect(page.get_by_role("row", name=late)).to_have_count(0)
    page.evaluate("getSelection().removeAllRanges()")
    expect(page.get_by_role("row", name=late)).to_be_visible(timeout=60_000)


def test_a_doubt_is_ended_once_and_a_stale_tab_is_told_what_was_said(
    people: People, place: Place, watch: Watch
) -> None:
    watch.expect("status 409")
    operation_id = doubted(place.fixtures, "9.00", 1)
    page, stale = (people.operator("admin", path=f"/ops/in-doubt/{operation_id}") for _ in range(2))
    for one, choice in ((page, "Executed."), (stale, "Not executed.")):
        one.get_by_role("radio", name=choice).first.check()
        one.get_by_label("Evidence").fill("the bank's statement of today")
        one.get_by_label("Your password").fill(PASSWORD)
        one.get_by_role("button", name="Record the resolution").click()
        expect(one.get_by_role("radio")).to_have_count(0)
    expect(stale.get_by_text("This was already resolved as executed")).to_be_visible()
    assert place.fixtures.sql("select status, outcome from sentinel.operation_states where operation_id = %s", operation_id) == [
        ("completed", "success")]  # fmt: skip


def test_the_overviews_figures_and_drawings_move_while_somebody_looks(people: People, place: Place) -> None:
    page = people.operator("viewer", path="/ops")
    halts, doubt = page.get_by_role("listitem").filter(has_text="Halts in force"), page.locator("#gauge-2")
    line = doubt.locator("path.line")
    before = (int(halts.locator("strong").inner_text()), line.get_attribute("d"))
    doubted(place.fixtures, "33.00", 1, "no_report")
    other = people.operator("approver", path="/ops/halts")
    fill_halt(other, f"agent-{uuid.uuid4().hex[:8]}")
    other.get_by_role("button", name="Halt").click()
    expect(notice(other)).not_to_be_empty()

    expect(halts.locator("strong")).to_have_text(str(before[0] + 1), timeout=60_000)
    expect(line).not_to_have_attribute("d", before[1])
    now = doubt.locator("strong").inner_text()
    told = re.compile(f"^In doubt over the last [0-9a-z ]+: at most [0-9]+; now {now}$")
    expect(doubt.get_by_role("img")).to_have_attribute("aria-label", told)

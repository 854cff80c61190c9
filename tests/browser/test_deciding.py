"""Approvals as people decide them: one alone, two together, the same one twice, too late, without a mouse."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import PHONE, People, notice, refusal, sign_in
from tests.browser.place import Place
from tests.browser.watch import Watch
from tests.integration.console.conftest import PASSWORD

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("browser")]


def decide(page: Any, choice: str, *, reason: str = "looked at it", proof: str = "") -> None:
    """Fill the card's form and send it."""
    page.get_by_role("radio", name=re.compile(f"^{choice}")).check()
    page.get_by_label("Reason").fill(reason)
    if proof:
        page.get_by_label("Your password").fill(proof)
    page.get_by_role("button", name="Decide").click()


def votes(place: Place, approval_id: Any) -> list[str]:
    return [verdict for (verdict,) in place.fixtures.sql(
        "select verdict from sentinel.approval_votes where approval_id = %s", approval_id)]  # fmt: skip


def test_approving_needs_a_proof_and_then_counts_once(people: People, place: Place, watch: Watch) -> None:
    watch.expect("status 400")
    approval = place.fixtures.approval("210.00")
    page = people.operator(path=f"/ops/approvals/{approval}")
    digest = page.locator("code.digest").inner_text()
    assert digest == place.fixtures.sql(
        "select a.digest from sentinel.approvals a where approval_id = %s", approval)[0][0]  # fmt: skip
    decide(page, "Approve")
    expect(page.get_by_role("alert").first).to_be_visible()
    expect(page.get_by_label("Reason")).to_have_value("looked at it")
    assert place.fixtures.approval_status(approval) == "pending"
    expect(page.locator("small.fault")).to_contain_text("is needed")
    decide(page, "Approve", proof="wrong wrong wrong")
    expect(page.locator("small.fault")).to_contain_text("is wrong")
    expect(refusal(page)).to_be_visible()
    assert place.fixtures.approval_status(approval) == "pending"
    decide(page, "Approve", proof=PASSWORD)
    expect(notice(page)).to_contain_text("Approved.")
    expect(page.get_by_role("button", name="Decide")).to_have_count(0)
    assert (place.fixtures.approval_status(approval), votes(place, approval)) == ("approved", ["approve"])


def test_two_people_approve_what_takes_two_and_the_first_sees_the_second(people: People, place: Place) -> None:
    approval = place.fixtures.approval("650.00")
    first, second = (people.operator(path=f"/ops/approvals/{approval}") for _ in range(2))
    decide(first, "Approve", proof=PASSWORD)
    expect(first.get_by_text("1 of 2 people have approved")).to_be_visible()
    assert place.fixtures.approval_status(approval) == "pending"
    # Who looked on is told before the next vote is given, and sees who spoke.
    expect(second.get_by_text("This changed while you were looking at it.")).to_be_visible()
    second.get_by_role("button", name="Show the current state").click()
    expect(second.get_by_text("1 of 2 people have approved")).to_be_visible()
    decide(second, "Approve", proof=PASSWORD)
    expect(notice(second)).to_contain_text("Approved.")
    assert (place.fixtures.approval_status(approval), votes(place, approval)) == ("approved", ["approve", "approve"])
    expect(first.get_by_text("It was approved by")).to_be_visible()


def test_rejecting_takes_a_reason_and_no_proof(people: People, place: Place) -> None:
    approval = place.fixtures.approval("220.00")
    page = people.operator(path=f"/ops/approvals/{approval}")
    page.get_by_role("radio", name=re.compile("^Reject")).check()
    page.get_by_role("button", name="Decide").click()
    assert place.fixtures.approval_status(approval) == "pending", "the browser asks for the reason first"
    decide(page, "Reject", reason="not this one")
    expect(notice(page)).to_contain_text("Rejected.")
    assert place.fixtures.approval_status(approval) == "rejected"


def test_a_card_that_was_decided_meanwhile_closes_its_form_and_changes_nothing(
    people: People, place: Place, watch: Watch
) -> None:
    watch.expect("status 409")
    approval = place.fixtures.approval("230.00")
    page = people.operator(path=f"/ops/approvals/{approval}")
    # A tab whose refreshing is cut off, as on a train, believes what it was shown first.
    stale = page.context.new_page()
    stale.route("**/state*", lambda route: route.fulfill(status=204))
    stale.goto(f"/ops/approvals/{approval}")
    decide(people.operator(path=f"/ops/approvals/{approval}"), "Reject", reason="I was quicker")
    expect(page.get_by_text("This changed while you were looking at it.")).to_be_visible()
    expect(page.get_by_text("It was rejected by")).to_be_visible()
    expect(page.get_by_role("button", name="Decide")).to_be_disabled()
    decide(stale, "Approve", proof=PASSWORD)
    expect(refusal(stale).first).to_be_visible()
    expect(stale.get_by_role("button", name="Decide")).to_have_count(0)
    assert (place.fixtures.approval_status(approval), votes(place, approval)) == ("rejected", ["reject"])


def test_on_a_phone_a_card_is_decided_before_its_limits_and_on_a_desktop_beside_them(
    people: People, place: Place
) -> None:
    address = f"/ops/approvals/{place.fixtures.approval('215.00')}"
    names = ("Why approval is needed", "Your decision", "Limits it would use")
    page = people.operator(path=address, viewport=PHONE)
    told, word, limits = (page.get_by_role("heading", name=name).bounding_box() for name in names)
    assert told["y"] < word["y"] < limits["y"]
    page = people.operator(path=address)
    told, word, limits = (page.get_by_role("heading", name=name).bounding_box() for name in names)
    assert told["x"] == limits["x"] < word["x"] and word["y"] < limits["y"]


def test_a_refusal_on_a_phone_comes_into_view_and_a_session_that_ends_takes_no_words(
    people: People, place: Place, watch: Watch
) -> None:
    watch.expect("status 40[03]")
    who, approval = place.operator(), place.fixtures.approval("235.00")
    page = people.visitor(viewport=PHONE)
    sign_in(page, who, path=f"/ops/approvals/{approval}")
    decide(page, "Approve", reason="words that took a while")
    expect(refusal(page)).to_be_in_viewport()
    expect(refusal(page)).to_be_focused()
    other = page.context.new_page()
    other.goto("/ops/account")
    other.get_by_role("button", name="Sign out").click()
    expect(other.get_by_label("E-mail")).to_be_visible()
    page.get_by_label("Reason").fill("words that took longer")
    expect(page.get_by_text("You were signed out")).to_be_in_viewport()
    page.get_by_role("button", name="Decide").click()
    expect(page.get_by_text("You were signed out")).to_be_visible()
    sign_in(other, who)
    expect(other.get_by_role("heading", name="Your account")).to_be_visible()
    decide(page, "Reject", reason=page.get_by_label("Reason").input_value())
    expect(refusal(page)).to_contain_text("Your session was renewed in another tab. Nothing was changed")
    expect(page.get_by_label("Reason")).to_have_value("words that took longer")
    assert place.fixtures.approval_status(approval) == "pending"
    page.get_by_role("button", name="Decide").click()
    expect(notice(page)).to_contain_text("Rejected.")


def test_a_double_click_on_approving_is_one_vote(people: People, place: Place) -> None:
    approval = place.fixtures.approval("660.00")
    page = people.operator(path=f"/ops/approvals/{approval}")
    page.get_by_role("radio", name=re.compile("^Approve")).check()
    page.get_by_label("Reason").fill("looked at it")
    page.get_by_label("Your password").fill(PASSWORD)
    page.get_by_role("button", name="Decide").dblclick()
    expect(page.get_by_text("1 of 2 people have approved")).to_be_visible()
    assert votes(place, approval) == ["approve"]


def test_several_are_decided_together_by_an_explicit_list(people: People, place: Place) -> None:
    chosen, left = [place.fixtures.approval("240.00") for _ in range(2)], place.fixtures.approval("250.00")
    page = people.operator(path="/ops/approvals")
    for one in (*chosen, left):
        page.locator(f"input[value='{one}']").check()
    page.get_by_role("button", name="Decide the selected together").click()
    expect(page.get_by_role("heading", name="Decide these 3")).to_be_visible()
    for one in chosen:
        page.locator("tr", has=page.locator(f"input[value='{one}']")).get_by_role("combobox").select_option("reject")
    page.get_by_label("Reason, for all of them").fill("a test of many")
    page.get_by_role("button", name="Decide these").click()
    expect(page.get_by_text("2 of 2 decisions were recorded; 1 left out.")).to_be_visible()
    assert [place.fixtures.approval_status(one) for one in (*chosen, left)] == ["rejected", "rejected", "pending"]


def test_everything_from_signing_in_to_approving_works_by_keyboard(people: People, place: Place) -> None:
    who, approval = place.operator(), place.fixtures.approval("260.00")
    page = people.visitor()
    page.goto(f"/ops/approvals/{approval}")

    def tab_to(target: Any, most: int = 60) -> None:
        """Press Tab until it has the focus; it must be seen to have it."""
        for _ in range(most):
            if target.evaluate("(one) => one === document.activeElement"):
                break
            page.keyboard.press("Tab")
        else:
            raise AssertionError(f"not reached by Tab: {target}")
        assert target.evaluate("(one) => one.matches(':focus-visible')")

    tab_to(page.get_by_label("E-mail"))
    page.keyboard.type(who.email)
    tab_to(page.get_by_label("Password"))
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Request")).to_be_visible()
    skip = page.get_by_role("link", name="Skip to the content")
    tab_to(skip)
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    tab_to(page.get_by_role("radio", name=re.compile("^Approve")))
    page.keyboard.press("Space")
    tab_to(page.get_by_label("Reason"))
    page.keyboard.type("by keyboard")
    tab_to(page.get_by_label("Your password"))
    page.keyboard.type(PASSWORD)
    tab_to(page.get_by_role("button", name="Decide"))
    page.keyboard.press("Enter")
    expect(notice(page)).to_contain_text("Approved.")
    assert page.evaluate("document.activeElement.id") == "main", "who reads the screen begins where the page speaks"
    assert place.fixtures.approval_status(approval) == "approved"

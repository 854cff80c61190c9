"""Signing in as a person does: with a password, with a code, wrongly, and after the session ended elsewhere."""

from __future__ import annotations

from typing import Any

import pyotp
import pytest
from playwright.sync_api import expect

from tests.browser.conftest import People, notice, refusal, sign_in
from tests.browser.place import Place
from tests.browser.watch import Watch
from tests.integration.console.conftest import PASSWORD

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("browser")]


def test_a_person_signs_in_is_brought_to_the_page_asked_for_and_signs_out(people: People, place: Place) -> None:
    page = people.visitor()
    sign_in(page, place.operator("viewer"), path="/ops/ledger?status=NEW")
    expect(page.get_by_role("heading", name="Ledger", exact=True)).to_be_visible()
    assert page.url.endswith("/ops/ledger?status=NEW")
    expect(page.get_by_role("link", name="Ledger", exact=True)).to_have_attribute("aria-current", "page")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.go_back()
    page.reload()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_whoever_cannot_sign_in_is_told_one_and_the_same(
    people: People, place: Place, visitor: Any, watch: Watch
) -> None:
    watch.expect("status 401")
    who = place.operator()
    told = set()
    for email, password in ((who.email, "wrong wrong wrong"), ("nobody@demo.local", PASSWORD)):
        sign_in(visitor, email, password=password)
        expect(refusal(visitor)).to_be_visible()
        told.add(refusal(visitor).inner_text())
        expect(visitor.get_by_label("E-mail")).to_have_value(email)
        expect(visitor.get_by_label("Password")).to_have_value("")
    assert len(told) == 1


def test_a_second_factor_is_set_up_and_then_asked_for(people: People, place: Place, watch: Watch) -> None:
    watch.expect("status 401")
    who = place.operator("approver")
    page = people.visitor()
    sign_in(page, who)
    factor = page.get_by_role("region", name="Second factor")
    factor.get_by_label("Your password").fill(PASSWORD)
    factor.get_by_role("button", name="Set up a second factor").click()
    secret = page.locator("code.secret").inner_text().replace(" ", "")
    expect(page.locator(".qr svg")).to_be_visible()
    page.get_by_label("Code").fill(pyotp.TOTP(secret).now())
    page.get_by_role("button", name="Confirm").click()
    expect(notice(page)).to_contain_text("From now on, signing in asks for a code.")

    elsewhere = people.visitor()
    sign_in(elsewhere, who)
    expect(refusal(elsewhere)).to_be_visible()
    # The code that confirmed it is used up; the next one is not waited for here.
    place.fixtures.sql("update sentinel.second_factors set last_step = 0")
    sign_in(elsewhere, who, code=pyotp.TOTP(secret).now())
    expect(elsewhere.get_by_role("heading", name="Your account")).to_be_visible()


def test_an_act_in_a_tab_whose_session_ended_elsewhere_does_nothing_and_keeps_its_words(
    people: People, place: Place, watch: Watch
) -> None:
    watch.expect("status 403")
    page = people.operator("approver", path="/ops/halts")
    other = page.context.new_page()
    other.goto("/ops/account")
    other.get_by_role("button", name="Sign out").click()
    expect(other.get_by_role("heading", name="Sign in")).to_be_visible()
    page.get_by_label("Scope").select_option("agent")
    page.get_by_label("Target").fill("after-the-end")
    page.get_by_label("Reason").fill("nobody is signed in any more")
    page.get_by_role("button", name="Halt").click()
    expect(page.get_by_text("You were signed out, and this action was not carried out.")).to_be_in_viewport()
    assert place.fixtures.sql("select scope from sentinel.halts where target = 'after-the-end'") == []
    # What was written waits; the link leads to signing in, in a tab of its own.
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Sign in again in another tab").click()
    sign_in(opened.value, place.operator(), path="/ops/halts")
    expect(opened.value.get_by_role("heading", name="Halts")).to_be_visible()
    page.get_by_role("button", name="Halt").click()
    expect(refusal(page)).to_contain_text("Nothing was changed")
    page.get_by_role("button", name="Halt").click()
    expect(notice(page)).to_contain_text("The halt is in force.")
    assert place.fixtures.sql("select scope, target from sentinel.halts where target like 'after%'") == [
        ("agent", "after-the-end")
    ]

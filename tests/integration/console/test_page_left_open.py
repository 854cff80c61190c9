"""A tab that was left open over another sign-in: nothing is done, the words stay, and the next word counts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ops_console.pages.refusal_words import in_words
from sentinel.core.errors import Conflict, InvalidInput
from tests.integration.console.conftest import PASSWORD, Browser
from tests.integration.console.test_page_in_doubt import doubted

OURS = {"Accept": "text/html", "Origin": "http://localhost"}
WORDS = "five minutes of <b>thinking</b>"


def again(browser: Browser, path: str, **fields: Any) -> Any:
    """The form of a tab whose session was renewed elsewhere."""
    return browser.client.post(path, data={"csrf": "x" * 43, **fields}, headers=OURS)


def token_of(answer: Any) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', answer.text)
    assert found is not None
    return found[1]


def test_a_form_of_an_earlier_session_does_nothing_and_comes_back_with_its_words(world: Any) -> None:
    approval, operation = world.approval("220.00"), doubted(world, "9.00", 1)
    (digest,) = world.sql("select digest from sentinel.approvals")[0]
    browser = world.browser("ann", "admin", proved=True)
    word = {"digest": digest, "verdict": "reject", "reason": WORDS}
    forms: tuple[tuple[str, dict[str, Any]], ...] = (
        (f"/ops/approvals/{approval}", word),
        ("/ops/approvals/batch", {**word, "id": approval}),
        (f"/ops/in-doubt/{operation}/resolve", {"executed": "yes", "evidence": WORDS}),
        ("/ops/halts", {"scope": "tenant", "level": "kill", "reason": WORDS}),
        ("/ops/policies/switches/small_refund.refund_fee/on", {"canary_percent": "5", "reason": WORDS}),
    )
    for path, fields in forms:
        answer = again(browser, path, **fields)
        assert answer.status_code == 403, path
        assert "Your session was renewed in another tab. Nothing was done" in answer.text, path
        assert WORDS.replace("<", "&lt;").replace(">", "&gt;") in answer.text, path
        assert token_of(answer) == browser.csrf, path
    assert world.approval_status(approval) == "pending"
    assert world.sql("select count(*) from sentinel.halts") == [(0,)]
    assert world.sql("select status from sentinel.operation_states where operation_id = %s", operation) == [("in_doubt",)]  # fmt: skip
    assert browser.submit(*forms[0][:1], **word).status_code == 303
    assert world.approval_status(approval) == "rejected"
    # What shows no form again says so and leads back to the page.
    answer = again(browser, "/ops/account/tokens", label="nightly")
    assert answer.status_code == 403 and 'href="/ops/account">back to the page' in answer.text
    gone = again(browser, "/ops/approvals/00000000-0000-0000-0000-000000000000", **word)
    assert gone.status_code == 404


def test_only_a_form_that_the_browser_says_is_ours_comes_back(world: Any) -> None:
    approval = world.approval("220.00")
    browser = world.browser("ann", "approver")
    path, fields = f"/ops/approvals/{approval}", {"reason": WORDS, "verdict": "approve"}
    for headers in ({"Accept": "text/html"}, {**OURS, "Origin": "https://elsewhere.example"},
                    {**OURS, "Sec-Fetch-Site": "cross-site"}):  # fmt: skip
        answer = browser.client.post(path, data={"csrf": "x" * 43, **fields}, headers=headers)
        assert answer.status_code == 403 and "thinking" not in answer.text, headers
    assert "thinking" not in browser.client.post(path, data=fields, headers=OURS).text, "without any token"
    strict = world.at_page(browser.email, world.app(require_second_factor=True, second_factor_secrets=("s" * 40,)))
    assert "thinking" not in again(strict, path, **fields).text, "nothing is shown before the second factor"


def test_a_viewer_is_shown_what_a_viewer_may_see(world: Any) -> None:
    approval = world.approval("220.00")
    viewer = world.browser("vic", "viewer")
    answer = again(viewer, "/ops/approvals/batch", id=approval, digest="d", verdict="reject", reason=WORDS)
    assert answer.status_code == 403 and "thinking" not in answer.text
    menu = viewer.get("/ops/halts").text.partition("</nav>")[0]
    assert "/ops/keys" not in menu and "/ops/operators" not in menu and "/ops/events" in menu
    assert [viewer.get(path).status_code for path in ("/ops/keys", "/ops/operators")] == [403, 403]
    assert 'href="/ops/keys"' in world.browser("abe", "admin").get("/ops/halts").text.partition("</nav>")[0]


def test_too_many_wrong_proofs_and_passwords_say_when_to_come_back(world: Any) -> None:
    app, approval = world.app(), world.approval("220.00")
    (digest,) = world.sql("select digest from sentinel.approvals")[0]
    browser = world.browser("ann", "approver", app)
    word = {"digest": digest, "verdict": "approve", "reason": "x", "proof": "wrong wrong wrong"}
    answers = [browser.submit(f"/ops/approvals/{approval}", **word) for _ in range(11)]
    assert {one.status_code for one in answers[:10]} == {400}
    assert answers[-1].status_code == 429 and int(answers[-1].headers["Retry-After"]) > 0
    client = app.test_client()
    for _ in range(40):
        answer = client.post("/ops/sign-in", data={"email": "nobody@demo.local", "password": PASSWORD})
        if answer.status_code == 429:
            break
    assert answer.status_code == 429 and int(answer.headers["Retry-After"]) > 0


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (InvalidInput.of("proof", "is needed for this"), "Your password or code is needed for this"),
        (InvalidInput.of("digest", "Missing data for required field"), "What the page showed is missing"),
        (InvalidInput.of("given.odd_name", "choose one"), "“odd name”: choose one"),
        (Conflict("this approval was decided before"), "this approval was decided before"),
    ],
)
def test_a_page_says_a_refusal_without_the_wires_names(error: Any, sentence: str) -> None:
    assert in_words(error)[0] == sentence


def test_without_scripts_a_form_whose_session_ended_leads_to_signing_in_and_says_it_was_not_done(world: Any) -> None:
    browser = world.browser("ann", "approver")
    assert browser.submit("/ops/sign-out").status_code == 303
    sent = browser.submit("/ops/halts", scope="tenant", reason=WORDS)
    assert sent.status_code == 303 and "undone=yes" in sent.headers["Location"]
    page = browser.get(sent.headers["Location"]).text
    assert "what you just sent was not done" in page and 'value="/ops/halts"' in page
    assert world.sql("select scope from sentinel.halts") == []

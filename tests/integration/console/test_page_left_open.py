"""A tab that was left open over another sign-in: nothing is done, the words stay, and the next vote counts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ops_console import identity
from ops_console.accounts.sessions import store_message
from ops_console.pages import ledger, operators, shell
from ops_console.pages.shell import in_words
from sentinel.authority.policies import declare_policies
from sentinel.core.errors import Conflict, InvalidInput
from tests.integration.console.conftest import PASSWORD, Browser
from tests.integration.console.left_open_forms import FORMS, HIDDEN, NOTHING_TO_SHOW, WORDS, filled, things
from tests.integration.console.page_roles import PAGES
from tests.integration.console.second_factors import with_secrets

OURS = {"Accept": "text/html", "Origin": "http://localhost"}
TABLES = (
    "events", "operators", "operator_tokens", "agent_keys", "halts", "switches", "approvals", "operation_states",
)  # fmt: skip
SENTENCE = "Your session was renewed in another tab. Nothing was changed"


def post_old_form(browser: Browser, path: str, **fields: Any) -> Any:
    """The form of a tab whose session was renewed elsewhere."""
    return browser.client.post(path, data={"csrf": "x" * 43, **fields}, headers=OURS)


def token_of(answer: Any) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', answer.text)
    assert found is not None
    return found[1]


def faults(fixtures: Any, browser: Browser, about: dict[str, str], *, proved: bool = True) -> list[str]:
    """What is wrong with each form that a tab of an earlier session sends."""
    found, before = [], state(fixtures)
    for route, form in FORMS.items():
        typed = {name: filled(text, about) for name, text in form.typed.items()}
        answer = post_old_form(browser, filled(route, about), proof=HIDDEN, **typed)
        title = form.title if proved else form.unproved or form.title
        wanted = (f"<title>{title}", SENTENCE, *form.back)
        found += [f"{route}: no {piece}" for piece in wanted if piece not in answer.text]
        found += [f"{route}: {answer.status_code}"] if answer.status_code != 403 else []
        found += [f"{route}: a secret came back"] if HIDDEN in answer.text else []
        found += [f"{route}: another token"] if token_of(answer) != browser.csrf else []
        found += [f"{route}: something was done"] if state(fixtures) != before else []
    return found


def state(fixtures: Any) -> list[Any]:
    """What the forms could have changed, the pages' own session aside."""
    rows = [
        fixtures.sql(f"select md5(string_agg(t::text, ' ' order by t::text)) from sentinel.{name} t") for name in TABLES
    ]
    return [*rows, fixtures.sql("select count(*) from sentinel.operator_sessions where revoked_at is null")]


def test_every_form_of_an_earlier_session_does_nothing_and_comes_back_on_its_page_with_its_words(fixtures: Any) -> None:
    posts = {route for method, route in PAGES if method == "POST"}
    assert posts == FORMS.keys() | NOTHING_TO_SHOW.keys(), "say what the form shows again: tests/…/left_open_forms.py"
    declare_policies(fixtures.authority)
    app = with_secrets(fixtures)
    browser = fixtures.browser("ann", "admin", app, proved=True)
    about = things(fixtures, browser)
    assert faults(fixtures, browser, about) == []
    fixtures.sql("update sentinel.operator_sessions set stepped_up_at = null")
    assert faults(fixtures, browser, about, proved=False) == [], "who just signed in anew has proved nothing yet"
    # And the next vote counts.
    vote = {"digest": about["digest"], "verdict": "reject", "reason": WORDS}
    assert browser.submit(f"/ops/approvals/{about['approval_id']}", **vote).status_code == 303
    assert fixtures.approval_status(about["approval_id"]) == "rejected"
    gone = post_old_form(browser, "/ops/approvals/00000000-0000-0000-0000-000000000000", **vote)
    assert gone.status_code == 404


def test_the_mutants_that_show_no_form_again_or_a_secret_too_are_seen(fixtures: Any) -> None:
    declare_policies(fixtures.authority)
    app = with_secrets(fixtures)
    browser = fixtures.browser("ann", "admin", app, proved=True)
    about = things(fixtures, browser)
    context = app.flask.extensions["console"]
    del app.flask.view_functions["pages.account_make_token"].form_rerendered
    app.flask.view_functions["pages.operators_add"].form_rerendered = lambda told: operators._list(context, told)
    app.flask.view_functions["pages.keys_create"].form_rerendered = lambda told: ledger._list(context, told)
    found = faults(fixtures, browser, about)
    assert {fault.partition(":")[0] for fault in found} == {"/ops/account/tokens", "/ops/operators", "/ops/keys"}
    assert "/ops/operators: a secret came back" in found
    # What shows no form again says so and leads back to the page.
    assert 'href="/ops/account">back to the page' in post_old_form(browser, "/ops/account/tokens", label="nightly").text


def test_signing_out_from_a_tab_left_open_does_nothing_and_offers_it_again(fixtures: Any) -> None:
    browser = fixtures.browser("ann", "viewer")
    answer = post_old_form(browser, "/ops/sign-out")
    assert answer.status_code == 403
    assert SENTENCE in answer.text
    assert 'href="/ops">back to the page' in answer.text
    assert browser.get("/ops").status_code == 200
    assert 'action="/ops/sign-out"' in answer.text and token_of(answer) == browser.csrf


def test_only_a_form_that_the_browser_says_is_ours_comes_back(fixtures: Any) -> None:
    approval = fixtures.approval("220.00")
    browser = fixtures.browser("ann", "approver")
    path, fields = f"/ops/approvals/{approval}", {"reason": WORDS, "verdict": "approve"}
    for headers in ({"Accept": "text/html"}, {**OURS, "Origin": "https://elsewhere.example"},
                    {**OURS, "Sec-Fetch-Site": "cross-site"}):  # fmt: skip
        answer = browser.client.post(path, data={"csrf": "x" * 43, **fields}, headers=headers)
        assert answer.status_code == 403 and "thinking" not in answer.text, headers
    assert "thinking" not in browser.client.post(path, data=fields, headers=OURS).text, "without any token"
    strict = fixtures.at_page(
        browser.email, fixtures.app(require_second_factor="everyone", second_factor_secrets=("s" * 40,))
    )
    assert "thinking" not in post_old_form(strict, path, **fields).text, "nothing is shown before the second factor"


def shown_before_a_password(fixtures: Any) -> list[str]:
    """The checker: the forms at which somebody whose password somebody else set is shown more than their own account."""
    declare_policies(fixtures.authority)
    admin = fixtures.browser("ann", "admin", proved=True)
    about = things(fixtures, admin)
    otto = fixtures.operator("otto", "admin")
    fixtures.sql("update sentinel.operators set password_one_time = true where operator_id = %s", otto.operator_id)
    held = fixtures.at_page(otto.email)
    # The account's pages are open to them, and what they may send there is asked once more.
    posts = [route for route in FORMS if not route.startswith("/ops/account")]
    answers = {route: post_old_form(held, filled(route, about), proof=HIDDEN) for route in posts}
    assert all(one.status_code >= 400 for one in answers.values())
    return sorted(
        route for route, one in answers.items() if f"<title>{FORMS[route].title}" in one.text or held.csrf in one.text
    )


def test_before_a_password_of_ones_own_no_form_of_an_earlier_session_shows_its_page(fixtures: Any) -> None:
    """Nor with a wrong token, by which anybody is taken for a tab that was left open."""
    assert shown_before_a_password(fixtures) == []


def test_the_mutant_that_asks_a_refused_form_for_the_second_factor_alone_is_seen(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        identity, "_is_left_open", lambda context, who: not identity.must_set_up_second_factor(context, who)
    )
    assert "/ops/approvals/<approval_id>" in shown_before_a_password(fixtures)


def test_a_viewer_is_shown_what_a_viewer_may_see(fixtures: Any) -> None:
    approval = fixtures.approval("220.00")
    viewer = fixtures.browser("vic", "viewer")
    answer = post_old_form(viewer, "/ops/approvals/batch", id=approval, digest="d", verdict="reject", reason=WORDS)
    assert answer.status_code == 403 and "thinking" not in answer.text
    menu = viewer.get("/ops/halts").text.partition("</nav>")[0]
    assert "/ops/keys" not in menu and "/ops/operators" not in menu and "/ops/events" in menu
    assert [viewer.get(path).status_code for path in ("/ops/keys", "/ops/operators")] == [403, 403]
    assert 'href="/ops/keys"' in fixtures.browser("abe", "admin").get("/ops/halts").text.partition("</nav>")[0]


def test_too_many_wrong_proofs_and_passwords_say_when_to_come_back(fixtures: Any) -> None:
    app, approval = fixtures.app(), fixtures.approval("220.00")
    (digest,) = fixtures.sql("select digest from sentinel.approvals")[0]
    browser = fixtures.browser("ann", "approver", app)
    vote = {"digest": digest, "verdict": "approve", "reason": "x", "proof": "wrong wrong wrong"}
    answers = [browser.submit(f"/ops/approvals/{approval}", **vote) for _ in range(11)]
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


def test_without_scripts_a_form_whose_session_ended_leads_to_signing_in_and_says_it_was_not_done(fixtures: Any) -> None:
    browser = fixtures.browser("ann", "approver")
    assert browser.submit("/ops/sign-out").status_code == 303
    sent = browser.submit("/ops/halts", scope="tenant", reason=WORDS)
    assert sent.status_code == 303 and "undone=yes" in sent.headers["Location"]
    page = browser.get(sent.headers["Location"]).text
    assert "your last action was not carried out" in page and 'value="/ops/halts"' in page
    assert fixtures.sql("select scope from sentinel.halts") == []


def test_signing_out_of_a_session_that_ended_asks_for_nothing_to_be_repeated(fixtures: Any) -> None:
    """The finding: whoever signed out after their session had ended was asked to sign in and repeat the action."""
    browser = fixtures.browser("ann", "approver")
    assert [browser.submit("/ops/sign-out").headers["Location"] for _ in range(2)] == ["/ops/sign-in"] * 2


def test_a_link_on_another_site_opens_its_page_for_whoever_is_signed_in(fixtures: Any) -> None:
    """The finding: browsers leave out the cookie where a link is on another site (`SameSite=Strict`), so that each link of
    a notice, read in a browser, asked an approver who was signed in to sign in.
    """
    address = f"/ops/approvals/{fixtures.approval()}"
    browser, stranger = fixtures.browser("ann"), fixtures.app().test_client()

    def shown(path: str, site: str, **more: str) -> str:
        """What a browser shows that sends no cookie from there, without the rest of the page."""
        visit = {"Accept": "text/html", "Sec-Fetch-Site": site, **more}
        answer = stranger.get(path, headers=visit)
        while answer.status_code == 303:
            answer = stranger.get(answer.headers["Location"], headers=visit)
        assert ">Sign in</h1>" in answer.text
        return "".join(re.findall(r'<meta http-equiv="refresh"[^>]*>', answer.text))

    again = f'<meta http-equiv="refresh" content="0; url={address}">'
    assert shown(address, "cross-site") == again
    # The second visit is from our own page, with the cookie: whoever has no session stays at the sign-in page.
    assert browser.get(address).status_code == 200
    assert [shown(address, site) for site in ("same-origin", "same-site", "none")] == [""] * 3
    assert shown("/ops/sign-in?next=https://evil.example/", "cross-site") == again.replace(address, "/ops")
    assert shown("/ops/sign-in", "cross-site") == ""
    assert shown(f"/ops/sign-in?next={address}&undone=yes", "cross-site") == ""
    form = {"email": "nobody@demo.local", "password": WORDS, "next": address}
    refused = stranger.post("/ops/sign-in", data=form, headers={"Accept": "text/html"})
    assert "http-equiv" not in refused.text


def test_what_another_tab_had_to_say_is_told_though_a_page_was_under_way(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, take = fixtures.browser("ann"), shell.take_messages
    fixtures.sql('update sentinel.operator_sessions set said = \'[{"kind": "done", "text": "What the first did."}]\'')

    def taken_after_another(pool: Any, who: Any) -> Any:
        store_message(pool, who, {"kind": "done", "text": "What the second did."})
        return take(pool, who)

    with monkeypatch.context() as during:
        during.setattr(shell, "take_messages", taken_after_another)
        assert "What the first did." in ann.get("/ops/account").text
    assert "What the second did." in ann.get("/ops/account").text
    assert "What the second did." not in ann.get("/ops/account").text

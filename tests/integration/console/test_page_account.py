"""The account's page: sessions, password, and proving who one is before sensitive actions."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest

from ops_console import identity
from ops_console.accounts import step_up
from tests.integration.console.conftest import PASSWORD
from tests.integration.console.page_roles import PAGES
from tests.integration.console.second_administrator import power
from tests.integration.console.second_factors import WRONG, api_sign_in, enrol, with_secrets

NEW_PASSWORD = "another horse, another battery"


# Sessions -----------------------------------------------------------------------------------------------------------


def test_ones_sessions_are_listed_and_ended_one_by_one_and_all_others(fixtures: Any) -> None:
    app = fixtures.app()
    here, there, bob = (
        fixtures.browser("ann", app=app),
        fixtures.at_page("ann@demo.local", app),
        fixtures.browser("bob", app=app),
    )
    third = app.test_client()
    third.post("/ops/api/session", json={"email": "ann@demo.local", "password": PASSWORD},
               headers={"User-Agent": "curl/8\u202e<b>".encode().decode("latin-1") + "x" * 900})  # fmt: skip
    page = here.get("/ops/account").get_data(as_text=True)
    assert (page.count(">End session</button>"), page.count(">this session<"), page.count("by a program")) == (2, 1, 1)
    assert "&lt;b&gt;" in page
    assert "\x80" not in page, "what is not to be seen is written out"
    kept = fixtures.sql("select kind, address, length(user_agent) from sentinel.operator_sessions order by created_at")
    assert [(kind, address) for kind, address, _ in kept] == [("page", "127.0.0.1")] * 3 + [("api", "127.0.0.1")]
    assert max(length for _, _, length in kept) == 200
    (others,) = fixtures.sql(
        "select session_id from sentinel.operator_sessions where csrf_token = %s", bob.csrf
    )[0]  # fmt: skip
    assert here.submit(f"/ops/account/sessions/{others}/end").status_code == 404
    assert bob.get("/ops/account").status_code == 200
    (there_id,) = fixtures.sql("select session_id from sentinel.operator_sessions where csrf_token = %s", there.csrf)[0]
    assert here.submit(f"/ops/account/sessions/{there_id}/end").status_code == 303
    assert (there.get("/ops/account").status_code, third.get("/ops/api/session").status_code) == (303, 200)
    assert here.submit("/ops/account/sessions/end-others").status_code == 303
    assert third.get("/ops/api/session").status_code == 401
    assert "1 other session was ended" in here.get("/ops/account").get_data(as_text=True)
    assert bob.get("/ops/account").status_code == 200


def test_a_copied_page_cookie_is_worth_nothing_after_signing_out(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = fixtures.app()

    def replayed(name: str) -> int:
        browser, copied = fixtures.browser(name, app=app), app.test_client()
        copied.set_cookie("sentinel", browser.client.get_cookie("sentinel").value)
        assert browser.submit("/ops/sign-out").status_code == 303
        return int(copied.get("/ops/account").status_code)

    assert replayed("ann") == 401
    # The mutant: signing out that only takes the cookie from the browser.
    monkeypatch.setattr("ops_console.pages.sign_in.sign_out", lambda *_: None)
    assert replayed("bob") == 200


def test_pages_cannot_be_framed_and_forms_need_their_token(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = fixtures.browser("ann", proved=True)
    for answer in (browser.get("/ops/account"), browser.get("/ops/operators"), browser.client.get("/ops/sign-in")):
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        assert (answer.headers["X-Frame-Options"], answer.headers["Cache-Control"]) == ("DENY", "no-store")
    halt = {"scope": "tenant", "level": "kill", "reason": "forged"}
    forged = (
        {**halt},
        {**halt, "csrf": ""},
        {**halt, "csrf": "x" * 43},
        {**halt, "csrf": fixtures.browser("bob").csrf},
    )
    for fields in forged:
        assert browser.client.post("/ops/halts", data=fields).status_code == 403
    assert fixtures.sql("select 1 from sentinel.halts") == []
    # The mutant: a console that believes cookies.
    monkeypatch.setattr(identity, "check_csrf", lambda *_: None)
    assert browser.client.post("/ops/halts", data=forged[0]).status_code == 303
    assert len(fixtures.sql("select 1 from sentinel.halts")) == 1


def test_reloading_after_a_refused_act_shows_the_page_it_belongs_to(fixtures: Any) -> None:
    browser = fixtures.browser("ann", "admin")
    for path, page in (
        ("/ops/account/tokens", "/ops/account"), (f"/ops/account/sessions/{uuid.uuid4()}/end", "/ops/account"),
        (f"/ops/halts/{uuid.uuid4()}/lift", "/ops/halts"), ("/ops/sign-out", "/ops"),
    ):  # fmt: skip
        assert browser.get(path).headers["Location"] == page
    assert browser.client.get("/ops/account/tokens").status_code == 405


# Stepping up --------------------------------------------------------------------------------------------------------


def test_an_address_with_a_lines_end_and_a_number_of_thousands_of_digits_are_refused_as_others_are(
    fixtures: Any,
) -> None:
    admin = fixtures.browser("ann", "admin", proved=True)
    html = {"headers": {"Accept": "text/html"}}
    assert admin.client.get("/ops/approvals/a%0ab/collect", **html).headers["Location"] == "/ops/approvals/a%0Ab"
    for digits in ("9" * 5000, "9" * 10, "0", "91", "\u0661"):
        answer = admin.submit("/ops/account/tokens", token_id=str(uuid.uuid4()), label="nightly", expires_days=digits)
        assert answer.status_code == 400 and "The number of days" in answer.text, digits[:12]
    assert fixtures.sql("select 1 from sentinel.operator_tokens") == []


def test_what_is_no_address_leads_home_and_is_no_origin_of_ours(fixtures: Any) -> None:
    admin = fixtures.browser("ann", "admin", proved=True)
    client = fixtures.app().test_client()
    for odd in ("//[x", "http://[x", "http://[::1"):
        form = {"email": admin.email, "password": PASSWORD, "next": odd}
        assert client.post("/ops/sign-in", data=form).headers["Location"] == "/ops", odd
        assert client.get("/ops/sign-in", query_string={"next": odd}).status_code == 200, odd
        elsewhere = {"headers": {"Origin": odd, "Accept": "text/html"}}
        assert client.post("/ops/sign-in", data=form, **elsewhere).status_code == 403, odd
        answer = admin.client.post("/ops/account/tokens", data={"csrf": admin.csrf, "label": "x"}, **elsewhere)
        assert answer.status_code == 403, odd


def test_acts_of_weight_need_a_proof_that_is_right_and_fresh(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = fixtures.app()
    browser = fixtures.browser("ann", "admin", app)
    headers = {"X-CSRF-Token": browser.csrf}

    def token(**fields: Any) -> Any:
        return browser.submit("/ops/account/tokens", **{"token_id": uuid.uuid4(), "label": "nightly", **fields})

    def api(path: str, body: Any) -> Any:
        return browser.client.post(f"/ops/api/{path}", json=body, headers=headers)

    assert 'name="proof"' in browser.get("/ops/account").get_data(as_text=True)
    for fields in ({}, {"proof": ""}, {"proof": WRONG}, {"proof": "123456"}, {"proof": [PASSWORD, PASSWORD]}):
        answer = token(**fields)
        assert (answer.status_code, 'name="proof"' in answer.get_data(as_text=True)) == (400, True), fields
        assert 'value="nightly"' in answer.get_data(as_text=True)
    approval, nothing = fixtures.approval(), uuid.uuid4()
    weighty = (
        (f"approvals/{approval}/approve", {"reason": "x"}), ("tokens", {}), (f"halts/{nothing}/lift", {"reason": "x"}),
        ("switches/some/on", {"canary_percent": 1, "reason": "x"}), ("orders/shop/1/fulfil", {"reason": "x"}),
        ("orders/shop/1/refund", {"reason": "x"}), (f"in-doubt/{nothing}/resolve", {"executed": True, "evidence": "x"}),
    )  # fmt: skip
    for path, body in weighty:
        told = api(path, body)
        assert (told.status_code, told.json["type"]) == (403, "urn:sentinel:problem:step-up-required"), path
    assert fixtures.sql("select 1 from sentinel.operator_tokens") == []
    assert fixtures.sql("select count(*) from sentinel.sign_in_attempts where not succeeded") == [(2,)]
    for body in ({}, {"password": WRONG}, {"password": PASSWORD, "code": "123456"}):
        assert api("session/step-up", body).status_code == 400
    assert api("session/step-up", {"password": PASSWORD}).status_code == 204
    seen = {"reason": "x", "digest": fixtures.digest(approval)}
    assert api(f"approvals/{approval}/approve", seen).json["result"] == "approved"
    assert 'name="proof"' not in browser.get("/ops/account").get_data(as_text=True)
    # Old proof: five minutes by the database's clock.
    old = "update sentinel.operator_sessions set stepped_up_at = clock_timestamp() - interval '301 seconds'"
    fixtures.sql(old)
    assert token().status_code == 400
    made = token(proof=PASSWORD)
    assert (made.status_code, "snt_oper_" in made.get_data(as_text=True)) == (200, True)
    assert "snt_oper_" not in browser.get("/ops/account").get_data(as_text=True)
    form = {"token_id": uuid.uuid4()}
    assert [token(**form).status_code for _ in range(2)] == [200, 409]
    # A program that gave its credentials to act, and a token, need none.
    script = {"Authorization": "Bearer " + re.findall("snt_oper_[0-9A-Za-z]+", made.get_data(as_text=True))[0]}
    lifting = f"/ops/api/halts/{nothing}/lift"
    assert app.test_client().post(lifting, json={"reason": "x"}, headers=script).status_code == 404
    assert fixtures.sign_in("ann@demo.local", app).post(lifting, {"reason": "x"}).status_code == 404
    # The mutant: whoever holds the cookie is believed.
    fixtures.sql(old)
    monkeypatch.setattr(step_up, "needs_proof", lambda who, **_: False)
    assert token().status_code == 200


def token_of(person: Any) -> dict[str, str]:
    """Headers of a token that the person made."""
    return {"Authorization": f"Bearer {person.post('/ops/api/tokens', {}).json['token']}"}


def powerful_forms(operator_id: Any, bob: Any) -> dict[str, dict[str, Any]]:
    """Forms of the pages that would go through, of an administrator without a second one: they open or close an account, or make a key."""
    return {
        "/ops/keys": {"key_id": uuid.uuid4(), "agent_id": "an-agent", "scopes": ["guard", "worker"], "label": "one"},
        "/ops/operators": {"operator_id": operator_id, "email": "eve@demo.local", "role": "admin", "password": NEW_PASSWORD},
        f"/ops/operators/{bob.operator_id}/role": {"role": "admin", "seen": "approver"},
        f"/ops/operators/{bob.operator_id}/password": {"password": NEW_PASSWORD},
        "/ops/account/second-factor/remove": {},
    }  # fmt: skip


TOKENS = (
    "insert into sentinel.operator_tokens (tenant_id, token_id, token_hash, operator_id, label, created_at, expires_at)"
    " select tenant_id, gen_random_uuid(), sha256((%s || n)::bytea), operator_id, %s || ' ' || n || '.',"
    " clock_timestamp() - interval '2 days' + n * interval '1 minute', clock_timestamp() + %s::interval"
    " from sentinel.operators, generate_series(1, 60) n where email = 'ann@demo.local'"
)


def test_of_many_tokens_the_newest_are_drawn_and_one_that_expired_is_not_revoked(fixtures: Any) -> None:
    """The finding: all that there ever were, as a program makes one each time it runs, and expired ones with a form."""
    ann = fixtures.browser("ann", "approver")
    fixtures.sql(TOKENS, "expired", "expired", "-1 hour")
    page = ann.get("/ops/account").text
    assert page.count("/revoke#refused") == 0 and page.count('class="chip expired"') == 50
    fixtures.sql(TOKENS, "in use", "in use", "1 day")
    page = ann.get("/ops/account").text
    assert (page.count("/revoke#refused"), page.count('class="chip expired"')) == (50, 50)
    assert "Only the newest 50 tokens in use" in page
    assert "in use 11." in page and "in use 10." not in page and "expired 60." in page
    fixtures.sql("delete from sentinel.operator_tokens where label not like '%1.'")
    assert "Only the newest" not in ann.get("/ops/account").text


def test_a_token_acts_by_no_form_of_the_pages_and_is_shown_no_secret(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stolen one would outlive its end and its revocation: by a key, a person or a second factor of the thief's."""
    app, bob = with_secrets(fixtures), fixtures.operator("bob")
    script, headers = app.test_client(), token_of(fixtures.person("ann", "admin", app))
    begun = script.get("/ops/account/second-factor", headers=headers)
    assert (begun.status_code, 'class="secret"' in begun.text) == (200, False)
    assert fixtures.sql("select 1 from sentinel.second_factors") == [], "looking begins none"
    enrol(fixtures, fixtures.at_page("ann@demo.local", app))
    before, kinds = power(fixtures), "select count(*) from sentinel.events"
    (many,) = fixtures.sql(kinds)
    acts = powerful_forms(uuid.uuid4(), bob)
    for path in (*acts, *(re.sub("<[^>]*>", str(uuid.uuid4()), route) for method, route in PAGES if method == "POST")):
        answer = script.post(path, data=acts.get(path, {}), headers={**headers, "Accept": "text/html"})
        assert (answer.status_code, "a signed-in person" in answer.text) == (403, True), path
    assert (power(fixtures), fixtures.sql(kinds)) == (before, [many])
    # It reads, and acts by the API.
    assert script.get("/ops/events/export.csv", headers=headers).status_code == 200
    halt = {"scope": "tenant", "level": "kill", "reason": "x"}
    assert script.post("/ops/api/halts", json=halt, headers=headers).status_code == 201
    # The mutant: a console that takes a token wherever it takes a person.
    monkeypatch.setattr(identity, "_is_api", lambda: True)
    assert script.post("/ops/halts", data={**halt, "scope": "agent", "target": "x"}, headers=headers).status_code == 303


def test_the_pages_forms_ask_a_programs_session_for_a_proof_too(fixtures: Any) -> None:
    app, bob = with_secrets(fixtures), fixtures.operator("bob")
    asked, person = fixtures.approval(), fixtures.person("ann", "admin", app)
    before = power(fixtures)

    def submit(path: str, **form: Any) -> int:
        return int(person.client.post(path, data={**form, "csrf": person.csrf}).status_code)

    assert submit("/ops/account/second-factor") == 400
    assert 'class="secret"' not in person.get("/ops/account/second-factor").text
    acts = powerful_forms(uuid.uuid4(), bob)
    assert {submit(path, **form) for path, form in acts.items()} == {400}
    assert power(fixtures) == before
    # By the API it acts as before; with the password by the forms too.
    assert person.approve(asked).json["result"] == "approved"
    assert submit("/ops/keys", **acts["/ops/keys"], proof=PASSWORD) == 201
    assert len(power(fixtures) - before) == 1


def test_wrong_proofs_are_throttled_for_that_session_and_nobody_else(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_up, "is_right", lambda hashed, proof: proof == PASSWORD)
    app = fixtures.app()
    stolen, own = fixtures.browser("ann", app=app), fixtures.at_page("ann@demo.local", app)
    seen = [stolen.submit("/ops/account/prove", proof=WRONG).status_code for _ in range(11)]
    assert seen == [400] * 10 + [429]
    assert stolen.submit("/ops/account/prove", proof=PASSWORD).status_code == 429
    done = own.submit("/ops/account/prove", proof=PASSWORD, next="/ops/halts")
    assert (done.status_code, done.headers["Location"]) == (303, "/ops/halts")
    again = own.submit("/ops/account/prove", next="https://evil.example/")
    assert again.headers["Location"] == "/ops"
    assert own.submit("/ops/sign-out").status_code == 303
    assert api_sign_in(app, "ann@demo.local").status_code == 200


def test_a_password_is_changed_with_the_old_one_and_ends_other_sessions(fixtures: Any) -> None:
    app = fixtures.app()
    here, there = fixtures.browser("ann", app=app), fixtures.at_page("ann@demo.local", app)
    good = {"old": PASSWORD, "new": NEW_PASSWORD, "again": NEW_PASSWORD}
    common = {"new": "Password2024!", "again": "Password2024!"}
    for fields, fault in (
        ({"old": WRONG}, "is wrong"), ({"again": WRONG}, "differs"), ({"new": "short", "again": "short"}, "12 to 256"),
        (common, "The new password is a common password"),
        ({"new": PASSWORD, "again": PASSWORD}, "The new password must differ from the current password"),
    ):  # fmt: skip
        answer = here.submit("/ops/account/password", **{**good, **fields})
        assert (answer.status_code, fault in answer.get_data(as_text=True)) == (400, True), fields
    assert there.get("/ops/account").status_code == 200
    assert [here.submit("/ops/account/password", **good).status_code for _ in range(2)] == [303, 303]
    assert (here.get("/ops/account").status_code, there.get("/ops/account").status_code) == (200, 303)
    assert [api_sign_in(app, "ann@demo.local", one).status_code for one in (PASSWORD, NEW_PASSWORD)] == [401, 200]
    assert len(fixtures.sql("select 1 from sentinel.events where kind = 'operator_password_changed'")) == 1


def test_what_the_sign_in_form_cannot_mean_is_refused_by_field(fixtures: Any) -> None:
    client = fixtures.app().test_client()
    for fields in (
        {"email": "a\0b@demo.local", "password": PASSWORD}, {"email": "a@demo.local"}, {"password": PASSWORD},
        {"email": ["a@demo.local", "b@demo.local"], "password": PASSWORD}, {"email": "a" * 300, "password": PASSWORD},
        {"email": "a@demo.local", "password": PASSWORD, "code": "1" * 40},
    ):  # fmt: skip
        answer = client.post("/ops/sign-in", data={"next": "/ops", **fields})
        assert (answer.status_code, "Set-Cookie" in answer.headers) == (400, False), fields
    assert fixtures.sql("select 1 from sentinel.sign_in_attempts") == []

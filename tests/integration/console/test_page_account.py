"""The account's page: sessions, tokens, password, second factor, and proving who one is before acts of weight."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pyotp
import pytest

from ops_console import identity
from sentinel.services import second_factor, sign_in, step_up
from sentinel.services.known_devices import Devices
from sentinel.services.second_factor import Vault
from sentinel.store import known_devices, second_factors
from tests.integration.console.conftest import PASSWORD

SECRET, OLD_SECRET = "one-secret-for-tests-0123456789abcdef", "old-secret-for-tests-0123456789abcdef"
NEW_PASSWORD = "another horse, another battery"
WRONG = "wrong wrong wrong"


def with_secrets(world: Any, *secrets: str, **settings: Any) -> Any:
    return world.app(second_factor_secrets=secrets or (SECRET,), **settings)


def code_of(world: Any, secret: str, steps: int = 0) -> str:
    """The code that the app shows by the database's clock, so many steps from now."""
    now = world.sql("select floor(extract(epoch from clock_timestamp()) / 30)::bigint")[0][0]
    return pyotp.HOTP(secret).at(now + steps)


def forget_used_codes(world: Any) -> None:
    """As if time had gone by."""
    world.sql("update sentinel.second_factors set last_step = 0")


def enrol(world: Any, browser: Any) -> str:
    """Set a second factor up as the page has it done; the secret."""
    assert browser.submit("/ops/account/second-factor", proof=PASSWORD).status_code == 303
    page = browser.get("/ops/account/second-factor").get_data(as_text=True)
    secret = re.search(r'class="secret">([A-Z2-7 ]+)<', page)
    assert secret is not None, page
    shown = secret[1].replace(" ", "")
    done = browser.submit("/ops/account/second-factor/confirm", code=code_of(world, shown))
    assert done.headers["Location"] == "/ops/account"
    return shown


def api_sign_in(app: Any, email: str, password: str = PASSWORD, **more: str) -> Any:
    return app.test_client().post("/ops/api/session", json={"email": email, "password": password, **more})


# Sessions -----------------------------------------------------------------------------------------------------------


def test_ones_sessions_are_listed_and_ended_one_by_one_and_all_others(world: Any) -> None:
    app = world.app()
    here, there, bob = (
        world.browser("ann", app=app),
        world.at_page("ann@demo.local", app),
        world.browser("bob", app=app),
    )
    third = app.test_client()
    third.post("/ops/api/session", json={"email": "ann@demo.local", "password": PASSWORD},
               headers={"User-Agent": "curl/8\u202e<b>" + "x" * 900})  # fmt: skip
    page = here.get("/ops/account").get_data(as_text=True)
    assert (page.count(">End</button>"), page.count(">this one<"), page.count("by a program")) == (2, 1, 1)
    assert "&lt;b&gt;" in page
    assert "\u202e" not in page
    kept = world.sql("select kind, address, length(user_agent) from sentinel.operator_sessions order by created_at")
    assert [(kind, address) for kind, address, _ in kept] == [("page", "127.0.0.1")] * 3 + [("api", "127.0.0.1")]
    assert max(length for _, _, length in kept) == 200
    (others,) = world.sql(
        "select session_id from sentinel.operator_sessions where csrf_token = %s", bob.csrf
    )[0]  # fmt: skip
    assert here.submit(f"/ops/account/sessions/{others}/end").status_code == 404
    assert bob.get("/ops/account").status_code == 200
    (there_id,) = world.sql("select session_id from sentinel.operator_sessions where csrf_token = %s", there.csrf)[0]
    assert here.submit(f"/ops/account/sessions/{there_id}/end").status_code == 303
    assert (there.get("/ops/account").status_code, third.get("/ops/api/session").status_code) == (303, 200)
    assert here.submit("/ops/account/sessions/end-others").status_code == 303
    assert third.get("/ops/api/session").status_code == 401
    assert "1 other session was ended" in here.get("/ops/account").get_data(as_text=True)
    assert bob.get("/ops/account").status_code == 200


def test_a_copied_page_cookie_is_worth_nothing_after_signing_out(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = world.app()

    def replayed(name: str) -> int:
        browser, copied = world.browser(name, app=app), app.test_client()
        copied.set_cookie("sentinel", browser.client.get_cookie("sentinel").value)
        assert browser.submit("/ops/sign-out").status_code == 303
        return int(copied.get("/ops/account").status_code)

    assert replayed("ann") == 401
    # The twin: signing out that only takes the cookie from the browser.
    monkeypatch.setattr("ops_console.pages.sign_in.sign_out", lambda *_: None)
    assert replayed("bob") == 200


def test_pages_cannot_be_framed_and_forms_need_their_token(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = world.browser("ann", proved=True)
    for answer in (browser.get("/ops/account"), browser.get("/ops/operators"), browser.client.get("/ops/sign-in")):
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        assert (answer.headers["X-Frame-Options"], answer.headers["Cache-Control"]) == ("DENY", "no-store")
    halt = {"scope": "tenant", "level": "kill", "reason": "forged"}
    forged = ({**halt}, {**halt, "csrf": ""}, {**halt, "csrf": "x" * 43}, {**halt, "csrf": world.browser("bob").csrf})
    for fields in forged:
        assert browser.client.post("/ops/halts", data=fields).status_code == 403
    assert world.sql("select 1 from sentinel.halts") == []
    # The twin: a console that believes cookies.
    monkeypatch.setattr(identity, "check_csrf", lambda *_: None)
    assert browser.client.post("/ops/halts", data=forged[0]).status_code == 303
    assert len(world.sql("select 1 from sentinel.halts")) == 1


def test_reloading_after_a_refused_act_shows_the_page_it_belongs_to(world: Any) -> None:
    browser = world.browser("ann", "admin")
    for path, page in (
        ("/ops/account/tokens", "/ops/account"), (f"/ops/account/sessions/{uuid.uuid4()}/end", "/ops/account"),
        (f"/ops/halts/{uuid.uuid4()}/lift", "/ops/halts"), ("/ops/sign-out", "/ops"),
    ):  # fmt: skip
        assert browser.get(path).headers["Location"] == page
    assert browser.client.get("/ops/account/tokens").status_code == 405


# Stepping up --------------------------------------------------------------------------------------------------------


def test_acts_of_weight_need_a_proof_that_is_right_and_fresh(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = world.app()
    browser = world.browser("ann", "admin", app)
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
    approval, nothing = world.approval(), uuid.uuid4()
    weighty = (
        (f"approvals/{approval}/approve", {"reason": "x"}), ("tokens", {}), (f"halts/{nothing}/lift", {"reason": "x"}),
        ("switches/some/on", {"canary_percent": 1, "reason": "x"}), ("orders/shop/1/fulfil", {"reason": "x"}),
        ("orders/shop/1/refund", {"reason": "x"}), (f"in-doubt/{nothing}/resolve", {"executed": True, "evidence": "x"}),
    )  # fmt: skip
    for path, body in weighty:
        told = api(path, body)
        assert (told.status_code, told.json["type"]) == (403, "urn:sentinel:problem:step-up-required"), path
    assert world.sql("select 1 from sentinel.operator_tokens") == []
    assert world.sql("select count(*) from sentinel.sign_in_attempts where not succeeded") == [(2,)]
    for body in ({}, {"password": WRONG}, {"password": PASSWORD, "code": "123456"}):
        assert api("session/step-up", body).status_code == 400
    assert api("session/step-up", {"password": PASSWORD}).status_code == 204
    assert api(f"approvals/{approval}/approve", {"reason": "x"}).json["result"] == "approved"
    assert 'name="proof"' not in browser.get("/ops/account").get_data(as_text=True)
    # Old proof: five minutes by the database's clock.
    old = "update sentinel.operator_sessions set stepped_up_at = clock_timestamp() - interval '301 seconds'"
    world.sql(old)
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
    assert world.sign_in("ann@demo.local", app).post(lifting, {"reason": "x"}).status_code == 404
    # The twin: whoever holds the cookie is believed.
    world.sql(old)
    monkeypatch.setattr(step_up, "needs_proof", lambda who: False)
    assert token().status_code == 200


def test_wrong_proofs_are_throttled_for_that_session_and_nobody_else(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_up, "is_right", lambda hashed, proof: proof == PASSWORD)
    app = world.app()
    stolen, own = world.browser("ann", app=app), world.at_page("ann@demo.local", app)
    seen = [stolen.submit("/ops/account/prove", proof=WRONG).status_code for _ in range(11)]
    assert seen == [400] * 10 + [429]
    assert stolen.submit("/ops/account/prove", proof=PASSWORD).status_code == 429
    done = own.submit("/ops/account/prove", proof=PASSWORD, next="/ops/halts")
    assert (done.status_code, done.headers["Location"]) == (303, "/ops/halts")
    again = own.submit("/ops/account/prove", next="https://evil.example/")
    assert again.headers["Location"] == "/ops"
    assert own.submit("/ops/sign-out").status_code == 303
    assert api_sign_in(app, "ann@demo.local").status_code == 200


def test_a_password_is_changed_with_the_old_one_and_ends_other_sessions(world: Any) -> None:
    app = world.app()
    here, there = world.browser("ann", app=app), world.at_page("ann@demo.local", app)
    good = {"old": PASSWORD, "new": NEW_PASSWORD, "again": NEW_PASSWORD}
    for fields, fault in (({"old": WRONG}, "is wrong"), ({"again": WRONG}, "differs"), ({"new": "short", "again": "short"}, "12 to 256")):  # fmt: skip
        answer = here.submit("/ops/account/password", **{**good, **fields})
        assert (answer.status_code, fault in answer.get_data(as_text=True)) == (400, True), fields
    assert [here.submit("/ops/account/password", **good).status_code for _ in range(2)] == [303, 303]
    assert (here.get("/ops/account").status_code, there.get("/ops/account").status_code) == (200, 303)
    assert [api_sign_in(app, "ann@demo.local", one).status_code for one in (PASSWORD, NEW_PASSWORD)] == [401, 200]
    assert len(world.sql("select 1 from sentinel.events where kind = 'operator_password_changed'")) == 1


def test_what_the_sign_in_form_cannot_mean_is_refused_by_field(world: Any) -> None:
    client = world.app().test_client()
    for fields in (
        {"email": "a\0b@demo.local", "password": PASSWORD}, {"email": "a@demo.local"}, {"password": PASSWORD},
        {"email": ["a@demo.local", "b@demo.local"], "password": PASSWORD}, {"email": "a" * 300, "password": PASSWORD},
        {"email": "a@demo.local", "password": PASSWORD, "code": "1" * 40},
    ):  # fmt: skip
        answer = client.post("/ops/sign-in", data={"next": "/ops", **fields})
        assert (answer.status_code, "Set-Cookie" in answer.headers) == (400, False), fields
    assert world.sql("select 1 from sentinel.sign_in_attempts") == []


# The second factor --------------------------------------------------------------------------------------------------


def test_a_second_factor_is_set_up_asked_for_and_removed(world: Any) -> None:
    app = with_secrets(world)
    browser = world.browser("ann", app=app)
    # A stolen cookie neither sees the secret nor sets one up.
    assert browser.submit("/ops/account/second-factor").status_code == 400
    assert 'class="secret"' not in browser.get("/ops/account/second-factor").get_data(as_text=True)
    assert browser.submit("/ops/account/second-factor", proof=PASSWORD).status_code == 303
    page = browser.get("/ops/account/second-factor").get_data(as_text=True)
    assert "<svg" in page
    assert "style=" not in page
    assert page.count('class="secret"') == 1
    assert browser.get("/ops/account/second-factor").get_data(as_text=True).count("<svg") == 1
    assert browser.submit("/ops/account/second-factor/confirm", code="000000").status_code == 400
    # Not confirmed, it is not asked for.
    assert api_sign_in(app, "ann@demo.local").status_code == 200
    secret = enrol(world, browser)
    assert browser.submit("/ops/account/second-factor/confirm", code="000000").status_code == 303
    assert browser.submit("/ops/account/second-factor", proof=PASSWORD).status_code == 409
    kept = str(world.sql("select f::text, e.body from sentinel.second_factors f, sentinel.events e"))
    assert secret not in kept
    forget_used_codes(world)
    assert api_sign_in(app, "ann@demo.local").status_code == 401
    code = code_of(world, secret)
    assert api_sign_in(app, "ann@demo.local", code=f"{code[:3]} {code[3:]}").status_code == 200
    # A used code is no proof either; the next one is.
    world.sql("update sentinel.operator_sessions set stepped_up_at = null")
    assert browser.submit("/ops/account/prove", proof=code).status_code == 400
    assert browser.submit("/ops/account/prove", proof=code_of(world, secret, 1)).status_code == 303
    assert browser.submit("/ops/account/second-factor/remove").status_code == 303
    assert browser.submit("/ops/account/second-factor/remove").status_code == 404
    assert api_sign_in(app, "ann@demo.local").status_code == 200
    kinds = [kind for (kind,) in world.sql("select kind from sentinel.events order by occurred_at")]
    assert kinds == ["operator_second_factor_set", "operator_second_factor_removed"]


def test_a_code_works_once_and_only_around_now(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = with_secrets(world)
    secret = enrol(world, world.browser("ann", app=app))

    def enter(code: str) -> int:
        return int(api_sign_in(app, "ann@demo.local", code=code).status_code)

    forget_used_codes(world)
    assert [enter(code_of(world, secret, steps)) for steps in (-3, 3)] == [401, 401]
    code = code_of(world, secret)
    assert [enter(code), enter(code)] == [200, 401]
    # What is older than a used one is over as well.
    assert enter(code_of(world, secret, -1)) == 401
    # Two at once: the database lets one through.
    forget_used_codes(world)
    known = world.sql("select tenant_id, operator_id, secret from sentinel.second_factors")[0]
    used = [second_factors.use_step(world.pool, *known[:2], step=7, secret=known[2]) for _ in range(2)]
    assert used == [True, False]
    # The twin: a console that does not write down what was used.
    forget_used_codes(world)
    monkeypatch.setattr(second_factors, "use_step", lambda *_, **__: True)
    code = code_of(world, secret)
    assert [enter(code), enter(code)] == [200, 200]


def flat_refusals(world: Any, app: Any, secret: str, monkeypatch: pytest.MonkeyPatch) -> tuple[set[Any], list[Any]]:
    """(distinct answers, work done) over what must be refused alike. Work: password checks and secrets opened."""
    work: list[Any] = []
    real_right, real_open = sign_in.is_right, Vault.open
    monkeypatch.setattr(sign_in, "is_right", lambda *given: work[-1].append("password") or real_right(*given))
    monkeypatch.setattr(Vault, "open", lambda *given: work[-1].append("secret") or real_open(*given))
    causes = {
        "wrong password": ("ann@demo.local", WRONG, code_of(world, secret)), "unknown address": ("no@demo.local", PASSWORD, "123456"),
        "shut out": ("gone@demo.local", PASSWORD, "123456"), "missing code": ("ann@demo.local", PASSWORD, ""),
        "wrong code": ("ann@demo.local", PASSWORD, code_of(world, secret, 5)),
    }  # fmt: skip
    told = set()
    for email, password, code in causes.values():
        work.append([])
        answer = api_sign_in(app, email, password, **({"code": code} if code else {}))
        body = answer.json
        told.add((answer.status_code, body["type"], body["title"], body["detail"], "Set-Cookie" in answer.headers))
        page = app.test_client().post("/ops/sign-in", data={"email": email, "password": password, "code": code})
        text = re.sub(r'value="[^"]*"', "", page.get_data(as_text=True))
        told.add((page.status_code, text, "Set-Cookie" in page.headers))
    world.sql("delete from sentinel.sign_in_attempts")
    return told, work


def test_five_causes_are_one_refusal_for_the_same_work(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = with_secrets(world)
    secret = enrol(world, world.browser("ann", app=app))
    world.operator("gone")
    world.sql("update sentinel.operators set active = false where email like 'gone%%'")
    forget_used_codes(world)
    told, work = flat_refusals(world, app, secret, monkeypatch)
    assert len(told) == 2
    assert all(status == 401 for status, *_ in told)
    assert all(one == ["password", "secret"] * 2 for one in work), work
    # The right code of a refused sign-in was not used up.
    assert world.sql("select last_step from sentinel.second_factors") == [(0,)]
    # The twin: nobody's secret is not opened.
    monkeypatch.setattr(Vault, "open_nobodys", lambda self: None)
    _, work = flat_refusals(world, app, secret, monkeypatch)
    assert len({len(one) for one in work}) > 1


def test_secrets_move_to_the_newest_key_and_without_keys_nobody_gets_in_by_a_code(world: Any) -> None:
    secret = enrol(world, world.browser("ann", app=with_secrets(world, OLD_SECRET)))
    both, new_only, none = with_secrets(world, SECRET, OLD_SECRET), with_secrets(world), world.app()

    def enter(app: Any) -> int:
        forget_used_codes(world)
        return int(api_sign_in(app, "ann@demo.local", code=code_of(world, secret)).status_code)

    assert [enter(app) for app in (new_only, none, both, new_only)] == [401, 401, 200, 200]
    page = world.at_page("bob@demo.local", none) if world.operator("bob") else None
    assert page is not None
    assert "It cannot be set up here" in page.get("/ops/account").get_data(as_text=True)
    assert page.submit("/ops/account/second-factor", proof=PASSWORD).status_code == 409
    # A secret that was copied to somebody else's row opens nothing.
    bob = world.sql("select operator_id from sentinel.operators where email like 'bob%%'")[0][0]
    world.sql(
        "insert into sentinel.second_factors (tenant_id, operator_id, secret, confirmed_at)"
        " select tenant_id, %s, secret, now() from sentinel.second_factors", bob)  # fmt: skip
    assert api_sign_in(new_only, "bob@demo.local", code=code_of(world, secret)).status_code == 401


def test_a_console_that_requires_a_second_factor_lets_nobody_past_setting_one_up(world: Any) -> None:
    app = with_secrets(world, require_second_factor=True)
    browser = world.browser("ann", "admin", app)
    for path in ("/ops/halts", "/ops/operators", "/ops/nope"):
        assert browser.get(path).headers["Location"] == "/ops/account", path
    refused = browser.client.get("/ops/api/halts")
    assert (refused.status_code, refused.json["type"]) == (403, "urn:sentinel:problem:second-factor-required")
    assert browser.submit("/ops/halts", scope="tenant", reason="x").status_code == 403
    enrol(world, browser)
    assert browser.get("/ops/halts").status_code == 200


# Guessing without locking out ---------------------------------------------------------------------------------------


def test_hammering_an_account_does_not_lock_its_known_browser_out(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = with_secrets(world)
    browser = world.browser("ann", app=app)
    name = "sentinel-device"
    known = browser.client.get_cookie(name)
    assert known is not None
    assert known.http_only
    assert "ann" not in known.value
    monkeypatch.setattr(sign_in, "is_right", lambda hashed, password: hashed is not None and password == PASSWORD)

    def page(client: Any, email: str = "ann@demo.local", password: str = PASSWORD) -> int:
        return int(client.post("/ops/sign-in", data={"email": email, "password": password}).status_code)

    attacker = app.test_client()
    assert [page(attacker, password=WRONG) for _ in range(11)] == [401] * 10 + [429]
    stranger = app.test_client()
    assert page(stranger) == 429
    assert page(browser.client) == 303
    kept = browser.client.get_cookie(name)
    assert kept is not None
    assert kept.value == known.value
    # It is known for its person only, counts on its own, and cannot be made up.
    world.operator("bob")
    assert page(browser.client, "bob@demo.local") == 429
    for forged in (
        known.value[:-1] + ("0" if known.value[-1] != "0" else "1"),
        "x" * 86,
        Devices((OLD_SECRET,)).new("ann@demo.local"),
    ):
        stranger.set_cookie(name, forged)
        assert page(stranger) == 429
    assert [page(browser.client, password=WRONG) for _ in range(11)] == [401] * 10 + [429]
    # Known it is for a while after its last good sign-in, by the database's clock, however long the cookie is kept.
    world.sql("delete from sentinel.sign_in_attempts")
    world.sql("update sentinel.known_devices set last_signed_in_at = clock_timestamp() - interval '89 days'")
    assert [page(attacker, password=WRONG) for _ in range(11)][-1] == 429
    assert page(browser.client) == 303, "and coming in makes it known anew"
    assert world.sql(
        "select min(clock_timestamp() - last_signed_in_at) < interval '1 h' from sentinel.known_devices"
    ) == [(True,)]
    world.sql("update sentinel.known_devices set last_signed_in_at = clock_timestamp() - interval '91 days'")
    assert page(browser.client) == 429
    with monkeypatch.context() as twin:
        twin.setattr(known_devices, "KNOWN_SECONDS", 10_000 * 86_400)
        assert page(browser.client) == 303
    world.sql("update sentinel.known_devices set last_signed_in_at = clock_timestamp() - interval '91 days'")
    world.sql("delete from sentinel.sign_in_attempts")
    assert page(browser.client) == 303
    renamed = browser.client.get_cookie(name)
    assert renamed is not None and renamed.value != known.value, "a forgotten browser gets another name"
    assert world.sql("select count(*) from sentinel.known_devices") == [(1,)], "what is over is not kept"
    # The twin: a console that knows no browser.
    world.sql("delete from sentinel.sign_in_attempts")
    monkeypatch.setattr(Devices, "known", lambda *_: None)
    assert [page(attacker, password=WRONG) for _ in range(11)][-1] == 429
    assert page(browser.client) == 429


def test_a_used_code_is_told_from_a_fresh_one_without_asking_again() -> None:
    assert second_factor.clean_code(" 123-456 ") == "123456"
    assert not any(second_factor.is_code(one) for one in ("", "12345", "1234567", "١٢٣٤٥٦", "12345a"))

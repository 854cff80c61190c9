"""The second factor: set up, asked for, removed; a code works once, and a refusal does not tell its cause."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from ops_console.accounts import second_factors, sign_in
from ops_console.accounts import totp as second_factor
from ops_console.accounts.operator_changes import reset_second_factor
from ops_console.accounts.totp import Vault
from ops_console.settings import ConsoleSettings, load_console_settings
from sentinel.platform.settings import UnsafeConfiguration
from tests.integration.console.conftest import PASSWORD
from tests.integration.console.second_factors import (
    OLD_SECRET,
    SECRET,
    WRONG,
    api_sign_in,
    code_of,
    enrol,
    forget_used_codes,
    with_secrets,
)
from tests.support.lost_connections import LosesConnection
from tests.support.settings_table import render


def test_a_second_factor_is_set_up_asked_for_and_removed(fixtures: Any) -> None:
    app = with_secrets(fixtures)
    browser = fixtures.browser("ann", app=app)
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
    secret = enrol(fixtures, browser)
    assert browser.submit("/ops/account/second-factor/confirm", code="000000").status_code == 303
    assert browser.submit("/ops/account/second-factor", proof=PASSWORD).status_code == 409
    kept = str(fixtures.sql("select f::text, e.body from sentinel.second_factors f, sentinel.events e"))
    assert secret not in kept
    forget_used_codes(fixtures)
    assert api_sign_in(app, "ann@demo.local").status_code == 401
    code = code_of(fixtures, secret)
    assert api_sign_in(app, "ann@demo.local", code=f"{code[:3]} {code[3:]}").status_code == 200
    # A used code is no proof either; the next one is.
    fixtures.sql("update sentinel.operator_sessions set stepped_up_at = null")
    assert browser.submit("/ops/account/prove", proof=code).status_code == 400
    assert browser.submit("/ops/account/prove", proof=code_of(fixtures, secret, 1)).status_code == 303
    assert browser.submit("/ops/account/second-factor/remove").status_code == 303
    assert browser.submit("/ops/account/second-factor/remove").status_code == 404
    assert api_sign_in(app, "ann@demo.local").status_code == 200
    kinds = [kind for (kind,) in fixtures.sql("select kind from sentinel.events order by occurred_at")]
    assert kinds == ["operator_second_factor_set", "operator_second_factor_removed"]


def test_a_code_works_once_and_only_around_now(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = with_secrets(fixtures)
    secret = enrol(fixtures, fixtures.browser("ann", app=app))

    def enter(code: str) -> int:
        return int(api_sign_in(app, "ann@demo.local", code=code).status_code)

    forget_used_codes(fixtures)
    assert [enter(code_of(fixtures, secret, steps)) for steps in (-3, 3)] == [401, 401]
    code = code_of(fixtures, secret)
    assert [enter(code), enter(code)] == [200, 401]
    # What is older than a used one is over as well.
    assert enter(code_of(fixtures, secret, -1)) == 401
    # Two at once: the database lets one through.
    forget_used_codes(fixtures)
    known = fixtures.sql("select tenant_id, operator_id, secret from sentinel.second_factors")[0]
    used = [second_factors.use_step(fixtures.pool, *known[:2], step=7, secret=known[2]) for _ in range(2)]
    assert used == [True, False]
    # The mutant: a console that does not write down what was used.
    forget_used_codes(fixtures)
    monkeypatch.setattr(second_factors, "use_step", lambda *_, **__: True)
    code = code_of(fixtures, secret)
    assert [enter(code), enter(code)] == [200, 200]


def flat_refusals(fixtures: Any, app: Any, secret: str, monkeypatch: pytest.MonkeyPatch) -> tuple[set[Any], list[Any]]:
    """(distinct answers, work done) over what must be refused alike. Work: password checks and secrets opened."""
    work: list[Any] = []
    real_right, real_open = sign_in.is_right, Vault.open
    monkeypatch.setattr(sign_in, "is_right", lambda *given: work[-1].append("password") or real_right(*given))
    monkeypatch.setattr(Vault, "open", lambda *given: work[-1].append("secret") or real_open(*given))
    causes = {
        "wrong password": ("ann@demo.local", WRONG, code_of(fixtures, secret)), "unknown address": ("no@demo.local", PASSWORD, "123456"),
        "deactivated": ("gone@demo.local", PASSWORD, "123456"), "missing code": ("ann@demo.local", PASSWORD, ""),
        "wrong code": ("ann@demo.local", PASSWORD, code_of(fixtures, secret, 5)),
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
    fixtures.sql("delete from sentinel.sign_in_attempts")
    return told, work


def test_five_causes_are_one_refusal_for_the_same_work(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = with_secrets(fixtures)
    secret = enrol(fixtures, fixtures.browser("ann", app=app))
    fixtures.operator("gone")
    fixtures.sql("update sentinel.operators set active = false where email like 'gone%%'")
    forget_used_codes(fixtures)
    told, work = flat_refusals(fixtures, app, secret, monkeypatch)
    assert len(told) == 2
    assert all(status == 401 for status, *_ in told)
    assert all(one == ["password", "secret"] * 2 for one in work), work
    # The right code of a refused sign-in was not used up.
    assert fixtures.sql("select last_step from sentinel.second_factors") == [(0,)]
    # The mutant: nobody's secret is not opened.
    monkeypatch.setattr(Vault, "open_nobodys", lambda self: None)
    _, work = flat_refusals(fixtures, app, secret, monkeypatch)
    assert len({len(one) for one in work}) > 1


def test_secrets_move_to_the_newest_key_and_without_keys_nobody_gets_in_by_a_code(fixtures: Any) -> None:
    secret = enrol(fixtures, fixtures.browser("ann", app=with_secrets(fixtures, OLD_SECRET)))
    both, new_only, none = with_secrets(fixtures, SECRET, OLD_SECRET), with_secrets(fixtures), fixtures.app()

    def enter(app: Any) -> int:
        forget_used_codes(fixtures)
        return int(api_sign_in(app, "ann@demo.local", code=code_of(fixtures, secret)).status_code)

    assert [enter(app) for app in (new_only, none, both, new_only)] == [401, 401, 200, 200]
    page = fixtures.at_page("bob@demo.local", none) if fixtures.operator("bob") else None
    assert page is not None
    assert "A second factor cannot be set up here" in page.get("/ops/account").get_data(as_text=True)
    assert page.submit("/ops/account/second-factor", proof=PASSWORD).status_code == 409
    # A secret that was copied to somebody else's row opens nothing.
    bob = fixtures.sql("select operator_id from sentinel.operators where email like 'bob%%'")[0][0]
    fixtures.sql(
        "insert into sentinel.second_factors (tenant_id, operator_id, secret, confirmed_at)"
        " select tenant_id, %s, secret, now() from sentinel.second_factors", bob)  # fmt: skip
    assert api_sign_in(new_only, "bob@demo.local", code=code_of(fixtures, secret)).status_code == 401


def test_a_console_that_requires_a_second_factor_lets_nobody_past_setting_one_up(fixtures: Any) -> None:
    app = with_secrets(fixtures, require_second_factor="everyone")
    browser = fixtures.browser("ann", "admin", app)
    for path in ("/ops/halts", "/ops/operators", "/ops/nope"):
        assert browser.get(path).headers["Location"] == "/ops/account", path
    refused = browser.client.get("/ops/api/halts")
    assert (refused.status_code, refused.json["type"]) == (403, "urn:sentinel:problem:second-factor-required")
    assert browser.submit("/ops/halts", scope="tenant", reason="x").status_code == 403
    enrol(fixtures, browser)
    assert browser.get("/ops/halts").status_code == 200


@pytest.mark.parametrize(
    ("required", "kept_out"),
    [
        (None, {"approver", "admin"}),
        ("approvers", {"approver", "admin"}),
        ("everyone", {"viewer", "approver", "admin"}),
        ("nobody", set()),
    ],
)
def test_who_decides_has_a_second_factor_unless_the_setting_says_otherwise(
    fixtures: Any, required: str | None, kept_out: set[str]
) -> None:
    app = with_secrets(fixtures, require_second_factor=required or ConsoleSettings().require_second_factor)
    found = set()
    for role in ("viewer", "approver", "admin"):
        browser = fixtures.browser(role, role, app)
        page, api = browser.get("/ops/approvals"), browser.client.get("/ops/api/approvals")
        assert (page.status_code, api.status_code) in ((200, 200), (303, 403)), role
        found |= {role} if api.status_code == 403 else set()
    assert found == kept_out


def test_a_viewer_who_becomes_an_approver_sets_one_up_before_deciding(fixtures: Any) -> None:
    app = with_secrets(fixtures, require_second_factor="approvers")
    browser = fixtures.browser("ann", "viewer", app)
    assert browser.get("/ops/approvals").status_code == 200
    fixtures.sql("update sentinel.operators set role = 'approver'")
    assert browser.get("/ops/approvals").headers["Location"] == "/ops/account"
    assert "requires a second factor for the role approver" in browser.get("/ops/account").get_data(as_text=True)
    enrol(fixtures, browser)
    assert browser.get("/ops/approvals").status_code == 200


def test_a_console_without_secrets_says_what_is_missing_unless_nobody_needs_a_second_factor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SENTINEL_DATA_DIR", str(tmp_path))
    for name in ("CONFIRM_SECRETS", "SENTINEL_SECRET_KEYS", "SENTINEL_SECOND_FACTOR_SECRETS"):
        monkeypatch.delenv(name, raising=False)
    for value in (None, "approvers", "everyone"):
        if value is not None:
            monkeypatch.setenv("SENTINEL_REQUIRE_SECOND_FACTOR", value)
        with pytest.raises(UnsafeConfiguration, match="SENTINEL_SECOND_FACTOR_SECRETS"):
            load_console_settings()
    monkeypatch.setenv("SENTINEL_REQUIRE_SECOND_FACTOR", "nobody")
    assert not load_console_settings().requires_second_factor("admin")
    monkeypatch.setenv("SENTINEL_REQUIRE_SECOND_FACTOR", "true")
    with pytest.raises(UnsafeConfiguration, match="SENTINEL_REQUIRE_SECOND_FACTOR"):
        load_console_settings()


def test_a_code_is_read_however_it_is_spaced() -> None:
    assert second_factor.clean_code(" 123-456 ") == "123456"


def test_the_secrets_are_replaced_as_the_page_says_and_two_consoles_refuse_nobody(fixtures: Any) -> None:
    (row,) = (line for line in render().splitlines() if line.startswith("| `SENTINEL_SECOND_FACTOR_SECRETS` | yes"))
    old, new, both = (OLD_SECRET,), (SECRET,), {"Append": (OLD_SECRET, SECRET), "Put": (SECRET, OLD_SECRET)}
    said = [both.get(step.split()[0], new) for step in re.split(r"\d\. ", row)[1:]]
    assert said == [*both.values(), new], "the steps of the page are not the ones that are tried here"
    factor = enrol(fixtures, fixtures.browser("ann", app=with_secrets(fixtures, *old)))
    idle = enrol(fixtures, fixtures.browser("ben", app=with_secrets(fixtures, *old)))

    def enter(secrets: tuple[str, ...], email: str, secret: str) -> int:
        forget_used_codes(fixtures)
        code = code_of(fixtures, secret)
        return int(api_sign_in(with_secrets(fixtures, *secrets), email, code=code).status_code)

    for before, after in itertools.pairwise([old, *said]):
        # One console is restarted already, the other one is not; she is asked by the one and by the other.
        assert [enter(console, "ann@demo.local", factor) for console in (after, before, after)] == [200] * 3, after
    assert enter(new, "ben@demo.local", idle) == 401
    assert "`sentinel operators reset-second-factor EMAIL`" in row
    reset_second_factor(fixtures.pool, fixtures.tenant_id, email="ben@demo.local")
    assert api_sign_in(with_secrets(fixtures, *new), "ben@demo.local").status_code == 200


def begun(browser: Any) -> str:
    """The secret that the page shows now."""
    page = browser.get("/ops/account/second-factor").get_data(as_text=True)
    return re.findall(r'class="secret">([A-Z2-7 ]+)<', page)[0].replace(" ", "")


def test_a_second_factor_whose_confirmation_lost_its_answer_is_confirmed(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: the page said that nothing was changed, and from then on signing in asked for a code."""
    confirm = second_factors.confirm

    def lost(pool: Any, *given: Any, **named: Any) -> bool:
        return confirm(LosesConnection(pool, is_committed=True), *given, **named)

    monkeypatch.setattr(second_factors, "confirm", lost)
    ann = fixtures.browser("ann", app=with_secrets(fixtures))
    enrol(fixtures, ann)
    assert "From now on, signing in asks for a code." in ann.get("/ops/account").text
    assert fixtures.sql("select count(*) from sentinel.events where kind = 'operator_second_factor_set'") == [(1,)]


def test_a_secret_that_was_shown_is_another_when_it_is_begun_anew_or_minutes_later(fixtures: Any) -> None:
    browser = fixtures.browser("ann", app=with_secrets(fixtures), proved=True)
    browser.submit("/ops/account/second-factor")
    first = begun(browser)
    assert begun(browser) == first, "a second tab shows the same"
    browser.submit("/ops/account/second-factor")
    second = begun(browser)
    assert second != first
    fixtures.sql("update sentinel.second_factors set created_at = clock_timestamp() - interval '11 minutes'")
    late = browser.submit("/ops/account/second-factor/confirm", code=code_of(fixtures, second))
    assert late.status_code == 409
    third = begun(browser)
    assert third not in (first, second)
    assert browser.submit("/ops/account/second-factor/confirm", code=code_of(fixtures, second)).status_code == 400
    assert browser.submit("/ops/account/second-factor/confirm", code=code_of(fixtures, third)).status_code == 303
    fixtures.sql("update sentinel.second_factors set created_at = clock_timestamp() - interval '1 year'")
    assert browser.submit("/ops/account/second-factor").status_code == 409, "one that is confirmed stays"


OWN_WORDS = "my own words of the morning"


@pytest.mark.parametrize("act", ["own password", "password_reset", "deactivated", "access_ended", "confirmed before"])
def test_a_second_factor_begun_under_an_old_password_is_gone_with_it(fixtures: Any, act: str) -> None:
    """Somebody who was in the account for a while saw the secret: it is not the one that its owner confirms later."""
    thief = fixtures.browser("ann", app=with_secrets(fixtures), proved=True)
    thief.submit("/ops/account/second-factor")
    seen = begun(thief)
    if act == "confirmed before":
        assert thief.submit("/ops/account/second-factor/confirm", code=code_of(fixtures, seen)).status_code == 303
    if act in ("own password", "confirmed before"):
        done = thief.submit("/ops/account/password", old=PASSWORD, new=OWN_WORDS, again=OWN_WORDS)
        assert done.status_code == 303, done.get_data(as_text=True)
    else:
        fixtures.sql(
            "select sentinel.change_operator(tenant_id, operator_id, %s, password_hash, null, null, 'the machine', gen_random_uuid())"
            " from sentinel.operators", act)  # fmt: skip
    kept = fixtures.sql("select count(*) from sentinel.second_factors")[0][0]
    assert kept == (1 if act == "confirmed before" else 0)
    if act == "own password":
        assert begun(thief) != seen

"""Guessing is slowed down by account and by network, and shuts nobody out from everywhere."""

from __future__ import annotations

from typing import Any

import pytest

from sentinel.services import sign_in
from sentinel.store import sign_in_attempts
from tests.integration.console.conftest import PASSWORD
from tests.integration.console.second_factors import WRONG, code_of, enrol, forget_used_codes, with_secrets

ANN = "ann@demo.local"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords cost nothing to check: these tests are about counting."""
    monkeypatch.setattr(sign_in, "is_right", lambda hashed, password: hashed is not None and password == PASSWORD)


def enter(app: Any, address: str, password: str = WRONG, email: str = ANN, **more: str) -> int:
    """The status that signing in from `address` is answered with."""
    answer = app.test_client().post(
        "/ops/api/session", json={"email": email, "password": password, **more}, environ_base={"REMOTE_ADDR": address}
    )
    return int(answer.status_code)


def later(world: Any, seconds: int) -> None:
    """As if time had gone by."""
    world.sql("update sentinel.sign_in_attempts set attempted_at = attempted_at - make_interval(secs => %s)", seconds)


def hammered(app: Any, networks: int = 100, tries: int = 10) -> list[int]:
    """Wrong tries at one account, from so many networks."""
    return [enter(app, f"10.1.0.{n}") for n in range(networks) for _ in range(tries)]


@pytest.mark.usefixtures("quick")
def test_the_right_password_from_a_new_network_gets_in_past_a_thousand_wrong_ones(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = world.app()
    world.operator("ann")
    answers = hammered(app)
    assert len(answers) == 1000
    # The first ten of the account are looked at, and then the first of each other network.
    assert answers.count(401) == 10 + 99
    assert answers.count(429) == 1000 - 109
    assert enter(app, "192.0.2.7", PASSWORD) == 200
    assert enter(app, "2001:db8::1", PASSWORD) == 200
    # The twin: an account that is full is shut for all networks.
    text = sign_in_attempts.BEGIN_ATTEMPT
    monkeypatch.setattr(sign_in_attempts, "BEGIN_ATTEMPT", text.replace("is_paced or ", ""))
    assert enter(app, "192.0.2.8", PASSWORD) == 429


@pytest.mark.usefixtures("quick")
def test_all_addresses_of_a_customers_network_are_one(world: Any) -> None:
    app = world.app()
    world.operator("ann")
    assert [enter(app, f"2001:db8:0:7::{n:x}") for n in range(1, 12)] == [401] * 10 + [429]
    assert enter(app, "2001:db8:0:8::1") == 401, "the next network"
    assert [enter(app, f"::ffff:10.0.0.{n}", email=f"p{t}@demo.local") for n in (1, 2) for t in range(10)] == [401] * 20


@pytest.mark.usefixtures("quick")
def test_over_the_limit_a_network_still_gets_one_try_in_thirty_seconds(world: Any) -> None:
    app = world.app()
    world.operator("ann")
    assert [enter(app, "10.0.0.1") for _ in range(12)] == [401] * 10 + [429] * 2
    later(world, 31)
    assert [enter(app, "10.0.0.1") for _ in range(3)] == [401, 429, 429]
    later(world, 31)
    assert enter(app, "10.0.0.1", PASSWORD) == 200


@pytest.mark.usefixtures("quick")
def test_who_also_gives_a_second_factor_is_never_shut_out(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = with_secrets(world)
    secret = enrol(world, world.browser("ann", app=app))
    world.operator("bob")
    hammered(app, networks=12)
    forget_used_codes(world)
    # From the attacker's own network too, while nothing else is looked at there.
    assert enter(app, "10.1.0.0", PASSWORD) == 429
    assert enter(app, "10.1.0.0", PASSWORD, code=code_of(world, secret)) == 200
    # A code opens nothing for who has no second factor, and guesses of passwords are not helped by one.
    assert [enter(app, "10.1.0.0", PASSWORD, email="bob@demo.local", code="123456") for _ in range(2)] == [401, 429]
    assert enter(app, "10.1.0.4", WRONG, code=code_of(world, secret, 1)) == 401
    assert enter(app, "10.1.0.4", WRONG, code=code_of(world, secret, 1)) == 429
    # The twin: a full account looks at nothing.
    monkeypatch.setattr(sign_in_attempts, "BEGIN_ATTEMPT", sign_in_attempts.BEGIN_ATTEMPT.replace("or has_code)", ")"))
    assert enter(app, "10.1.0.5", PASSWORD, code=code_of(world, secret, 1)) == 429


@pytest.mark.usefixtures("quick")
def test_who_knows_the_password_gets_thirty_guesses_of_a_code_in_an_hour(world: Any) -> None:
    app = with_secrets(world)
    browser = world.browser("ann", app=app)
    secret = enrol(world, browser)
    seen = [enter(app, f"10.2.0.{n}", PASSWORD, code="000000") for n in range(40)]
    assert seen == [401] * 30 + [429] * 10
    forget_used_codes(world)
    assert enter(app, "10.3.0.1", PASSWORD, code=code_of(world, secret)) == 429
    # The person's own browser is looked at all the same.
    there = {"email": ANN, "password": PASSWORD, "code": code_of(world, secret)}
    assert browser.client.post("/ops/sign-in", data=there).status_code == 303
    later(world, 3601)
    forget_used_codes(world)
    assert enter(app, "10.3.0.1", PASSWORD, code=code_of(world, secret)) == 200


def test_a_step_up_asks_for_the_second_factor_of_who_has_one(world: Any) -> None:
    app = with_secrets(world)
    browser = world.browser("ann", "admin", app)
    secret = enrol(world, browser)
    world.sql("update sentinel.operator_sessions set stepped_up_at = null")
    forget_used_codes(world)
    assert "second factor shows now" in browser.get("/ops/account").get_data(as_text=True)
    headers = {"X-CSRF-Token": browser.csrf}
    assert browser.submit("/ops/account/prove", proof=PASSWORD).status_code == 400
    told = browser.client.post("/ops/api/session/step-up", json={"password": PASSWORD}, headers=headers)
    assert told.status_code == 400 and "second factor" in str(told.json["errors"])
    code = {"code": code_of(world, secret)}
    assert browser.client.post("/ops/api/session/step-up", json=code, headers=headers).status_code == 204

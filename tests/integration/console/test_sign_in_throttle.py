"""Guessing is slowed down by account and by network, and shuts nobody out from everywhere."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ops_console import periodic, serving
from ops_console.accounts import sessions, sign_in, sign_in_attempts, step_up
from ops_console.accounts.operator_changes import change_operator
from ops_console.accounts.sign_in import Authenticator, PresentedCredentials
from ops_console.accounts.sign_in_attempts import Attempt, Throttle, begin_attempt
from sentinel.authority.metrics import read_figures
from sentinel.authority.protected_changes import RESET_SECOND_FACTOR
from sentinel.core.errors import RateLimited, Unauthenticated
from sentinel.core.hosts import network_of
from tests.integration.console.conftest import PASSWORD
from tests.integration.console.second_factors import WRONG, code_of, enrol, forget_used_codes, with_secrets
from tests.support.ledger_fixtures import wait_until

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


def later(fixtures: Any, seconds: int) -> None:
    """As if time had gone by."""
    fixtures.sql(
        "update sentinel.sign_in_attempts set attempted_at = attempted_at - make_interval(secs => %s)", seconds
    )


def hammered(app: Any, networks: int = 100, tries: int = 10) -> list[int]:
    """Wrong tries at one account, from so many networks."""
    return [enter(app, f"10.1.0.{n}") for n in range(networks) for _ in range(tries)]


@pytest.mark.usefixtures("quick")
def test_the_right_password_from_a_new_network_gets_in_past_a_thousand_wrong_ones(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = fixtures.app()
    fixtures.operator("ann")
    answers = hammered(app)
    assert len(answers) == 1000
    # The first ten of the account are looked at, and then the first of each other network.
    assert answers.count(401) == 10 + 99
    assert answers.count(429) == 1000 - 109
    assert enter(app, "192.0.2.7", PASSWORD) == 200
    assert enter(app, "2001:db8::1", PASSWORD) == 200
    # The mutant: an account that is full is shut for all networks.
    text = sign_in_attempts.BEGIN_ATTEMPT
    monkeypatch.setattr(sign_in_attempts, "BEGIN_ATTEMPT", text.replace("is_paced or ", ""))
    assert enter(app, "192.0.2.8", PASSWORD) == 429


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("sent", ["", '"', 'x="y', '1.1.1.1, "', "2.2.2.2, \\"])
def test_an_attempt_counts_for_the_address_that_the_proxy_saw_whatever_its_client_sent(
    fixtures: Any, sent: str
) -> None:
    app = fixtures.app(trusted_proxies=1)
    told = f"{sent}, 203.0.113.9" if sent else "203.0.113.9"
    body = {"email": ANN, "password": WRONG}
    assert app.test_client().post("/ops/api/session", json=body, headers={"X-Forwarded-For": told}).status_code == 401
    assert fixtures.sql("select address, network from sentinel.sign_in_attempts") == [("203.0.113.9", "203.0.113.9")]


@pytest.mark.usefixtures("quick")
def test_all_addresses_of_a_customers_network_are_one(fixtures: Any) -> None:
    app = fixtures.app()
    fixtures.operator("ann")
    assert [enter(app, f"2001:db8:0:7::{n:x}") for n in range(1, 12)] == [401] * 10 + [429]
    assert enter(app, "2001:db8:0:8::1") == 401, "the next network"
    assert [enter(app, f"::ffff:10.0.0.{n}", email=f"p{t}@demo.local") for n in (1, 2) for t in range(10)] == [401] * 20


def looked_at(app: Any, addresses: Iterable[str], **more: Any) -> int:
    """How many wrong tries, one from each address, had their password looked at."""
    return [enter(app, address, **more) for address in addresses].count(401)


SITE = "2001:db8:1:"
"""A /48: 65,536 networks of 64 bits, 256 of 56."""


@pytest.mark.usefixtures("quick")
def test_the_many_networks_of_one_ipv6_customer_are_slowed_as_one(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = fixtures.app()
    fixtures.operator("ann")
    # Of one /56 as many as of two networks, and of one /48 as many as of four; then one in thirty seconds of all of it.
    assert looked_at(app, (f"{SITE}{n:x}::1" for n in range(100))) == 20
    assert looked_at(app, (f"{SITE}{n:x}::1" for n in range(0x100, 0x4000, 0x100))) == 20
    later(fixtures, 31)
    assert looked_at(app, (f"{SITE}{n:x}::1" for n in range(0x4000, 0x6000, 0x40))) == 1
    assert enter(app, "2001:db8:2:1::1", PASSWORD) == 200, "the next customer"
    # The mutant: what only counts networks looks at each of them.
    monkeypatch.setattr(sign_in_attempts, "WIDER", ())
    assert looked_at(app, (f"{SITE}{n:x}::1" for n in range(0x6000, 0x6040))) == 64


@pytest.mark.usefixtures("quick")
def test_an_account_that_is_guessed_from_everywhere_is_looked_at_so_often_and_shuts_out_nobody_who_is_known(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, browser, secret = with_second_factor(fixtures)
    fixtures.operator("bob")
    assert enter(app, "192.0.2.7", PASSWORD, email="bob@demo.local") == 200
    forget_used_codes(fixtures)
    assert looked_at(app, (f"10.{n // 200}.0.{n % 200}" for n in range(220)), email="bob@demo.local") == 200
    assert enter(app, "198.51.100.7", PASSWORD, email="bob@demo.local") == 429, "a network that nobody came in from"
    assert enter(app, "192.0.2.7", PASSWORD, email="bob@demo.local") == 200, "and one that somebody did"
    assert looked_at(app, (f"10.{n // 200}.1.{n % 200}" for n in range(220))) == 200
    assert enter(app, "198.51.100.7", PASSWORD, code=code_of(fixtures, secret)) == 200, "with a code"
    there = {"email": ANN, "password": PASSWORD, "code": code_of(fixtures, secret, 1)}
    assert browser.client.post("/ops/sign-in", data=there).status_code == 303, "in a known browser"
    later(fixtures, 301)
    assert enter(app, "198.51.100.7", PASSWORD, email="bob@demo.local") == 200
    # The mutant: without a bound each network never seen has its try.
    monkeypatch.setattr(
        sign_in_attempts, "BEGIN_ATTEMPT", sign_in_attempts.BEGIN_ATTEMPT.replace("and not is_beyond", "")
    )
    assert looked_at(app, (f"10.{n // 200}.2.{n % 200}" for n in range(220))) == 220


@pytest.mark.usefixtures("never_right")
def test_guessing_many_accounts_from_everywhere_is_bounded_over_all(fixtures: Any) -> None:
    def tries(prefix: str) -> int:
        throttle = Throttle(overall=20, overall_most=50)
        found = [
            begin_attempt(fixtures.pool, email=f"p{n}@demo.local", address=f"{prefix}.{n}", throttle=throttle)
            for n in range(100)
        ]
        assert all(one.attempt_id is not None or 0 < one.retry_after_seconds <= 30 for one in found)
        return sum(one.attempt_id is not None for one in found)

    assert [tries("10.0.0"), tries("10.0.1")] == [50, 0]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("198.51.100.7:40001", "198.51.100.7"), ("[2001:db8:1:2::9]:443", "2001:db8:1:2::/64"), ("[2001:db8:1:2::9]", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9%eth0", "2001:db8:1:2::/64"), ("::1", "::/64"), ("0:0:0:5::9", "0:0:0:5::/64"), ("::ffff:10.0.0.1", "10.0.0.1"),
        ("64:ff9b::c000:201", "192.0.2.1"), ("[64:ff9b::203.0.113.7]:443", "203.0.113.7"), ("64:ff9b::1:c000:201", "64:ff9b::/64"),
        ("unknown", "unknown"), ("1.2.3.4:x", "1.2.3.4:x"), ("dead/64", "dead/64"), (":::/64", ":::/64"), ("[", "["), ("[]", "[]"), ("[]:80", "[]:80"), ("", ""),
    ],
)  # fmt: skip
def test_an_address_is_of_one_network_however_a_proxy_writes_it(fixtures: Any, address: str, network: str) -> None:
    assert network_of(address) == network
    for _ in range(2):
        assert begin_attempt(fixtures.pool, email=ANN, address=address, throttle=Throttle()).attempt_id is not None


@pytest.mark.usefixtures("quick")
def test_over_the_limit_a_network_still_gets_one_try_in_thirty_seconds(fixtures: Any) -> None:
    app = fixtures.app()
    fixtures.operator("ann")
    assert [enter(app, "10.0.0.1") for _ in range(12)] == [401] * 10 + [429] * 2
    later(fixtures, 31)
    assert [enter(app, "10.0.0.1") for _ in range(3)] == [401, 429, 429]
    later(fixtures, 31)
    assert enter(app, "10.0.0.1", PASSWORD) == 200


@pytest.mark.usefixtures("quick")
def test_who_guesses_one_account_slows_colleagues_of_the_network_and_shuts_none_out(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = fixtures.app()
    for name in ("ann", "bob", "carl"):
        fixtures.operator(name)
    bob, carl = "bob@demo.local", "carl@demo.local"
    assert [enter(app, "10.0.0.1") for _ in range(200)] == [401] * 10 + [429] * 190
    later(fixtures, 31)
    assert [enter(app, "10.0.0.1") for _ in range(20)] == [401] + [429] * 19
    # Bob is looked at while Ann is being guessed, and after a slip of his own once more when thirty seconds are over.
    assert [enter(app, "10.0.0.1", email=bob), enter(app, "10.0.0.1", PASSWORD, email=bob)] == [401, 429]
    later(fixtures, 31)
    assert [enter(app, "10.0.0.1") for _ in range(20)] == [401] + [429] * 19
    assert enter(app, "10.0.0.1", PASSWORD, email=bob) == 200
    # The mutant: one pace for the whole network leaves nothing to whoever does not guess.
    later(fixtures, 31)
    monkeypatch.setattr(
        sign_in_attempts, "BEGIN_ATTEMPT",
        sign_in_attempts.BEGIN_ATTEMPT.replace("max(attempted_at) filter (where is_ours) as ours_last", "max(attempted_at) as ours_last"),
    )  # fmt: skip
    assert [enter(app, "10.0.0.1"), enter(app, "10.0.0.1", PASSWORD, email=carl)] == [401, 429]


@pytest.mark.usefixtures("never_right")
def test_past_its_limit_a_network_begins_one_more_account_in_thirty_seconds(fixtures: Any) -> None:
    app = fixtures.app()
    looked_at = []
    for _ in range(4):
        looked_at.append([enter(app, "10.0.0.1", email=f"p{n}@demo.local") for n in range(40)].count(401))
        later(fixtures, 31)
    assert looked_at == [10, 11, 12, 13]


@pytest.mark.usefixtures("quick")
def test_who_also_gives_a_second_factor_is_never_shut_out(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = with_secrets(fixtures)
    secret = enrol(fixtures, fixtures.browser("ann", app=app))
    fixtures.operator("bob")
    hammered(app, networks=12)
    forget_used_codes(fixtures)
    # From the attacker's own network too, while nothing else is looked at there.
    assert enter(app, "10.1.0.0", PASSWORD) == 429
    assert enter(app, "10.1.0.0", PASSWORD, code=code_of(fixtures, secret)) == 200
    # A code opens nothing for who has no second factor, and guesses of passwords are not helped by one.
    assert [enter(app, "10.1.0.0", PASSWORD, email="bob@demo.local", code="123456") for _ in range(2)] == [401, 429]
    assert enter(app, "10.1.0.4", WRONG, code=code_of(fixtures, secret, 1)) == 401
    assert enter(app, "10.1.0.4", WRONG, code=code_of(fixtures, secret, 1)) == 429
    # The mutant: a full account looks at nothing.
    monkeypatch.setattr(sign_in_attempts, "BEGIN_ATTEMPT", sign_in_attempts.BEGIN_ATTEMPT.replace("or has_code)", ")"))
    assert enter(app, "10.1.0.5", PASSWORD, code=code_of(fixtures, secret, 1)) == 429


@pytest.mark.usefixtures("quick")
def test_who_knows_the_password_gets_thirty_guesses_of_a_code_in_an_hour(fixtures: Any) -> None:
    app, browser, secret = with_second_factor(fixtures)
    seen = [enter(app, f"10.2.0.{n}", PASSWORD, code="000000") for n in range(40)]
    assert seen == [401] * 30 + [429] * 10
    forget_used_codes(fixtures)
    assert enter(app, "10.3.0.1", PASSWORD, code=code_of(fixtures, secret)) == 429
    # The person's own browser is looked at all the same.
    there = {"email": ANN, "password": PASSWORD, "code": code_of(fixtures, secret)}
    assert browser.client.post("/ops/sign-in", data=there).status_code == 303
    later(fixtures, 3601)
    forget_used_codes(fixtures)
    assert enter(app, "10.3.0.1", PASSWORD, code=code_of(fixtures, secret)) == 200


def guessed(fixtures: Any, browser: Any, tries: int, code: str = "000000") -> list[int]:
    """The statuses of so many wrong codes with the right password in a known browser, five minutes apart."""
    seen = []
    for _ in range(tries):
        there = {"email": ANN, "password": PASSWORD, "code": code}
        seen.append(int(browser.client.post("/ops/sign-in", data=there).status_code))
        later(fixtures, 301)
    return seen


def with_second_factor(fixtures: Any) -> tuple[Any, Any, str]:
    """A console, a browser of ann's that it knows, and the secret of her second factor."""
    app = with_secrets(fixtures)
    browser = fixtures.browser("ann", app=app)
    return app, browser, enrol(fixtures, browser)


def guess_events(fixtures: Any) -> list[Any]:
    """(whose, after how many codes) of the events of guessed codes."""
    found: list[Any] = fixtures.sql(
        "select body::jsonb ->> 'operator', (body::jsonb ->> 'codes')::int from sentinel.events"
        " where kind = 'operator_code_guessed' order by occurred_at"
    )
    return found


@pytest.mark.usefixtures("quick")
def test_who_copied_a_known_browsers_cookie_and_knows_the_password_gets_fifty_guesses_and_is_told_of(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, browser, secret = with_second_factor(fixtures)
    thief, other = browser.client, fixtures.at_page(ANN, app, code=code_of(fixtures, secret, 1))
    forget_used_codes(fixtures)
    assert guessed(fixtures, browser, 4) == [401] * 4 and guess_events(fixtures) == []
    assert guessed(fixtures, browser, 46) == [401] * 46
    assert guess_events(fixtures) == [(ANN, 5)], "once"
    assert guessed(fixtures, browser, 2) == [429] * 2
    assert enter(app, "10.3.0.1", PASSWORD, code=code_of(fixtures, secret)) == 429, (
        "the day's guesses are the account's"
    )
    # The owner's other browser is looked at, and the copied one is none any more, also when the day is over.
    there = {"email": ANN, "password": PASSWORD, "code": code_of(fixtures, secret)}
    assert other.client.post("/ops/sign-in", data=there).status_code == 303
    forget_used_codes(fixtures)
    fixtures.sql("delete from sentinel.sign_in_attempts")
    assert [enter(app, f"10.4.0.{n}", PASSWORD, code="000000") for n in range(30)] == [401] * 30
    assert thief.post("/ops/sign-in", data=there).status_code == 429
    # The mutant: a known browser has a throttle of its own and no other.
    text = sign_in_attempts.BEGIN_ATTEMPT
    monkeypatch.setattr(sign_in_attempts, "BEGIN_ATTEMPT", text.replace(">= %(daily)s as is_spent", "< 0 as is_spent"))
    assert guessed(fixtures, other, 60) == [401] * 60


@pytest.mark.usefixtures("quick")
def test_an_administrator_who_changes_the_account_lets_its_owner_in_again_and_is_told_anew(fixtures: Any) -> None:
    app = with_secrets(fixtures)
    browser, ada = fixtures.browser("ann", app=app), fixtures.operator("ada", "admin")
    enrol(fixtures, browser)
    for _ in range(2):
        guesses = [enter(app, f"10.2.0.{n}", PASSWORD, code="000000") for n in range(40)]
        assert guesses == [401] * 30 + [429] * 10
        (operator_id,) = fixtures.sql("select operator_id from sentinel.operators where email = %s", ANN)[0]
        change_operator(fixtures.pool, ada, operator_id, RESET_SECOND_FACTOR)
        later(fixtures, 301)
        assert enter(app, "10.3.0.1", PASSWORD) == 200
        enrol(fixtures, fixtures.at_page(ANN, app))
    assert guess_events(fixtures) == [(ANN, 5)] * 2
    bob = fixtures.operator("bob")
    assert [enter(app, f"10.5.0.{n}", email=bob.email, code="000000") for n in range(9)] == [401] * 9
    assert len(guess_events(fixtures)) == 2, "wrong passwords are no guesses of codes"
    assert read_figures(fixtures.authority.pool).codes_guessed == 2


@pytest.mark.usefixtures("quick")
def test_guesses_of_codes_count_on_where_an_account_was_changed_ahead_of_the_clock(fixtures: Any) -> None:
    app, _, _ = with_second_factor(fixtures)
    fixtures.sql("update sentinel.operators set changed_by_another_at = clock_timestamp() + interval '1 hour'")
    assert [enter(app, f"10.2.0.{n}", PASSWORD, code="000000") for n in range(40)] == [401] * 30 + [429] * 10
    assert guess_events(fixtures) == [(ANN, 5)], "once"


def test_a_session_in_which_fifty_proofs_were_wrong_is_over(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_up, "is_right", lambda hashed, proof: proof == PASSWORD)
    app = fixtures.app()
    stolen, own = fixtures.browser("ann", app=app), fixtures.at_page(ANN, app)
    for _ in range(50):
        assert stolen.submit("/ops/account/prove", proof=WRONG).status_code == 400
        later(fixtures, 301)
    assert stolen.submit("/ops/account/prove", proof=PASSWORD).status_code == 429
    assert stolen.get("/ops/account").headers["Location"].startswith("/ops/sign-in")
    assert own.submit("/ops/account/prove", proof=PASSWORD).status_code == 303


def test_a_step_up_asks_for_the_second_factor_of_who_has_one(fixtures: Any) -> None:
    app = with_secrets(fixtures)
    browser = fixtures.browser("ann", "admin", app)
    secret = enrol(fixtures, browser)
    fixtures.sql("update sentinel.operator_sessions set stepped_up_at = null")
    forget_used_codes(fixtures)
    assert "second factor shows now" in browser.get("/ops/account").get_data(as_text=True)
    headers = {"X-CSRF-Token": browser.csrf}
    assert browser.submit("/ops/account/prove", proof=PASSWORD).status_code == 400
    told = browser.client.post("/ops/api/session/step-up", json={"password": PASSWORD}, headers=headers)
    assert told.status_code == 400 and "second factor" in str(told.json["errors"])
    code = {"code": code_of(fixtures, secret)}
    assert browser.client.post("/ops/api/session/step-up", json=code, headers=headers).status_code == 204


def guesses_looked_at(fixtures: Any, guesses: int = 50) -> int:
    """How many of so many simultaneous wrong guesses at one account from one network had their password looked at."""

    def guess(number: int) -> bool:
        try:
            shown = PresentedCredentials("ann@demo.local", f"wrong {number}", address="10.0.0.1")
            sign_in.sign_in(fixtures.pool, shown, Authenticator())
        except RateLimited:
            return False
        except Unauthenticated:
            return True
        raise AssertionError("a wrong password got in")

    with ThreadPoolExecutor(max_workers=guesses) as threads:
        looked_at = sum(threads.map(guess, range(guesses)))
    print(f"N={guesses} guesses at once, {looked_at} looked at")
    return looked_at


@pytest.fixture
def never_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords are never right and cost nothing: these tests are about counting."""
    monkeypatch.setattr(sign_in, "is_right", lambda *_: False)


@pytest.mark.usefixtures("never_right")
@pytest.mark.usefixtures("patient")
def test_fifty_guesses_at_once_count_fifty_and_ten_are_looked_at(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixtures.pool, "_wait_seconds", 30)
    fixtures.operator("ann")
    assert guesses_looked_at(fixtures) == 10


@pytest.mark.usefixtures("never_right")
@pytest.mark.usefixtures("patient")
def test_counting_first_and_noting_later_would_look_at_more(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixtures.pool, "_wait_seconds", 30)
    everybody = threading.Barrier(50)

    def count_then_note(pool: Any, *, email: str, address: str, throttle: Throttle, **rest: Any) -> Attempt:
        count = fixtures.sql("select count(*) from sentinel.sign_in_attempts")[0][0]
        everybody.wait()
        if count >= throttle.account:
            return Attempt(None, 60)
        return begin_attempt(pool, email=email, address=address, throttle=Throttle(1000, 1000, 1000), **rest)

    monkeypatch.setattr(sign_in, "begin_attempt", count_then_note)
    assert guesses_looked_at(fixtures) > 10


@pytest.mark.usefixtures("never_right")
def test_one_address_cannot_guess_over_many_accounts(fixtures: Any) -> None:
    client = fixtures.app().test_client()
    answers = [
        client.post("/ops/api/session", json={"email": f"p{n}@demo.local", "password": "x"}).status_code
        for n in range(11)
    ]
    assert answers == [401] * 10 + [429]


@pytest.mark.usefixtures("never_right")
def test_the_refusal_says_when_to_come_back_and_does_not_move_the_end(fixtures: Any) -> None:
    client = fixtures.app().test_client()
    body = {"email": "ann@demo.local", "password": "x"}
    for _ in range(10):
        client.post("/ops/api/session", json=body)
    first, second = (client.post("/ops/api/session", json=body) for _ in range(2))
    assert first.status_code == second.status_code == 429
    assert 0 < int(second.headers["Retry-After"]) <= int(first.headers["Retry-After"]) <= 300
    fixtures.sql("update sentinel.sign_in_attempts set attempted_at = attempted_at - interval '5 minutes'")
    assert client.post("/ops/api/session", json=body).status_code == 401


def test_a_success_of_ones_own_does_not_wipe_out_guesses(fixtures: Any) -> None:
    fixtures.operator("ann")
    fixtures.operator("bob")
    door = Authenticator(throttle=Throttle(account=3, address=3))

    def attempt(email: str, password: str) -> str:
        try:
            sign_in.sign_in(fixtures.pool, PresentedCredentials(email, password, address="10.0.0.1"), door)
        except (Unauthenticated, RateLimited) as error:
            return error.code
        return "in"

    seen = [attempt("ann@demo.local", "wrong"), attempt("bob@demo.local", PASSWORD), attempt("ann@demo.local", "wrong"),
            attempt("bob@demo.local", PASSWORD), attempt("ann@demo.local", "wrong"), attempt("ann@demo.local", PASSWORD)]  # fmt: skip
    assert seen == ["unauthenticated", "in", "unauthenticated", "in", "unauthenticated", "rate-limited"]


def test_right_sign_ins_are_not_throttled(fixtures: Any) -> None:
    fixtures.operator("ann")
    app = fixtures.app()
    for _ in range(12):
        fixtures.sign_in("ann@demo.local", app)
    assert sign_in_attempts.sweep(fixtures.pool) == 0


def test_attempts_and_sessions_that_are_long_over_are_deleted_and_no_others(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periodic, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(sign_in_attempts, "SWEPT_AT_ONCE", 2)
    monkeypatch.setattr(sessions, "SWEPT_AT_ONCE", 2)
    fixtures.operator("ann")
    app = fixtures.app()

    def there() -> list[int]:
        return [
            fixtures.sql(f"select count(*) from sentinel.{table}")[0][0]
            for table in ("sign_in_attempts", "operator_sessions")
        ]

    for _ in range(5):
        fixtures.sign_in(ANN, app)
    later(fixtures, 86_400)
    fixtures.sql("update sentinel.operator_sessions set expires_at = clock_timestamp() - interval '30 days'")
    fixtures.sign_in(ANN, app)
    fixtures.sign_in(ANN, app)
    later(fixtures, 60)
    fixtures.sql(
        "update sentinel.operator_sessions set expires_at = clock_timestamp() - interval '29 days'"
        " where session_hash = (select max(session_hash) from sentinel.operator_sessions where expires_at > clock_timestamp())"
    )
    is_over = False
    periodic.start_sweeper(fixtures.pool, stopping=lambda: is_over)
    try:
        wait_until(lambda: there() == [2, 2])
    finally:
        is_over = True


def test_every_periodic_task_is_started_by_the_console_that_serves_operators() -> None:
    tasks = {name for name in vars(periodic) if name.startswith("start_")} - {"start_periodic"}
    assert tasks == set(re.findall(r"^ +(start_\w+)\(", inspect.getsource(serving), re.MULTILINE))

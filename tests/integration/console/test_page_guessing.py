"""Guessing at the sign-in page is throttled without locking out the browser that its person used before."""

from __future__ import annotations

from typing import Any

import pytest

from ops_console.accounts import known_devices, sign_in
from ops_console.accounts.known_devices import Devices
from tests.integration.console.conftest import PASSWORD
from tests.integration.console.second_factors import OLD_SECRET, WRONG, with_secrets


def test_hammering_an_account_does_not_lock_its_known_browser_out(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = with_secrets(fixtures)
    browser = fixtures.browser("ann", app=app)
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
    fixtures.operator("bob")
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
    fixtures.sql("delete from sentinel.sign_in_attempts")
    fixtures.sql("update sentinel.known_devices set last_signed_in_at = clock_timestamp() - interval '89 days'")
    assert [page(attacker, password=WRONG) for _ in range(11)][-1] == 429
    assert page(browser.client) == 303, "and coming in makes it known anew"
    assert fixtures.sql(
        "select min(clock_timestamp() - last_signed_in_at) < interval '1 h' from sentinel.known_devices"
    ) == [(True,)]
    fixtures.sql("update sentinel.known_devices set last_signed_in_at = clock_timestamp() - interval '91 days'")
    assert page(browser.client) == 429
    with monkeypatch.context() as mutant:
        mutant.setattr(known_devices, "KNOWN_SECONDS", 10_000 * 86_400)
        assert page(browser.client) == 303
    fixtures.sql("update sentinel.known_devices set last_signed_in_at = clock_timestamp() - interval '91 days'")
    fixtures.sql("delete from sentinel.sign_in_attempts")
    assert page(browser.client) == 303
    renamed = browser.client.get_cookie(name)
    assert renamed is not None and renamed.value != known.value, "a forgotten browser gets another name"
    assert fixtures.sql("select count(*) from sentinel.known_devices") == [(1,)], "what is over is not kept"
    # The mutant: a console that knows no browser.
    fixtures.sql("delete from sentinel.sign_in_attempts")
    monkeypatch.setattr(Devices, "known", lambda *_: None)
    assert [page(attacker, password=WRONG) for _ in range(11)][-1] == 429
    assert page(browser.client) == 429

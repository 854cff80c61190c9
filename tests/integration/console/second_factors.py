"""Second factors for the tests of pages: a console that keeps them, setting one up as a person would, its codes."""

from __future__ import annotations

import re
from typing import Any

import pyotp

from tests.integration.console.conftest import PASSWORD

SECRET, OLD_SECRET = "one-secret-for-tests-0123456789abcdef", "old-secret-for-tests-0123456789abcdef"
WRONG = "wrong wrong wrong"


def with_secrets(fixtures: Any, *secrets: str, **settings: Any) -> Any:
    return fixtures.app(second_factor_secrets=secrets or (SECRET,), **settings)


def code_of(fixtures: Any, secret: str, steps: int = 0) -> str:
    """The code that the app shows by the database's clock, so many steps from now."""
    now = fixtures.sql("select floor(extract(epoch from clock_timestamp()) / 30)::bigint")[0][0]
    return pyotp.HOTP(secret).at(now + steps)


def forget_used_codes(fixtures: Any) -> None:
    """As if time had gone by."""
    fixtures.sql("update sentinel.second_factors set last_step = 0")


def enrol(fixtures: Any, browser: Any) -> str:
    """Set a second factor up as the page has it done; the secret."""
    assert browser.submit("/ops/account/second-factor", proof=PASSWORD).status_code == 303
    page = browser.get("/ops/account/second-factor").get_data(as_text=True)
    secret = re.search(r'class="secret">([A-Z2-7 ]+)<', page)
    assert secret is not None, page
    shown = secret[1].replace(" ", "")
    done = browser.submit("/ops/account/second-factor/confirm", code=code_of(fixtures, shown))
    assert done.headers["Location"] == "/ops/account"
    return shown


def api_sign_in(app: Any, email: str, password: str = PASSWORD, **more: str) -> Any:
    return app.test_client().post("/ops/api/session", json={"email": email, "password": password, **more})

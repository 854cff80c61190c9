"""Strict-Transport-Security: on what goes out over TLS, and never on the word of who is not trusted."""

from __future__ import annotations

import pytest
from flask import Flask

from sentinel.platform.http import https_only, problems


@pytest.mark.parametrize(
    ("behind_tls", "proxies", "scheme", "told", "said"),
    [
        (False, 0, "http", None, False),
        (False, 0, "https", None, True),
        (True, 0, "http", None, True),
        (False, 0, "http", "https", False),
        (False, 1, "http", "https", True),
        (False, 1, "http", "http, https", True),
        (False, 1, "http", "https, http", False),
        (False, 2, "http", "https, http", True),
        (False, 2, "http", "https", False),
        (False, 1, "http", "HTTPS", True),
        (False, 1, "http", "", False),
        (False, 1, "https", None, True),
        (False, 1, "https", "http", False),
    ],
)
def test_what_came_over_tls_says_so(behind_tls: bool, proxies: int, scheme: str, told: str | None, said: bool) -> None:
    app = Flask("https_only", static_folder=None)
    https_only.install(app, behind_tls=behind_tls, trusted_proxies=proxies)
    problems.register(app)
    headers = {} if told is None else {"X-Forwarded-Proto": told}
    # 404: refusals say it too.
    answer = app.test_client().get("/", headers=headers, base_url=f"{scheme}://console.example")
    assert answer.headers.get("Strict-Transport-Security") == ("max-age=31536000" if said else None)

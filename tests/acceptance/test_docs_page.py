"""The documentation page in a real browser: it shows every operation, and its strict policy blocks nothing it needs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.served_programs import Served, request

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_the_docs_page_works_under_its_own_strict_policy(served: Served, chromium: Any) -> None:
    policy = request("GET", f"{served.url}/docs").headers["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    complaints: list[str] = []
    elsewhere: list[str] = []
    page = chromium.new_page()
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request", lambda asked: None if asked.url.startswith((served.url, "data:")) else elsewhere.append(asked.url)
    )
    page.goto(f"{served.url}/docs")
    page.wait_for_selector(".opblock", timeout=60_000)
    shown = page.locator(".opblock").count()
    document = request("GET", f"{served.url}/openapi.json").json
    assert shown == sum(len(path) for path in document["paths"].values())
    page.locator(".opblock").first.click()
    page.wait_for_selector(".opblock-body", timeout=60_000)
    page.close()
    assert (complaints, elsewhere) == ([], [])

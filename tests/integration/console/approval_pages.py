"""The pages of approvals as a browser meets them: what is listed, a card, and deciding on what it shows."""

from __future__ import annotations

import re
from typing import Any

ZERO = "sha256:" + "0" * 64


def card(browser: Any, approval_id: Any) -> str:
    answer = browser.get(f"/ops/approvals/{approval_id}")
    assert answer.status_code == 200, answer.get_data(as_text=True)
    return str(answer.get_data(as_text=True))


def digest_on(page: str) -> str:
    """The digest that the form would post back."""
    return re.findall(r'name="digest" value="([^"]+)"', page)[0]


def say(browser: Any, approval_id: Any, verdict: str = "approve", **more: Any) -> Any:
    """Give a word on what is shown now."""
    fields = {"verdict": verdict, "reason": "looked at it", "digest": digest_of(browser, approval_id), **more}
    return browser.submit(f"/ops/approvals/{approval_id}", **fields)


def digest_of(browser: Any, approval_id: Any) -> str:
    return str(browser.get(f"/ops/api/approvals/{approval_id}").json["digest"])


def listed(browser: Any, query: str = "") -> list[str]:
    """The ids of the queue's page, in its order."""
    page = browser.get(f"/ops/approvals{query}").get_data(as_text=True)
    return re.findall(r'<a href="/ops/approvals/([0-9a-f-]{36})[?"]', page)


def votes(fixtures: Any, approval_id: Any) -> int:
    return int(fixtures.sql("select count(*) from sentinel.approval_votes where approval_id = %s", approval_id)[0][0])

"""What tests of an operation's life share: a policy that changes, and an operation that waits for a person."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from sentinel.platform.resources import policies_dir
from tests.support.fixtures import Fixtures, guard_body, unique

Body = dict[str, Any]


def policy_change(fixtures: Fixtures, tmp_path: Path, old: str, new: str) -> None:
    """From now on the fixtures decides by the retail policy with one text replaced."""
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder, ignore=shutil.ignore_patterns("cases", "*.py", "*.md"))
    text = (folder / "retail_refund.yaml").read_text()
    assert old in text
    (folder / "retail_refund.yaml").write_text(text.replace(old, new))
    fixtures.authority.policies.directory = folder
    fixtures.authority.policies.reload()


def pending(fixtures: Fixtures, value: int = 200, **over: Any) -> tuple[Body, Body]:
    """(request, answer) of an operation that waits for a person."""
    body = guard_body(value=value, params={"account_ref": unique("acct"), **over.pop("params", {})}, **over)
    answer = fixtures.guard(body)
    assert answer["status"] == "pending"
    return body, answer


def fill_account(fixtures: Fixtures, account: str) -> None:
    """Use up the account's day."""
    for _ in range(2):
        assert fixtures.guard(guard_body(value=150, params={"account_ref": account}))["decision"] == "ALLOW"

"""Words for people: numbers of things, and what somebody else wrote."""

from __future__ import annotations

import json
import re

import pytest

from ops_console.pages.text import visible
from sentinel.authority.protected_changes import change_text
from sentinel.cli import switches
from sentinel.core.wording import counted, named, unlinked
from sentinel.store.invariants import InvariantResult


@pytest.mark.parametrize(
    ("count", "things", "words"),
    [(0, ("row",), "0 rows"), (1, ("row",), "1 row"), (2000, ("row",), "2,000 rows"),
     (1, ("row waits", "rows wait"), "1 row waits"), (2, ("person", "people"), "2 people")],
)  # fmt: skip
def test_one_is_one_and_more_are_several(count: int, things: tuple[str, ...], words: str) -> None:
    assert counted(count, *things) == words


def test_one_is_told_as_one_by_pages_and_commands() -> None:
    """The finding: "1 minutes ago", "for 1 days", "after 1 hours", "1 violations of" and "1 spaces"."""
    lasts = {"expires_seconds": 86_400, "overlap_seconds": 3_600}
    asked = {"action": "key.rotate", "params": {"old_key_id": "k", "agent_id": "a", "scopes": ["check"], **lasts}}
    told = "Successor of key k, for agent a with the scope check, for 1 day; the old one expires after 1 hour"
    assert change_text(json.dumps(asked)) == told
    assert InvariantResult("one", "no damage", 1, ("x",)).summary == "1 violation of: no damage: x"
    assert [switches._age(seconds) for seconds in (60, 120, 7200, 172_800)] == [
        "1 minute",
        "2 minutes",
        "2 hours",
        "2 days",
    ]
    assert 'title="1 space"' in visible(" a") and 'title="1 more character"' in visible("a" * 2001)


@pytest.mark.parametrize(
    ("given", "shown"),
    [("https://evil.example/ops/1", "https:// evil. example/ ops/ 1"), ("www.evil.example", "www. evil. example"),
     ("kim@evil.example", "kim@ evil. example"), ("@channel", "@ channel"), ("//evil", "// evil"), ("10.0.0.1/x", "10. 0. 0.1/ x"),
     ("s3://1bucket", "s3:// 1bucket"), ("x1.com", "x1. com"), ("evil\u3002com", "evil\u3002 com"), ("refund.create", "refund. create")],
)  # fmt: skip
def test_what_could_be_a_link_or_a_mention_is_none(given: str, shown: str) -> None:
    assert (unlinked(given), named(given)) == (shown, f'"{shown}"')
    assert unlinked(shown) == shown
    assert not re.search(r"[.:/@\u3002][a-z]", shown)


@pytest.mark.parametrize(
    "text", ["retail-refund-agent", "900.00 USD", "1,234.50", "2026-11-26T12:30:00Z", "Why: it waits. Look.", ""]
)
def test_what_could_be_none_stays_as_it_is(text: str) -> None:
    assert unlinked(text) == named(text) == text

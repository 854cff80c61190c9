"""Words for people: numbers of things, and what somebody else wrote."""

from __future__ import annotations

import re

import pytest

from sentinel.core.wording import counted, named, unlinked


@pytest.mark.parametrize(
    ("count", "things", "words"),
    [(0, ("row",), "0 rows"), (1, ("row",), "1 row"), (2000, ("row",), "2,000 rows"),
     (1, ("row waits", "rows wait"), "1 row waits"), (2, ("person", "people"), "2 people")],
)  # fmt: skip
def test_one_is_one_and_more_are_several(count: int, things: tuple[str, ...], words: str) -> None:
    assert counted(count, *things) == words


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

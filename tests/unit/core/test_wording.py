"""Numbers of things in words."""

from __future__ import annotations

import pytest

from sentinel.core.wording import counted


@pytest.mark.parametrize(
    ("count", "things", "words"),
    [(0, ("row",), "0 rows"), (1, ("row",), "1 row"), (2000, ("row",), "2,000 rows"),
     (1, ("row waits", "rows wait"), "1 row waits"), (2, ("person", "people"), "2 people")],
)  # fmt: skip
def test_one_is_one_and_more_are_several(count: int, things: tuple[str, ...], words: str) -> None:
    assert counted(count, *things) == words

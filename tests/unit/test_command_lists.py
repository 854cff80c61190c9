"""Lists of the command line: what is left out is said, with what shows it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sentinel.cli.common import show_rows


@dataclass(frozen=True)
class _Row:
    name: str


@pytest.mark.parametrize(("most", "told"), [(2, "; --limit shows more"), (1, "")])
def test_a_list_that_is_as_long_as_it_may_be_promises_no_longer_one(
    most: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The finding: `--limit 500` said that --limit shows more, and `--limit 501` was refused."""
    show_rows([_Row("a"), _Row("b")], ("name",), as_json=True, empty="", limit=1, most=most)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ('[{"name":"a"}]\n', f"There are more than these 1{told}.\n")

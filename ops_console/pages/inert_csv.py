"""CSV that stays data when a spreadsheet opens it: no cell is taken for a formula (`GUARANTEES.md` G40).

Every text is quoted, and one that a spreadsheet would begin to calculate with gets an apostrophe in front. Numbers stay
numbers, which is why only a value that is an `int` here may be one.
"""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO

BEGINS_FORMULA = frozenset("=+-@\t\r\n|%\uff1d\uff0b\uff0d\uff20")
"""What spreadsheets take for a formula's or a command's beginning, full-width forms included."""

Cell = str | int | None


def inert(value: Cell) -> Cell:
    """The cell as it may be written: a text that begins like a formula, also behind blanks or unseen characters, is disarmed."""
    if not isinstance(value, str):
        return value
    return f"'{value}" if value[:1] in BEGINS_FORMULA or _first_seen(value) in BEGINS_FORMULA else value


def csv_lines(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    """The table as CSV (RFC 4180), a line at a time; None is an empty cell."""
    yield _line(header)
    for cells in rows:
        yield _line([inert(cell) for cell in cells])


def _first_seen(text: str) -> str:
    """The first character that is neither a space nor invisible; "" where there is none."""
    return next((one for one in text if unicodedata.category(one) not in ("Zs", "Zl", "Zp", "Cc", "Cf")), "")


def _line(cells: Sequence[Cell]) -> str:
    out = StringIO()
    csv.writer(out, quoting=csv.QUOTE_NONNUMERIC).writerow(cells)
    return out.getvalue()

"""Refund rows from a CSV with arbitrary columns: a header line, and a mapping from fields of a row to columns.

A column that is named like a field is that field; `--map FIELD=COLUMN` names another one, `--set FIELD=VALUE` gives every row
the same value. The results are objects as `worker enqueue` reads them from JSON: one set of rules holds for both.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sentinel.core.wording import counted
from sentinel.policy.errors import nearest
from worker.refunds.intake import FIELDS, Refusal, lines_of
from worker.refunds.risk_facts import RISK_FACTS

DELIMITERS = ",;\t|"
_COLUMN_FIELDS = (*sorted(FIELDS - {"risk"}), "currency", *(f"risk.{fact.name}" for fact in RISK_FACTS))
_REQUIRED = ("ledger_entry_id", "refund_id", "amount", "currency")
_EXCEL_DELIMITER = re.compile(r"sep=([,;\t|])\r?")
"""A line above the header that names the delimiter, as Excel reads it."""
_PLAIN_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?", re.ASCII)
_COMMA_NUMBER = re.compile(r"-?[0-9]+(,[0-9]+)?", re.ASCII)
_KINDS = {fact.name: fact.kind for fact in RISK_FACTS}
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


class WrongMapping(Exception):
    """The mapping or the header cannot be used; the message names the field or column and the rule."""


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """How to read a CSV: `columns` by field, `constants` by field; `delimiter` None: it is detected in the header."""

    columns: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    delimiter: str | None = None
    decimal_comma: bool = False


@dataclass(frozen=True, slots=True)
class CsvRows:
    """The rows of a CSV as (line, object or Refusal), the column of each field, and the columns that nothing reads."""

    objects: Iterator[tuple[int, Any]]
    columns: Mapping[str, str]
    unread: Sequence[str]


def pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """Parse `FIELD=…` options into a mapping by field. Raises `WrongMapping`."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise WrongMapping(f"{option} {text}: must look like FIELD={'COLUMN' if option == '--map' else 'VALUE'}")
        if name not in _COLUMN_FIELDS:
            hint = nearest(name, _COLUMN_FIELDS) or "fields: " + ", ".join(_COLUMN_FIELDS)
            raise WrongMapping(f'{option} {text}: "{name}" is not a field of a row; {hint}')
        if name in found:
            raise WrongMapping(f"{option} {text}: {name} is given twice")
        found[name] = value
    return found


def read_csv(text: str, form: CsvFormat) -> CsvRows:
    """The rows of a CSV with a header line. Raises `WrongMapping` where the header does not fit the mapping."""
    first = text.partition("\n")[0]
    said = _EXCEL_DELIMITER.fullmatch(first)
    found = said[1] if said else max(DELIMITERS, key=first.count)
    delimiter = {"tab": "\t"}.get(form.delimiter or "", form.delimiter) or found
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise WrongMapping('--delimiter: must be one character, or "tab"')
    reader = csv.reader(lines_of(text), delimiter=delimiter, strict=True)
    try:
        if said:
            next(reader)
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise WrongMapping(f"line 1: is not CSV: {error}") from None
    columns = _columns(header, form)
    unread = [
        name or f"column {number} (no name)" for number, name in enumerate(header, 1) if name not in columns.values()
    ]
    return CsvRows(_objects(reader, header, columns, form), columns, unread)


def _columns(header: Sequence[str], form: CsvFormat) -> dict[str, str]:
    # A spreadsheet writes a column without a name for each one that was ever used, often several.
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if not header or twice:
        raise WrongMapping(f'line 1: the column "{twice[0]}" occurs twice' if twice else "line 1: there is no header")
    for name, column in form.columns.items():
        if column not in header:
            hint = nearest(column, header) or "columns: " + ", ".join(header)
            raise WrongMapping(f'--map {name}={column}: there is no column "{column}"; {hint}')
        if name in form.constants:
            raise WrongMapping(f"--set {name}=…: {name} is mapped to a column too")
    own = {name: name for name in header if name in _COLUMN_FIELDS and name not in form.constants}
    found = {**own, **form.columns}
    for name in _REQUIRED:
        if name not in found and name not in form.constants:
            raise WrongMapping(f'{name}: there is no such column; name one with --map {name}=COLUMN, or give --set {name}=VALUE. Columns: {", ".join(header)}')  # fmt: skip
    return found


def _objects(
    reader: Any, header: Sequence[str], columns: Mapping[str, str], form: CsvFormat
) -> Iterator[tuple[int, Any]]:
    places = {name: header.index(column) for name, column in columns.items()}
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield line, Refusal(line, "row", f"is not CSV: {error}; nothing from here on was read")
            return
        if cells is None:
            return
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            yield line, Refusal(line, "row", f"has {counted(len(cells), 'column')} where the header has {len(header)}")
            continue
        given = {**{name: cells[place].strip() for name, place in places.items()}, **form.constants}
        yield line, _object(line, {name: text for name, text in given.items() if text}, form.decimal_comma)


def _object(line: int, given: Mapping[str, str], decimal_comma: bool) -> Any:
    """Cells by field → the object of a row; an empty cell is an absent field."""
    found: dict[str, Any] = {}
    risk: dict[str, Any] = {}
    for name, text in given.items():
        if name == "amount":
            if not (_COMMA_NUMBER if decimal_comma else _PLAIN_NUMBER).fullmatch(text):
                return Refusal(line, "amount", _number_rule(text, decimal_comma), given.get("ledger_entry_id"))
            found.setdefault("amount", {})["value"] = text.replace(",", ".")
        elif name == "currency":
            found.setdefault("amount", {})["currency"] = text
        elif name.startswith("risk."):
            risk[name.removeprefix("risk.")] = _risk_value(name, text)
        else:
            found[name] = text
    return {**found, "risk": risk} if risk else found


def _number_rule(text: str, decimal_comma: bool) -> str:
    if not decimal_comma and _COMMA_NUMBER.fullmatch(text):
        return "must be digits with a point for decimals; --decimal-comma reads a comma"
    return f"must be digits with a {'comma' if decimal_comma else 'point'} for decimals and nothing else"


def _risk_value(name: str, text: str) -> Any:
    """Return a flag or a count, or else the text itself, which the rules of a row then refuse."""
    if _KINDS[name.removeprefix("risk.")] is int:
        return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else text
    return _BOOLEANS.get(text.lower(), text)

"""A CSV of anybody's columns becomes rows by a mapping, under the rules of JSON rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from worker.cli import main
from worker.refunds.csv_rows import CsvFormat, WrongMapping, read_csv
from worker.refunds.intake import Accepted, Refusal, rows_of

MAPPED = ("--map", "ledger_entry_id=Id", "--map", "refund_id=Id", "--map", "amount=Total", "--set", "currency=EUR")


def rows(text: str, **form: Any) -> list[Accepted | Refusal]:
    return list(rows_of(read_csv(text, CsvFormat(**form)).objects))


def dry_run(folder: Path, text: str, *arguments: str, name: str = "rows.csv") -> Result:
    file = folder / name
    file.write_text(text)
    return CliRunner().invoke(main, ["enqueue", str(file), "--dry-run", "--json", *arguments])


def refusal(found: Accepted | Refusal) -> tuple[int, str, str]:
    assert isinstance(found, Refusal)
    return found.line, found.field, found.rule


def test_columns_named_like_fields_need_no_mapping() -> None:
    text = (
        "ledger_entry_id,refund_id,amount,currency,account_ref,reason,risk.stale_window,risk.customer_attempts_24h\n"
        'lge_1,rf_1,12.50,EUR,a-1,"said: ""broken"", twice",yes,3\n'
    )
    (found,) = rows(text)
    assert isinstance(found, Accepted)
    assert (found.line, found.row.amount_minor, found.row.currency, found.row.account_ref) == (2, 1250, "EUR", "a-1")
    assert (found.row.reason, found.row.risk) == (
        'said: "broken", twice', {"stale_window": True, "customer_attempts_24h": 3},
    )  # fmt: skip


def test_one_column_may_be_two_fields_and_a_constant_fills_every_row() -> None:
    text = "Id;Total\nR-1;7\nR-2;8,05\n"
    found = rows(
        text, columns={"ledger_entry_id": "Id", "refund_id": "Id", "amount": "Total"}, constants={"currency": "EUR"},
        decimal_comma=True,
    )  # fmt: skip
    assert [one.row.amount_minor for one in found if isinstance(one, Accepted)] == [700, 805]
    assert [one.row.refund_id for one in found if isinstance(one, Accepted)] == ["R-1", "R-2"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found_in_the_header(delimiter: str) -> None:
    head = delimiter.join(["ledger_entry_id", "refund_id", "amount", "currency"])
    (found,) = rows(head + "\n" + delimiter.join(["lge", "rf", "1.00", "EUR"]) + "\n")
    assert isinstance(found, Accepted)


@pytest.mark.parametrize(
    ("cell", "comma", "minor"),
    [("12.50", False, 1250), ("12,50", False, None), ("1.234,00", True, None), ("1 000", False, None), ("1e3", False, None),
     ("€5", False, None), ("12.505", False, None), ("-3", False, None), ("0", False, None), ("12,5", True, 1250)],
)  # fmt: skip
def test_an_amount_is_digits_and_nothing_is_guessed(cell: str, comma: bool, minor: int | None) -> None:
    text = f'ledger_entry_id,refund_id,amount,currency\nlge,rf,"{cell}",EUR\n'
    (found,) = rows(text, decimal_comma=comma)
    if minor is None:
        assert refusal(found)[1].startswith("amount")
    else:
        assert isinstance(found, Accepted)
        assert found.row.amount_minor == minor


def test_lines_are_those_of_the_file_and_bad_ones_do_not_stop_good_ones() -> None:
    text = (
        'ledger_entry_id,refund_id,amount,currency,reason\na,r1,1,EUR,"two\nlines"\n\nb,r2,2,EUR\nc,r3,x,EUR,\n'
        "d,r4,4,EUR,\na,r5,5,EUR,\n"
    )
    found = rows(text)
    assert [one.line for one in found] == [2, 5, 6, 7, 8]
    assert [refusal(one)[:2] for one in found if isinstance(one, Refusal)] == [
        (5, "row"),
        (6, "amount"),
        (8, "ledger_entry_id"),
    ]


@pytest.mark.parametrize("within", "\u2028\u2029\x85\x0b\x0c\x1c")
def test_only_a_line_end_ends_a_line(within: str) -> None:
    said = f"page one{within}page two"
    text = f"ledger_entry_id,refund_id,amount,currency,reason\r\na,r1,1,EUR,{said}\r\nb,r2,x,EUR,\r\n"
    first, last = rows(text)
    assert isinstance(first, Accepted), first
    assert first.row.reason == said
    assert refusal(last)[:2] == (3, "amount")


def test_a_quote_that_never_closes_refuses_the_rest_and_keeps_what_came_before() -> None:
    text = 'ledger_entry_id,refund_id,amount,currency\na,r1,1,EUR\nb,"r2,2,EUR\nc,r3,3,EUR\n'
    first, last = rows(text)
    assert isinstance(first, Accepted)
    assert refusal(last)[:2] == (3, "row")
    assert "nothing from here on was read" in refusal(last)[2]


@pytest.mark.parametrize(
    ("header", "form", "says"),
    [
        ("Id,Total", {}, "ledger_entry_id: there is no such column"),
        ("Id,Id", {}, 'the column "Id" occurs twice'),
        ("Id,Total", {"columns": {"amount": "Totl"}}, 'did you mean "Total"?'),
        ("amount", {"columns": {"amount": "amount"}, "constants": {"amount": "1"}}, "is mapped to a column too"),
        ("amount", {"delimiter": "ab"}, "--delimiter"),
        ("", {}, "there is no header"),
    ],
)
def test_a_header_that_does_not_fit_says_what_to_give(header: str, form: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongMapping) as raised:
        read_csv(header + "\n", CsvFormat(**form))
    assert says in str(raised.value)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_line_of_excel_that_names_the_delimiter_is_no_header(end: str) -> None:
    text = end.join(["sep=;", "ledger_entry_id;refund_id;amount;currency", "a;r1;1.00;EUR", "b;r2;x;EUR", ""])
    first, last = rows(text)
    assert isinstance(first, Accepted), first
    assert refusal(last)[:2] == (4, "amount")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("ledger_entry_id,refund_id\na,1\n".encode("utf-16"), "the file is UTF-16; save it as UTF-8"),
        (b"ledger_entry_id,reason\na,M\xfcller\n", "the file is not UTF-8 on line 2, at byte 26; save it as UTF-8"),
    ],
)
def test_a_file_that_is_not_utf8_says_where_and_what_to_do(data: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(data)
    result = CliRunner().invoke(main, ["enqueue", str(tmp_path / "rows.csv"), "--dry-run"])
    assert (result.exit_code, result.stderr) == (2, f"error: {says}\n")


def test_a_dry_run_needs_no_database_and_shows_what_nothing_reads(tmp_path: Path) -> None:
    result = dry_run(tmp_path, "Id,Total,Clerk\nR-1,7,x\nR-2,bad,y\n", *MAPPED)
    assert result.exit_code == 1
    assert "columns that nothing reads: Clerk" in result.stderr
    told = json.loads(result.stdout)
    assert told["would_enter"] == 1
    assert [(one["line"], one["field"], one["ledger_entry_id"]) for one in told["refused"]] == [(3, "amount", "R-2")]


def test_a_dry_run_of_json_lines_shows_a_table(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"ledger_entry_id":"lge","refund_id":"rf","amount":{"value":"12.50","currency":"EUR"}}\n')
    result = CliRunner().invoke(main, ["enqueue", str(file), "--dry-run"])
    assert result.exit_code == 0
    assert "12.50 EUR" in result.stdout
    assert "1 row would be entered, 0 refused." in result.stdout


def test_json_lines_go_by_both_names_of_their_format(tmp_path: Path) -> None:
    file = tmp_path / "export.txt"
    file.write_text('{"ledger_entry_id":"lge","refund_id":"rf","amount":{"value":"12.50","currency":"EUR"}}\n')
    for form in ("json", "jsonl"):
        result = CliRunner().invoke(main, ["enqueue", str(file), "--format", form, "--dry-run"])
        assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "1 row would be entered, 0 refused.")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--map", "amout=Total"), 'did you mean "amount"?'),
        (("--map", "amount"), "FIELD=COLUMN"),
        (("--map", "amount=A", "--map", "amount=B"), "given twice"),
        (("--format", "json", "--map", "amount=A"), "are for a CSV"),
    ],
)
def test_a_wrong_mapping_is_wrong_use(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    result = dry_run(tmp_path, "Id,Total\n", *arguments)
    assert result.exit_code == 2
    assert says in result.stderr


@given(st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30)), max_size=5))
def test_no_text_does_anything_but_be_read_or_refused(cells: list[tuple[str, str]]) -> None:
    lines = "".join(f"{one},{two},1.00,EUR\n" for one, two in cells)
    for found in rows(f"ledger_entry_id,refund_id,amount,currency\n{lines}"):
        assert isinstance(found, Accepted | Refusal)


def test_columns_without_a_name_are_not_read_and_are_named_by_their_place(tmp_path: Path) -> None:
    done = dry_run(tmp_path, "Id;Total;;\nR-1;7;;\n;;;\n", *MAPPED)
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"would_enter": 1, "refused": []})
    assert done.stderr == "columns that nothing reads: column 3 (no name), column 4 (no name)\n"

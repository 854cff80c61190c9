"""Rows and orders come in strictly, line by line, and twice is once."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from sentinel.store import database
from sentinel.store.database import WORKER
from sentinel.store.embedded import RunningServer
from tests.corpora import public_orders
from tests.corpora.retail import make_retail_file
from tests.support.busy import overload
from tests.support.fake_authority import FakeAuthority
from tests.support.ledger_fixtures import LedgerFixtures
from tests.support.logins import program_url
from tests.support.old_databases import empty_database
from worker.cli import main
from worker.refunds import enqueue
from worker.refunds.facts_file import read_facts
from worker.refunds.intake import Accepted, Refusal, read_objects, rows_of
from worker.refunds.ledger import Ledger, LedgerUnavailable
from worker.refunds.online_retail import WrongColumns, read_orders
from worker.refunds.rows import OrderFacts

# Every field that the row's documentation shows, as its readers would send it.
DOCUMENTED: dict[str, Any] = {
    "ledger_entry_id": "lge_sample_001", "refund_id": "rf_sample_001", "agent_id": "retail-refund-agent",
    "action": "refund.create", "status": "NEW", "amount": {"value": 126, "currency": "USD"},
    "idempotency_key": "refund:lge_sample_001", "redaction_status": "customer data hidden",
    "risk": {"duplicate_refund": False, "stale_window": False, "suspicious_reason": False, "customer_attempts_24h": 1},
}  # fmt: skip


class RetailCase(NamedTuple):
    """A file's text, and what becomes of it; sums in pence."""

    text: str
    orders: int
    executed: int
    waiting: int
    executed_pence: int
    waiting_pence: int


GOOD: dict[str, Any] = {"ledger_entry_id": "lge_1", "refund_id": "rf_1", "amount": {"value": 126, "currency": "USD"}}
HEAD = "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country\n"


@pytest.fixture
def run(ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The `worker` command on the test's ledger."""
    monkeypatch.setenv("WORKER_DATABASE_URL", program_url(ledger_fixtures.url, WORKER))
    monkeypatch.setenv("SENTINEL_REFUND_AGENT_API_KEY", "key")

    def invoke(*arguments: str, text: str | bytes | None = None, url: str = "http://127.0.0.1:9") -> Result:
        monkeypatch.setenv("SENTINEL_URL", url)
        return CliRunner().invoke(main, list(arguments), input=text)

    return invoke


def read_rows(text: str) -> Iterator[Accepted | Refusal]:
    """Every row of a JSON file, as `worker enqueue` reads it."""
    return rows_of(read_objects(text))


def refusals(text: str) -> list[tuple[int, str]]:
    """(line, field) of everything refused in a file."""
    return [(each.line, each.field) for each in read_rows(text) if isinstance(each, Refusal)]


@pytest.mark.parametrize("within", "\u2028\u2029\x85")
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_only_a_line_end_ends_a_line(within: str, end: str) -> None:
    said = f"page one{within}page two"
    lines = [json.dumps(GOOD | {"reason": said}, ensure_ascii=False), "", "{", ""]
    first, last = read_rows(end.join(lines))
    assert not isinstance(first, Refusal), first
    assert first.row.reason == said
    assert isinstance(last, Refusal)
    assert (last.line, last.field) == (3, "row")


@pytest.mark.parametrize(
    "change, field",
    [({"amount": {"value": 126.505, "currency": "USD"}}, "amount.value"), ({"amount": {"value": 0, "currency": "USD"}}, "amount.value"),
     ({"amount": {"value": -1, "currency": "USD"}}, "amount.value"), ({"amount": {"value": True, "currency": "USD"}}, "amount.value"),
     ({"amount": {"value": "1_000", "currency": "USD"}}, "amount.value"), ({"amount": {"value": "\uff11", "currency": "USD"}}, "amount.value"),
     ({"amount": {"value": 1, "currency": "USD\n"}}, "amount.currency"), ({"amount": 126}, "amount"),
     ({"amount": {"value": 1, "currency": "USD", "x": 1}}, "amount.x"), ({"refund_id": "rf 1"}, "refund_id"),
     ({"ledger_entry_id": "lge\u200b"}, "ledger_entry_id"), ({"status": "EXECUTED"}, "status"), ({"unknown": 1}, "unknown"),
     ({"idempotency_key": "refund:other"}, "idempotency_key"), ({"risk": {"stale_window": "no"}}, "risk.stale_window"),
     ({"risk": {"customer_attempts_24h": -1}}, "risk.customer_attempts_24h"), ({"risk": {"x": True}}, "risk.x"),
     ({"requested_at": "2026-01-01T00:00:00"}, "requested_at"), ({"requested_at": 5}, "requested_at"),
     ({"requested_at": "0001-01-01T00:00:00+23:59"}, "requested_at"), ({"requested_at": "9999-12-31T23:59:59-23:59"}, "requested_at"), ({"reason": "a\x00b"}, "reason"),
     ({"reason": "x" * 2001}, "reason"), ({"redaction_status": "open"}, "redaction_status"), ({"account_ref": ""}, "account_ref")],
)  # fmt: skip
def test_a_malformed_row_is_refused_with_its_field(change: dict[str, Any], field: str) -> None:
    assert refusals(json.dumps(GOOD | change)) == [(1, field)]


def test_a_risk_fact_that_is_null_counts_as_absent(run: Any, ledger_fixtures: LedgerFixtures) -> None:
    text = json.dumps(GOOD | {"risk": {"stale_window": None, "customer_attempts_24h": None, "duplicate_refund": True}})
    assert run("enqueue", "-", text=text).exit_code == 0
    assert ledger_fixtures.one("select risk from refunds.ledger_entries") == {"duplicate_refund": True}


HALF = "a\ud800b"


@pytest.mark.parametrize(
    "change, field",
    [*(({name: HALF}, name) for name in ("account_ref", "reason", "contact", "requested_at", "channel", "ledger_entry_id")),
     ({HALF: 1}, "row"), ({"risk": {HALF: True}}, "risk"), ({"amount": {"value": HALF, "currency": "USD"}}, "amount.value"),
     ({"amount": {"value": 1, "currency": "USD", HALF: 1}}, "amount")],
)  # fmt: skip
def test_half_a_surrogate_pair_is_refused_by_its_field_and_the_other_rows_are_kept(
    run: Any, ledger_fixtures: LedgerFixtures, change: dict[str, Any], field: str
) -> None:
    """Before, a half in a name ended the command with a traceback: its refusal could not be printed."""
    text = "\n".join([json.dumps({**GOOD, **change}), json.dumps({**GOOD, "ledger_entry_id": "lge_2"})])
    done = run("enqueue", "-", text=text)
    assert (done.exit_code, type(done.exception)) == (1, SystemExit)
    name = "" if "ledger_entry_id" in change else " (lge_1)"
    how = "has a name with" if field in ("row", "risk", "amount") else "contains"
    assert f"line 1{name}: {field}: {how} half a surrogate pair" in done.output
    assert ledger_fixtures.states() == {"lge_2": "NEW"}


@pytest.mark.parametrize(
    "text", ['{"ledger_entry_id": "a", "ledger_entry_id": "b"}', '{"a": NaN}', "nope", "[" * 50, '{"a": 1} x']
)
def test_a_line_that_is_no_strict_json_is_refused(text: str) -> None:
    assert refusals(text) == [(1, "row")]


def test_brackets_within_texts_are_no_depth_of_an_array() -> None:
    found = [GOOD | {"ledger_entry_id": f"lge_{n}", "reason": "see [note {1 \\"} for n in range(20)]
    assert [type(each).__name__ for each in read_rows(json.dumps(found))] == ["Accepted"] * 20


def test_a_time_is_entered_whatever_its_zone(run: Any, ledger_fixtures: LedgerFixtures) -> None:
    """PostgreSQL takes no zone beyond 16 hours, Python one of almost 24."""
    done = run("enqueue", "-", text=json.dumps(GOOD | {"requested_at": "2026-11-02T09:59:00+23:59"}))
    assert done.exit_code == 0, done.output
    assert ledger_fixtures.all("select requested_at = timestamptz '2026-11-01T10:00Z' from refunds.ledger_entries") == [
        (True,)
    ]


def test_many_accounts_are_blacklisted_although_that_takes_longer_than_a_statement(
    run: Any, ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a thirtieth of a millisecond; one that is named twice is blacklisted once."""
    monkeypatch.setattr(database, "STATEMENT_TIMEOUT_MS", int(300 * overload()))
    lines = [{"kind": "blacklist", "channel": "private", "account_ref": f"acct-{n % 30_000}"} for n in range(30_001)]
    # A server that stands still within one statement ends that run: what takes too long ends each.
    for _ in range(3):
        done = run("facts", "-", text="\n".join(map(json.dumps, lines)))
        if done.exit_code == 0:
            break
    assert done.exit_code == 0, done.output
    assert ledger_fixtures.one("select count(*) from refunds.blacklist") == 30_000


ORDER: dict[str, Any] = {
    "kind": "order", "channel": "private", "order_ref": "o-1", "ordered_at": "2026-11-01T10:00:00Z", "paid": "90", "currency": "EUR",
}  # fmt: skip
COMPLAINT = {"kind": "complaint", "channel": "private", "order_ref": "o-1"}


def test_the_last_of_what_a_file_says_twice_counts(run: Any, ledger_fixtures: LedgerFixtures) -> None:
    facts = [
        ORDER | {"note": "a"}, ORDER | {"paid": "80"}, COMPLAINT, COMPLAINT, COMPLAINT | {"closed": True},
        COMPLAINT | {"order_ref": "o-2", "closed": True}, COMPLAINT | {"order_ref": "o-2"},
    ]  # fmt: skip
    done = run("facts", "-", text="\n".join(map(json.dumps, facts)))
    assert done.exit_code == 0, done.output
    assert "7 facts stored, 0 refused" in done.output
    assert ledger_fixtures.all("select paid_minor, note from refunds.orders") == [(8000, "a")]
    flags = "select order_ref, closed_at is null from refunds.order_flags order by order_ref"
    assert ledger_fixtures.all(flags) == [("o-1", False), ("o-2", True)]


@pytest.mark.parametrize(
    "arguments",
    [("summary",), ("enqueue", "-"), ("facts", "-"), ("retry", "--all-errors", "--reason", "x"), ("run", "--dry-run")],
)
@pytest.mark.parametrize("tenant", [str(uuid.uuid4()), ""], ids=["named", "not named"])
def test_a_database_that_is_not_migrated_is_wrong_configuration(
    run: Any, pg_server: RunningServer, monkeypatch: pytest.MonkeyPatch, tenant: str, arguments: tuple[str, ...]
) -> None:
    with empty_database(pg_server) as url:
        monkeypatch.setenv("WORKER_DATABASE_URL", program_url(url, WORKER))
        monkeypatch.setenv("SENTINEL_TENANT_ID", tenant)
        done = run(*arguments, text=json.dumps(GOOD if "enqueue" in arguments else COMPLAINT))
    assert done.exit_code == 2, done.output
    assert "run `sentinel migrate` first" in done.output


def test_one_object_an_array_and_lines_are_the_same() -> None:
    other = GOOD | {"ledger_entry_id": "lge_2"}
    for text in (
        json.dumps([GOOD, other]),
        f"{json.dumps(GOOD)}\n\n{json.dumps(other)}\n",
        json.dumps([GOOD, other], indent=2),
    ):
        assert [type(each).__name__ for each in read_rows(text)] == ["Accepted", "Accepted"]
    assert len(list(read_rows(json.dumps(GOOD, indent=2)))) == 1


def test_the_documented_sample_row_is_entered_and_executed(
    run: Any, ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    assert run("enqueue", "-", text=json.dumps(DOCUMENTED)).exit_code == 0
    result = run("run", "--once", url=authority.url)
    assert result.exit_code == 0, result.output
    assert ledger_fixtures.states() == {"lge_sample_001": "EXECUTED"}
    assert ledger_fixtures.one("select amount_minor from refunds.executions") == 12600


LAID_OUT = json.dumps([GOOD, GOOD | {"ledger_entry_id": "lge_2"}], indent=2)
OBJECT = json.dumps(GOOD, indent=2)


@pytest.mark.parametrize(
    ("text", "line", "column", "why"),
    [
        (LAID_OUT.replace('"lge_2",', '"lge_2"'), 12, 5, "Expecting ',' delimiter"),
        (LAID_OUT.replace('"lge_2",', '"lge_2"').replace("\n", "\r\n"), 12, 5, "Expecting ',' delimiter"),
        (LAID_OUT.replace("\n  },\n", "\n  }\n"), 10, 3, "Expecting ',' delimiter"),
        (LAID_OUT[:-2] + ",\n]\n", 18, 1, "Expecting value"),
        (LAID_OUT[:60], 4, 18, "Unterminated string"),
        ("\n" + LAID_OUT.replace("126", "NaN"), 3, 3, "NaN is not JSON"),
        ('"ledger_entry_id"'.join(LAID_OUT.rsplit('"refund_id"', 1)), 10, 3, "a name appears twice"),
        ("[\n" + json.dumps(GOOD) + "\n" + json.dumps(GOOD) + "\n]", 3, 1, "Expecting ',' delimiter"),
        (OBJECT.replace('"lge_1",', '"lge_1"'), 3, 3, "Expecting ',' delimiter"),
        (OBJECT.replace("refund_id", "ledger_entry_id"), 1, 1, "a name appears twice"),
    ],
)  # fmt: skip
def test_a_value_over_several_lines_that_is_no_json_is_one_refusal_with_its_place(
    text: str, line: int, column: int, why: str
) -> None:
    for (found,) in (list(read_rows(text)), list(read_facts(text, Path()))):
        assert isinstance(found, Refusal)
        assert (found.line, found.field) == (line, "row"), found
        assert why in found.rule and f": column {column}; none of this file was read" in found.rule


@pytest.mark.parametrize(
    "broken", ['{"ledger_entry_id": "lge_1",', "{", "[", json.dumps(GOOD)[:-1], "}", '{"a": 1, "a": 2}']
)
def test_a_line_that_is_no_json_costs_no_other_line(broken: str) -> None:
    others = [json.dumps(GOOD | {"ledger_entry_id": f"lge_{n}"}) for n in (2, 3)]
    for place in range(3):
        if (place, broken) == (0, "["):
            continue  # it begins an array, which the others are then in
        found = list(read_rows("\n".join([*others[:place], broken, *others[place:]])))
        assert [each.line for each in found if isinstance(each, Refusal)] == [place + 1]
        assert len(found) == 3


def test_a_file_that_cannot_be_entered_whole_says_how_much_of_it_was(
    run: Any, ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: the error stood alone, though thousands of rows could have been entered before it."""
    real, answers = Ledger.add_rows, iter([True])

    def add_rows(self: Ledger, rows: Any) -> set[str]:
        if next(answers, False):
            return real(self, rows)
        raise LedgerUnavailable("away")

    monkeypatch.setattr(enqueue, "_STEP", 1)
    monkeypatch.setattr(Ledger, "add_rows", add_rows)
    text = "\n".join(json.dumps(GOOD | {"ledger_entry_id": f"lge_{n}"}) for n in (1, 2))
    done = run("enqueue", "-", text=text)
    assert done.exit_code == 3, done.output
    assert "1 row was entered before this error:\n" in done.stderr and done.stderr.endswith("error: away\n")
    assert ledger_fixtures.states() == {"lge_1": "NEW"}


def test_what_is_simulated_is_read_as_what_is_entered(run: Any, authority: FakeAuthority, tmp_path: Path) -> None:
    """A CSV was refused line by line as no JSON, though the command's help promised what `enqueue` reads."""
    json_file, csv, semicolons = (tmp_path / name for name in ("rows.jsonl", "rows.csv", "export"))
    json_file.write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD | {"ledger_entry_id": "lge_2", "amount": 1}))
    csv.write_text("ledger_entry_id,refund_id,amount,currency\nlge_1,rf_1,126,USD\nlge_2,rf_1,much,USD\n")
    semicolons.write_text("Id;Total\n1;126,00\n2;much\n")
    mapped = ("--map", "ledger_entry_id=Id", "--map", "refund_id=Id", "--map", "amount=Total", "--set", "currency=USD",
              "--decimal-comma")  # fmt: skip
    for arguments, line in (((json_file,), 2), ((csv,), 3), ((semicolons, *mapped), 3)):
        words = [str(word) for word in arguments]
        done = run("workflow", "simulate", *words, "--json", url=authority.url)
        (row,) = json.loads(done.stdout)["rows"]
        assert (row["amount"], row["decision"]) == ({"value": 126, "currency": "USD"}, "DENY"), done.output
        entered = run("enqueue", *words, "--dry-run")
        assert done.stderr.startswith(f"line {line} (")
        assert (done.exit_code, done.stderr) == (entered.exit_code, entered.stderr) == (1, done.stderr)
    wrong = run("workflow", "simulate", str(json_file), "--map", "amount=Total", "--format", "json", url=authority.url)
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1) and "are for a CSV" in wrong.stderr


def test_a_simulation_without_an_answer_of_the_authority_ends_as_a_dry_run_does(run: Any) -> None:
    """The finding: it ended with 1, as if a line of the file had been refused."""
    done = run("workflow", "simulate", "-", "--json", text=json.dumps(GOOD))
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["decision"], done.exit_code) == (None, 3), done.output


def test_a_row_that_names_no_agent_is_the_workers(
    run: Any, ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose key is bound to its agent takes no other."""
    monkeypatch.setenv("WORKER_AGENT_ID", "eu")
    named = GOOD | {"ledger_entry_id": "lge_2", "agent_id": "us"}
    assert run("enqueue", "-", text="\n".join(map(json.dumps, [GOOD, named]))).exit_code == 0
    invoice = HEAD + "C4,A,x,-1,2010-12-01 10:00:00,5.00,77.0,UK\n"
    assert run("import-orders", "-", text=invoice).exit_code == 0
    assert ledger_fixtures.all("select ledger_entry_id, agent_id from refunds.ledger_entries order by 1") == [
        ("lge_1", "eu"),
        ("lge_2", "us"),
        ("lge_retail_C4", "eu"),
    ]


def test_good_rows_are_kept_and_the_others_named_line_by_line(run: Any, ledger_fixtures: LedgerFixtures) -> None:
    bad = GOOD | {"ledger_entry_id": "lge_2", "amount": {"value": "1.005", "currency": "USD"}}
    lines = "\n".join(map(json.dumps, [GOOD, bad, GOOD | {"refund_id": "again"}, GOOD | {"ledger_entry_id": "lge_3"}]))
    result = run("enqueue", "-", text=lines)
    assert result.exit_code == 1
    assert "line 2 (lge_2): amount.value: has more than 2 decimal digits" in result.output
    assert "line 3 (lge_1): ledger_entry_id: is a duplicate of line 1" in result.output
    assert set(ledger_fixtures.states()) == {"lge_1", "lge_3"}
    again = run("enqueue", "-", "--json", text=json.dumps(GOOD))
    assert again.exit_code == 1
    assert json.loads(again.stdout)["refused"] == [
        {"line": 1, "ledger_entry_id": "lge_1", "field": "ledger_entry_id", "rule": "is already in the ledger"}
    ]


@pytest.mark.parametrize(
    "field, name, hint",
    [("channel", "privat", 'did you mean "private"?'), ("channel", "marketplace", "known: retail, private, public"),
     ("channel", "Retail", 'did you mean "retail"?'), ("scenario", "compensaton", 'did you mean "compensation"?'),
     ("mode", "price_dropp", 'did you mean "price_drop"?')],
)  # fmt: skip
def test_a_name_that_nobody_knows_is_refused_with_the_nearest_known_one_and_good_lines_are_kept(
    run: Any, ledger_fixtures: LedgerFixtures, field: str, name: str, hint: str
) -> None:
    bad = GOOD | {"ledger_entry_id": "lge_2", field: name}
    result = run("enqueue", "-", text=f"{json.dumps(GOOD)}\n{json.dumps(bad)}\n")
    assert result.exit_code == 1
    assert f'line 2 (lge_2): {field}: unknown {field} "{name}"; {hint}' in result.output
    assert set(ledger_fixtures.states()) == {"lge_1"}


def test_known_names_without_a_route_are_entered_for_a_person_to_look_at() -> None:
    for names in (
        {"channel": "retail", "scenario": "quality"},
        {"channel": "public"},
        {"mode": "rebuy"},
        {"channel": None},
    ):
        assert refusals(json.dumps(GOOD | names)) == [], names


def test_bytes_that_are_no_text_are_refused(run: Any, ledger_fixtures: LedgerFixtures) -> None:
    for command in (("enqueue",), ("facts",), ("import-orders",), ("workflow", "simulate")):
        for text, said in ((b"a\n\xff", "is not UTF-8 on line 2, at byte 2"), (b"\xff\xfea\0", "is UTF-16")):
            result = run(*command, "-", text=text)
            assert (result.exit_code, result.stderr) == (2, f"error: the file {said}; save it as UTF-8\n"), command
    assert ledger_fixtures.states() == {}


def test_a_cancellation_finds_the_customers_earlier_invoice_with_the_same_codes() -> None:
    lines = [
        HEAD, "1,A,x,2,2010-12-01 08:00:00,5.00,77.0,UK\n", "1,B,x,1,2010-12-01 08:00:00,0.50,77.0,UK\n",
        "2,A,x,1,2010-12-01 09:00:00,5.00,77.0,UK\n", "3,A,x,1,2010-12-01 09:30:00,5.00,88.0,UK\n",
        "C4,A,x,-1,2010-12-01 10:00:00,5.00,77.0,UK\n", "C5,B,x,-1,2010-12-01 10:00:00,0.50,77.0,UK\n",
        "C6,A,x,-1,2010-12-01 10:00:00,5.00,,UK\n", "C7,A,x,-1,2010-12-01 07:00:00,5.00,77.0,UK\n",
    ]  # fmt: skip
    found = read_orders(lines)
    assert [(order.order_ref, order.paid_minor, order.account_ref) for order in found.orders] == [
        ("1", 1050, "retail-77"), ("2", 500, "retail-77"), ("3", 500, "retail-88")
    ]  # fmt: skip
    assert [(row.refund_id, row.order_ref, row.amount_minor, row.account_ref) for row in found.refunds] == [
        ("rf_retail_C4", "2", 500, "retail-77"), ("rf_retail_C5", "1", 50, "retail-77"), ("rf_retail_C6", None, 500, None),
        ("rf_retail_C7", None, 500, "retail-77"),
    ]  # fmt: skip


@pytest.mark.parametrize("line", [
    "1,A,x,2,2010-12-01,5.00,77.0,UK", "1,A,x,two,2010-12-01 08:00:00,5.00,77.0,UK", "1,A,x,2,2010-12-01 08:00:00,NaN,77.0,UK",
    "1,A,x,2,2010-12-01 08:00:00,1e999999999,77.0,UK", "1,A,x,2,2010-12-01 08:00:00,1e-999999,77.0,UK",
    "X1,A,x,2,2010-12-01 08:00:00,5.00,77.0,UK", "1,A,x,2,2010-12-01 08:00:00,5.00,Ann,UK", "1,A,x", "1,A,x,1,2010-12-01 08:00:00,0.001,,UK",
    "C1,A,x,1,2010-12-01 08:00:00,5.00,77.0,UK", "2,A,x,1000000000,2010-12-01 08:00:00,1000000000,77.0,UK",
    "2,A,x,1000000,2010-12-01 08:00:00,1000000,77.0,UK",
])  # fmt: skip
def test_a_bad_invoice_is_left_out_whole_and_named(line: str) -> None:
    found = read_orders([HEAD, "1,A,x,2,2010-12-01 08:00:00,5.00,77.0,UK\n", line + "\n"])
    assert len(found.refused) == 1
    assert found.refunds == []
    assert len(found.orders) == (0 if line.startswith("1,") else 1)


def test_two_shops_with_the_same_invoice_numbers_keep_their_orders_and_refunds_apart(
    run: Any, ledger_fixtures: LedgerFixtures, authority: FakeAuthority, tmp_path: Path
) -> None:
    """Before, the second shop's refunds were taken for the first one's, and none was entered."""
    file = tmp_path / "orders.csv"
    sold, back = (
        "536365,A,X,10,2021-03-01 08:00:00,{},14527.0,EIRE",
        "C536366,A,X,-1,2021-03-02 08:00:00,{},14527.0,EIRE",
    )
    for source, price in (("north", "5.00"), ("south", "7.00"), ("", "9.00")):
        file.write_text(HEAD + "\n".join([sold.format(price), back.format(price)]) + "\n")
        for entered in (1, 0):
            done = json.loads(run("import-orders", str(file), "--source", source, "--json").stdout)
            assert (done["orders_changed"], done["refunds_entered"]) == (entered, entered), source
    assert ledger_fixtures.all("select source, order_ref, paid_minor from refunds.order_budgets order by source desc") == [
        ("south", "536365", 7000), ("north", "536365", 5000), ("", "536365", 9000),
    ]  # fmt: skip
    assert run("run", "--once", url=authority.url).exit_code == 0
    assert ledger_fixtures.all("select source, order_ref, ledger_entry_id, refund_id, amount_minor, status from refunds.ledger_entries order by amount_minor") == [
        ("north", "536365", "lge_retail_north:C536366", "rf_retail_north:C536366", 500, "EXECUTED"),
        ("south", "536365", "lge_retail_south:C536366", "rf_retail_south:C536366", 700, "EXECUTED"),
        ("", "536365", "lge_retail_C536366", "rf_retail_C536366", 900, "EXECUTED"),
    ]  # fmt: skip
    # Both number their customers alike too: each has its own.
    accounts = [("retail-14527",), ("retail-north:14527",), ("retail-south:14527",)]
    for table in ("orders", "ledger_entries"):
        assert ledger_fixtures.all(f"select account_ref from refunds.{table} order by account_ref") == accounts
    assert ledger_fixtures.all("select source, executed_minor from refunds.order_budgets order by 2") == [
        ("north", 500), ("south", 700), ("", 900),
    ]  # fmt: skip


@pytest.mark.parametrize("source", ["two words", "shop\u200b", "x" * 65])
def test_a_source_that_no_order_could_name_is_refused(run: Any, tmp_path: Path, source: str) -> None:
    file = tmp_path / "orders.csv"
    file.write_text(HEAD)
    done = run("import-orders", str(file), "--source", source)
    assert (done.exit_code, done.output.count("\n")) == (2, 1) and "--source" in done.output


@pytest.mark.parametrize("line", ["a,b\n", '"InvoiceNo"x,StockCode\n'], ids=["other columns", "no CSV"])
def test_another_file_is_not_taken_for_the_data(line: str) -> None:
    with pytest.raises(WrongColumns):
        read_orders([line])


def own_file() -> RetailCase:
    made = make_retail_file()
    waiting = [pence for pence in made.refunds if pence not in made.paid_back]
    return RetailCase(
        "".join(made.lines), made.orders, len(made.paid_back), len(waiting), sum(made.paid_back), sum(waiting)
    )


def retail_cases() -> list[Any]:
    public = [RetailCase(file.read_text("utf-8-sig"), 281, 27, 2, 70245, 116388) for file in public_orders()]
    return [pytest.param(own_file(), id="own"), *(pytest.param(case, id="public") for case in public)]


@pytest.mark.parametrize("case", retail_cases())
def test_a_whole_file_runs_to_the_end_and_a_second_import_changes_nothing(
    run: Any, ledger_fixtures: LedgerFixtures, authority: FakeAuthority, tmp_path: Path, case: RetailCase
) -> None:
    file = tmp_path / "orders.csv"
    file.write_text(case.text, encoding="utf-8")
    refunds = case.executed + case.waiting
    first = json.loads(run("import-orders", str(file), "--json").stdout)
    assert (first["orders"], first["refunds_entered"], first["refused"]) == (case.orders, refunds, [])
    second = run("import-orders", str(file))
    assert (second.exit_code, second.stdout) == (
        0, f"Nothing changed, all already known: {case.orders:,} orders, {refunds} refund rows.\n")  # fmt: skip
    result = run("run", "--once", "--json", url=authority.url)
    assert result.exit_code == 0, result.output
    assert Counter(ledger_fixtures.states().values()) == {"EXECUTED": case.executed, "APPROVAL_REQUIRED": case.waiting}
    assert ledger_fixtures.one("select sum(amount_minor) from refunds.executions") == case.executed_pence
    summary = {(line["status"], line["sum"]) for line in json.loads(run("summary", "--json").stdout)}
    pounds = {status: f"{pence / 100:.2f}" for status, pence in
              (("EXECUTED", case.executed_pence), ("APPROVAL_REQUIRED", case.waiting_pence))}  # fmt: skip
    assert summary == set(pounds.items())
    assert f"{pounds['EXECUTED']} GBP" in run("summary").stdout


@pytest.mark.parametrize(
    "command", [[], ["enqueue"], ["import-orders"], ["summary"], ["handled"], ["states"], ["states", "draw"], ["run"]]
)
def test_every_command_explains_itself(command: list[str]) -> None:
    result = CliRunner().invoke(main, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_a_run_needs_to_be_told_how(run: Any) -> None:
    result = run("run")
    assert result.exit_code == 2
    assert "give --once, --loop or --dry-run" in result.output


@pytest.mark.parametrize("ways", [("--once", "--loop"), ("--loop", "--dry-run"), ("--once", "--loop", "--dry-run")])
def test_a_run_that_is_told_to_go_two_ways_goes_none(run: Any, ways: tuple[str, ...]) -> None:
    result = run("run", *ways)
    assert result.exit_code == 2
    assert "give only one of --once, --loop or --dry-run" in result.output


def test_rows_without_an_account_are_counted_where_they_are_entered(
    ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named by the row or by its order; who enters the others is told what becomes of them (decision 0006)."""
    monkeypatch.setenv("WORKER_DATABASE_URL", ledger_fixtures.url)
    ledger_fixtures.admin.execute(
        "insert into refunds.orders (tenant_id, channel, order_ref, account_ref, ordered_at, paid_minor, currency)"
        " values (%s, 'retail', 'o-1', 'acct-1', now(), 10000, 'USD')", [ledger_fixtures.tenant_id]
    )  # fmt: skip
    named = [{"account_ref": "acct"}, {"order_ref": "o-1"}, {}, {}, {"order_ref": "o-2"}]
    lines = [
        json.dumps(
            {"ledger_entry_id": f"n{n}", "refund_id": f"rf{n}", "amount": {"value": 10, "currency": "USD"}, **over}
        )
        for n, over in enumerate(named)
    ]
    done = CliRunner().invoke(main, ["enqueue", "-"], input="\n".join(lines))
    assert done.exit_code == 0
    assert (
        "warning: 3 rows without account_ref (30.00 USD in all), whose orders name none either: denied" in done.stderr
    )
    again = CliRunner().invoke(main, ["enqueue", "-", "--json"], input=lines[0].replace("n0", "n9"))
    assert json.loads(again.stdout)["without_account"] == 0
    assert "account_ref" not in again.stderr


def test_rows_of_no_known_order_are_counted_where_they_are_entered(
    ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that says itself whether it was asked in time is none, nor one of a channel whose unknown orders go to a person."""
    monkeypatch.setenv("WORKER_DATABASE_URL", ledger_fixtures.url)
    ledger_fixtures.ledger.add_orders([OrderFacts("o-1", datetime.now(UTC), 10000, "USD", account_ref="acct-1")])
    told = [{"order_ref": "o-1"}, {"order_ref": "o-2"}, {}, {"risk": {"stale_window": False}},
            {"order_ref": "o-2", "channel": "private", "scenario": "fee"}]  # fmt: skip
    lines = [
        json.dumps({"ledger_entry_id": f"n{n}", "refund_id": f"rf{n}", "amount": {"value": 10, "currency": "USD"},
                    "account_ref": "acct-1", **over})
        for n, over in enumerate(told)
    ]  # fmt: skip
    done = CliRunner().invoke(main, ["enqueue", "-", "--json"], input="\n".join(lines))
    assert done.exit_code == 0
    assert json.loads(done.stdout)["without_order"] == 2
    assert done.stderr.splitlines() == [
        "warning: 2 rows whose order the ledger does not know: denied permanently as fact_missing under the shipped policies, unless"
        " the order is entered (worker facts) before the worker processes the row"
    ]
    known = CliRunner().invoke(main, ["enqueue", "-"], input=lines[0].replace("n0", "n9").replace("rf0", "rf9"))
    assert known.stderr == ""


@pytest.mark.parametrize("words", [
    ("retry", "a\udcff", "--reason", "x"), ("retry", "a", "--reason", "x\udcff"), ("workflow", "explain", "a\udcff"),
    ("handled", "a\udcff", "--reason", "x", "--reference", "y"),
    ("reports", "discard", "01a00000-0000-7000-8000-000000000000", "--reason", "x\udcff"),
])  # fmt: skip
def test_a_word_that_is_not_utf_8_is_refused_in_one_line(run: Any, words: tuple[str, ...]) -> None:
    done = run(*words)
    assert (done.exit_code, done.stderr) == (2, "error: a text among the arguments is not UTF-8\n")

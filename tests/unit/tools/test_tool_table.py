"""The table from tools to actions: what is not mapped exactly is refused, and the key names the effect and nothing else."""

from __future__ import annotations

import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sentinel.platform.resources import policies_dir
from sentinel.policy.errors import PolicyError
from sentinel.policy.library import PolicyLibrary
from sentinel.tools import ToolRefused, ToolTable, read_tool_table
from sentinel.tools.arguments import parse_arguments
from sentinel.tools.cases import run_tool_cases
from sentinel.tools.check import check_tools
from sentinel.tools.parse import parse_tool_table

TABLE = """\
tools:
  - server: shop
    tool: refund
    action: refund.create
    arguments:
      charge: {type: string}
      amount: {type: int, min: 1, max: 100000}
      currency: {type: string, one_of: [usd, EUR]}
      reason: {type: string, required: false}
      note: {type: json, required: false, bound: false}
      lines: {type: json, required: false}
    facts:
      account: {type: string, from: program}
      duplicate: {type: bool, from: program}
      channel: {type: string, from: table, value: web}
    key: '"refund:" + args.charge + ":" + string(args.amount)'
    resource: '"refund/" + args.charge'
    params:
      amount: {minor: args.amount, currency: args.currency}
      account_ref: facts.account
      channel: facts.channel
      reason: args.reason
      risk.duplicate_refund: facts.duplicate
    inject:
      - {argument: request_key, from: operation_id}
      - {header: Idempotency-Key, from: idempotency_key}
  - server: shop
    tool: look
    unguarded: It only reads.
"""
SMALL = "channel: facts.channel"
"""A param of the sample, beside which others are put."""
ARGUMENTS = {"charge": "ch_1", "amount": 1250, "currency": "usd"}
LIBRARY = PolicyLibrary.load(policies_dir())


@pytest.fixture(scope="module")
def table() -> ToolTable:
    """The sample."""
    return parse_tool_table(TABLE)


def question(table: ToolTable, facts: dict[str, Any] | None = None, **over: Any) -> dict[str, Any]:
    """The operation of a refund."""
    found = table.call("shop", "refund", {**ARGUMENTS, **over}, facts).question
    assert found is not None
    return dict(found)


def test_a_call_becomes_one_operation_with_money_in_major_units(table: ToolTable) -> None:
    asked = question(table, {"account": "acct_1", "duplicate": False})
    assert asked["action"] == "refund.create" and asked["idempotency_key"] == "refund:ch_1:1250"
    assert asked["resource"] == "refund/ch_1"
    call = asked["params"].pop("tool_call")
    assert asked["params"] == {
        "amount": {"value": "12.50", "currency": "USD"}, "account_ref": "acct_1", "channel": "web",
        "risk": {"duplicate_refund": False},
    }  # fmt: skip
    assert (call["server"], call["tool"]) == ("shop", "refund") and call["arguments_digest"].startswith("sha256:")


def test_the_key_is_the_same_for_the_same_effect_and_every_bound_argument_is_part_of_the_operation(
    table: ToolTable,
) -> None:
    plain = question(table)
    for name, value in (("reason", "late"), ("lines", [{"a": 1}]), ("currency", "EUR")):
        other = question(table, **{name: value})
        assert other["idempotency_key"] == plain["idempotency_key"]
        assert other["params"] != plain["params"], f"{name} could change after an approval"
    assert question(table, amount=1251)["idempotency_key"] != plain["idempotency_key"]
    assert question(table, note={"text": "hello"}) == plain, "what is not bound changes nothing"
    assert question(table, lines={"b": 1, "a": 2}) == question(table, lines={"a": 2, "b": 1})
    assert question(table, lines=[Decimal("1.5")]) == question(table, lines=[1.5])


@pytest.mark.parametrize(
    ("over", "code"),
    [
        ({"amount": None}, "missing_argument"),
        ({"reason": None}, "malformed_argument"),
        ({"limit": None}, "unmapped_argument"),
        ({"request_key": "mine"}, "unmapped_argument"),
        ({"amount": "1250"}, "malformed_argument"),
        ({"amount": True}, "malformed_argument"),
        ({"amount": 12.5}, "malformed_argument"),
        ({"amount": 0}, "malformed_argument"),
        ({"amount": 100001}, "malformed_argument"),
        ({"currency": "GBP"}, "malformed_argument"),
        ({"charge": ["ch_1"]}, "malformed_argument"),
        ({"lines": {1: 2}}, "malformed_argument"),
        ({"lines": float("nan")}, "malformed_argument"),
        ({"lines": object()}, "malformed_argument"),
        ({"charge": "ch_1\0"}, "malformed_argument"),
        ({"charge": "ch_\ud800"}, "mapping_failed"),
        ({"charge": "ch 1"}, "mapping_failed"),
        ({"charge": "c" * 200}, "mapping_failed"),
        ({"charge": ""}, None),
        ({"duplicate": False}, "unmapped_argument"),
        ({"risk": {"duplicate_refund": False}}, "unmapped_argument"),
        ({"account": "acct_2"}, "unmapped_argument"),
        ({"call": {"digest": "x"}}, "unmapped_argument"),
    ],
)
def test_what_is_not_mapped_exactly_is_refused(table: ToolTable, over: dict[str, Any], code: str | None) -> None:
    if code is None:
        assert question(table, **over)
        return
    with pytest.raises(ToolRefused) as refused:
        question(table, **over)
    assert refused.value.reason_code == code


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({"amount": "77"}, "amount must be of type int, min 1, max 100000"),
        ({"amount": 0}, "amount must be of type int, min 1, max 100000"),
        ({"currency": "GBP"}, "currency must be one of EUR, usd"),
        ({"charge": ["ch_1"]}, "charge must be of type string"),
    ],
)
def test_a_refused_argument_is_told_what_it_must_be_and_not_what_it_was(
    table: ToolTable, over: dict[str, Any], says: str
) -> None:
    with pytest.raises(ToolRefused) as refused:
        question(table, **over)
    assert refused.value.reason == f"shop/refund: the argument {says}"


def test_null_is_another_call_than_one_without_the_argument(table: ToolTable) -> None:
    plain, null = question(table), question(table, lines=None)
    assert null["idempotency_key"] == plain["idempotency_key"] and null["params"] != plain["params"]
    assert question(table, note=None) == plain, "what is not bound changes nothing"
    assert question(table, request_key=None) == plain, "nor does what is injected anyway"


def test_who_runs_the_tool_asks_about_arguments_of_its_own_without_nulls(table: ToolTable) -> None:
    lines, note = [{"a": (1, Decimal("1.5"))}], object()
    given = {**ARGUMENTS, "lines": lines, "note": note, "reason": None, "request_key": None}
    own = table.own_arguments("shop", "refund", given)
    assert own == {**ARGUMENTS, "lines": [{"a": (1, Decimal("1.5"))}], "note": note}
    assert table.call("shop", "refund", own).arguments is own
    lines[0]["a"] = (2,)
    assert own["lines"] == [{"a": (1, Decimal("1.5"))}], "nobody changes what was asked about"
    assert table.own_arguments("shop", "look", {"anything": None}) == {"anything": None}


@pytest.mark.parametrize(
    ("over", "code"),
    [
        ({"limit": None}, "unmapped_argument"), ({"limit": 1}, "unmapped_argument"), ({"lines": object()}, "malformed_argument"),
        ({"lines": [{1: 2}]}, "malformed_argument"), ({"lines": {"a": {1, 2}}}, "malformed_argument"),
    ],
)  # fmt: skip
def test_what_is_not_mapped_is_nobodys_own_argument(table: ToolTable, over: dict[str, Any], code: str) -> None:
    with pytest.raises(ToolRefused) as refused:
        table.own_arguments("shop", "refund", {**ARGUMENTS, **over})
    assert refused.value.reason_code == code


def test_a_deeply_nested_argument_is_refused_and_not_followed(table: ToolTable) -> None:
    nested: Any = "x"
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(ToolRefused, match="malformed_argument"):
        question(table, lines=nested)
    with pytest.raises(ToolRefused, match="malformed_argument"):
        table.own_arguments("shop", "refund", {**ARGUMENTS, "lines": nested})


def test_facts_are_the_programs_and_an_unknown_one_is_left_out(table: ToolTable) -> None:
    assert "risk" not in question(table)["params"] and "account_ref" not in question(table)["params"]
    for facts, code in (({"duplicate": "no"}, "malformed_fact"), ({"channel2": "x"}, "malformed_fact")):
        with pytest.raises(ToolRefused) as refused:
            question(table, facts)
        assert refused.value.reason_code == code
    assert question(table, {"channel": "shop"})["params"]["channel"] == "web", "what the table says, nobody changes"


def test_a_tool_is_found_by_its_exact_server_and_name(table: ToolTable) -> None:
    assert table.call("shop", "look", {"anything": 1}).question is None
    for server, tool in (("shop", "refunds"), ("Shop", "refund"), ("", "refund"), ("shop", "refund ")):
        with pytest.raises(ToolRefused, match="unmapped_tool"):
            table.call(server, tool, ARGUMENTS)


def test_what_is_injected_goes_to_its_place(table: ToolTable) -> None:
    call = table.call("shop", "refund", ARGUMENTS)
    assert call.injected("argument", operation_id="op") == {"request_key": "op"}
    assert call.injected("header", operation_id="op") == {"Idempotency-Key": "refund:ch_1:1250"}
    assert table.call("shop", "look", {}).injected("argument", operation_id="op") == {}


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}',
        '{"a": {"b": 1, "b": 1}}',
        "[1]",
        "{",
        '{"a": NaN}',
        '"x"',
        "[" * 100000,
        '{"a": 1e999999999}',
        '{"a": 1e-999999999}',
    ],
)
def test_arguments_as_text_are_read_strictly(text: str) -> None:
    with pytest.raises(ToolRefused, match="malformed_argument"):
        parse_arguments(text)


def test_arguments_as_bytes_that_are_no_text_are_refused() -> None:
    assert parse_arguments(b'{"amount": 1}') == {"amount": 1}
    with pytest.raises(ToolRefused, match="malformed_argument"):
        parse_arguments(b"\xff")


def test_arguments_as_text_keep_their_digits() -> None:
    assert parse_arguments('{"amount": 12.50}') == {"amount": Decimal("12.50")} and parse_arguments("") == {}


@pytest.mark.parametrize(
    ("amount", "value"),
    [("12.50", "12.50"), (12.5, "12.50"), (Decimal("12.50"), "12.50"), (12, 12), ("12", 12), (0.1, "0.10"), (1e300, None),
     ("12.505", None), (12.505, None), ("1e3", None), (-1, None), (0, None), ("", None), (True, None), (float("inf"), None)],
)  # fmt: skip
def test_major_units_are_read_exactly_or_refused(amount: Any, value: Any) -> None:
    shipped = read_tool_table(policies_dir() / "tools.yaml")
    arguments = {"customer": "c", "amount": amount, "currency": "USD", "order": "o"}
    if value is None:
        with pytest.raises(ToolRefused):
            shipped.call("local", "issue_gift_card", arguments)
        return
    asked = shipped.call("local", "issue_gift_card", arguments).question
    assert asked is not None and asked["params"]["amount"] == {"value": value, "currency": "USD"}


@pytest.mark.parametrize(
    ("amount", "currency", "value"),
    [(1250, "usd", "12.50"), (500, "jpy", 500), (500000, "mga", 500000), (50000, "isk", 500), (50000, "ugx", 500), (1230, "kwd", "1.230"),
     (50001, "isk", None), (1234, "kwd", None), (10, "xxq", None), (10**15, "mga", None)],
)  # fmt: skip
def test_stripes_units_are_what_stripe_moves_or_refused(amount: int, currency: str, value: Any) -> None:
    shipped = read_tool_table(policies_dir() / "tools.yaml")
    arguments, facts = {"payment_intent": "pi_1", "amount": amount}, {"currency": currency}
    if value is None:
        with pytest.raises(ToolRefused) as refused:
            shipped.call("stripe", "create_refund", arguments, facts)
        assert refused.value.reason_code == "mapping_failed"
        return
    asked = shipped.call("stripe", "create_refund", arguments, facts).question
    assert asked is not None and asked["params"]["amount"] == {"value": value, "currency": currency.upper()}


MAJOR = (
    TABLE.replace("amount: {type: int, min: 1, max: 100000}", "amount: {type: decimal}")
    .replace(", one_of: [usd, EUR]", "")
    .replace("minor: args.amount", "major: args.amount")
    .replace("string(args.amount)'", 'args.amount + ":" + args.currency\'')
    .replace("lines: {type: json, required: false}", "rate: {type: decimal, required: false}")
)


def test_one_amount_is_one_operation_however_it_is_spelled() -> None:
    table = parse_tool_table(MAJOR)
    spelled = [(40, "usd"), (40.0, "USD"), ("40", "Usd"), ("40.0", "USD"), ("40.00", "USD"), (Decimal("4E1"), "usd")]
    asked = [question(table, amount=amount, currency=currency, rate="1.50") for amount, currency in spelled]
    assert asked == [question(table, amount="40.00", currency="USD", rate=1.5)] * len(spelled)
    assert asked[0]["idempotency_key"] == "refund:ch_1:40.00:USD"
    assert question(table, amount="0.5", currency="kwd")["idempotency_key"] == "refund:ch_1:0.500:KWD"
    with pytest.raises(ToolRefused, match="more than 2 decimal digits"):
        question(table, amount="40.000", currency="USD")
    arguments = {**ARGUMENTS, "amount": 40.0}
    assert table.call("shop", "refund", arguments).arguments == arguments, "the tool runs with what was written"


class NamedFloat(float):
    """As `numpy.float64`, whose `repr` names its class."""

    def __repr__(self) -> str:
        return f"np.float64({float.__repr__(self)})"


def test_a_float_of_a_class_of_its_own_is_a_number() -> None:
    table = parse_tool_table(MAJOR)
    plain = question(table, amount=12.5, currency="USD", rate=1.5)
    assert question(table, amount=NamedFloat(12.5), currency="USD", rate=NamedFloat(1.5)) == plain
    for amount in (NamedFloat("nan"), NamedFloat("inf")):
        with pytest.raises(ToolRefused, match="malformed_argument"):
            question(table, amount=amount)


ENDLESS = ["1E+100000000", "1E-100000000", "Infinity", "sNaN"]


@pytest.mark.parametrize("amount", [*map(Decimal, ENDLESS), 10**5000], ids=[*ENDLESS, "5000 digits"])
def test_a_number_that_nobody_writes_is_not_written_out(amount: Any) -> None:
    with pytest.raises(ToolRefused, match="malformed_argument"):
        question(parse_tool_table(MAJOR), amount=amount)


FAULTS = [
    ("charge: {type: string}", "charge: {type: strin}", 6, 'did you mean "string"?'),
    ("amount: {type: int, min: 1,", "amount: {type: string, min: 1,", 7, "arguments.amount.min can be used with type int only"),
    ("min: 1, max: 100000", "min: 10, max: 1", 7, "no number is at least 10 and at most 1"),
    ("key: '\"refund:\"", "key: 'has(args.reason) ? \"a\" : \"refund:\"", 16, "leaves out the param that reads it"),
    ("action: refund.create", "action: refund.*", 4, "is not an action like"),
    ("server: shop", 'server: "*"', 2, "no wildcards"),
    ("args.charge + \":\"", "args.chrage + \":\"", 16, 'did you mean "args.charge"?'),
    ("string(args.amount)'", "args.amount'", 16, "no matching overload"),
    ("string(args.amount)'", "string(args.amount / 0)'", 16, "key: this can never have a value: divide by zero"),
    ("key: '\"refund:\" + args.charge + \":\" + string(args.amount)'", "key: '\"refund\"'", 16, "the same for every call"),
    ("args.charge + \":\" + string", "args.charge // the charge\n      + \":\" + string", 16, "the comment would reach to its end"),
    ("key: '\"refund:\" + args.charge", "key: '\"refund:\" + args.note", 16, "no expression can read it"),
    ("charge: {type: string}", "charge: {type: string, bound: false}", 16, "key reads args.charge, which is not bound"),
    ("reason: {type: string, required: false}", "reason: {type: string, required: false, bound: false}", 22, "params.reason reads args.reason, which is not bound"),
    ("    key: ", "    risk_class: very high\n    key: ", 16, 'risk_class: "very high" is not an identifier'),
    ("    key: ", "    kye: ", 16, 'did you mean "key"?'),
    ("minor: args.amount", "minor: args.charge", 19, "must be int, but is string"),
    ("amount: {minor: args.amount, currency: args.currency}", "amount: args.amount", 19, "needs minor:, major: or stripe:"),
    ("{minor: args.amount, currency", "{minor: args.amount, stripe: args.amount, currency", 19, "needs one of minor:, major: and stripe:"),
    ("channel: facts.channel", "tool_call: facts.channel", 21, "is not a name for a param"),
    ("reason: args.reason", "risk: args.reason", 19, "cannot both be a value and have fields"),
    ("from: program}", "from: model}", 13, 'unknown value "model"'),
    ("from: table, value: web", "from: table", 15, '"value" is required with "from: table"'),
    ("argument: request_key", "argument: charge", 25, "cannot be injected"),
    ("header: Idempotency-Key", "header: Authorization", 26, "cannot be injected"),
    ("tool: look\n", "tool: refund\n", 27, "is mapped twice"),
    ("unguarded: It only reads.", "unguarded: It only reads.\n    action: refund.create", 30, "cannot be used with unguarded"),
    ("unguarded: It only reads.", "hidden: yes", 29, "true or false"),
    ("    action: refund.create\n", "", 2, '"action" is missing'),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line", "says"), FAULTS)
def test_a_fault_has_its_file_line_tool_and_hint(old: str, new: str, line: int, says: str) -> None:
    assert old in TABLE
    with pytest.raises(PolicyError) as raised:
        parse_tool_table(TABLE.replace(old, new, 1), name="tools.yaml")
    fault = raised.value
    assert (fault.file, fault.line) == ("tools.yaml", line) and says in str(fault)
    assert fault.rule in ("shop/refund", "shop/look", None)
    assert fault.rule is not None or "wildcards" in says


def test_the_shipped_table_is_good_its_cases_pass_and_each_tool_has_one() -> None:
    assert check_tools(policies_dir(), LIBRARY) == []
    report = run_tool_cases(policies_dir(), LIBRARY)
    assert report.passed and len(report.results) >= 13 and report.unreached == ()


def in_folder(
    folder: Path, text: str, cases: str = "cases: [{name: a, server: a, tool: b, want: {refused: x}}]"
) -> Path:
    """A folder with these two files."""
    (folder / "tools.yaml").write_text(text)
    (folder / "tool_cases.yaml").write_text(cases)
    return folder


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["tools.yaml", "tool_cases.yaml"])
def test_a_pipe_in_the_folder_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    """The finding: `policy check` and a request of a tool call waited for ever for somebody to write into it."""
    path = in_folder(tmp_path, TABLE) / name
    path.unlink()
    os.mkfifo(path)
    (fault,) = check_tools(tmp_path, LIBRARY)
    assert (fault.file, fault.message) == (str(path), "is a pipe or device, not a file")
    with pytest.raises(PolicyError, match="is a pipe or device"):
        run_tool_cases(tmp_path, LIBRARY)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("account_ref: facts.account", "account_ref: args.charge", "the worker must vouch for it"),
        ("account_ref: facts.account", "account_ref: call.digest", "reads call.digest, but"),
        ("risk.duplicate_refund: facts.duplicate", "risk.duplicate_refund: 'args.reason == \"new\"'", "the worker must vouch for it"),
        ("action: refund.create", "action: refunds.create", 'no policy covers "refunds.create"'),
        (SMALL, f"{SMALL}\n      order_id: args.amount", "params.order_id is an identifier, so it must be text"),
        (SMALL, f"{SMALL}\n      order_ref.id: args.charge", "params.order_ref is an identifier, so it must be text"),
        (SMALL, f"{SMALL}\n      order.paid: {{minor: args.amount, currency: args.currency}}", "the worker must vouch for it"),
        (SMALL, f"{SMALL}\n      order.paid.value: string(args.amount)\n      order.paid.currency: '\"USD\"'", "the worker must vouch for it"),
    ],
)  # fmt: skip
def test_a_risk_fact_of_the_models_and_an_uncovered_action_are_faults(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    table = TABLE.replace("refund.create", "refund.small.coupon", 1) if old == SMALL else TABLE
    (fault,) = check_tools(in_folder(tmp_path, table.replace(old, new, 1)), LIBRARY)
    assert says in str(fault) and fault.rule == "shop/refund" and fault.line > 1


def test_a_case_that_differs_is_named_with_what_was_got(tmp_path: Path) -> None:
    wrong = "cases: [{name: a, server: shop, tool: look, want: {refused: unmapped_tool}}]"
    report = run_tool_cases(in_folder(tmp_path, TABLE, wrong), LIBRARY)
    assert not report.passed and report.unreached == ("shop/refund",)
    assert report.results[0].problem == "refused: wanted unmapped_tool, got None"
    (fault,) = check_tools(in_folder(tmp_path, TABLE, wrong.replace("refused", "refusd")), LIBRARY)
    assert 'did you mean "refused"?' in str(fault)


def test_a_case_whose_operation_the_authority_refuses_is_named_and_the_others_are_run(tmp_path: Path) -> None:
    hidden = {"name": "a", "server": "shop", "tool": "refund", "arguments": {**ARGUMENTS, "reason": "a\u200bb"}, "want": {"action": "refund.create"}}  # fmt: skip
    plain = {**hidden, "name": "b", "arguments": ARGUMENTS}
    # JSON is YAML.
    results = run_tool_cases(in_folder(tmp_path, TABLE, json.dumps({"cases": [hidden, plain]})), LIBRARY).results
    assert [result.name for result in results] == ["a", "b"] and results[1].problem == ""
    assert results[0].problem.startswith("the authority refuses the operation: params.reason: must not hold control")


def test_a_case_is_decided_at_the_same_moment_whenever_it_is_run(tmp_path: Path) -> None:
    """The finding: under a policy that asks for the hour, cases that passed by day failed at night."""
    policy = """\
policy: by-time
label: By time
version: v1
actions: [refund.create]
facts: {}
rules:
  - {id: then, says: It is the moment of a case., when: 'now == timestamp("2026-11-21T10:00:00Z")', then: ALLOW, reason: on_time}
approval: {expires: 4h, role: approver, people: 1}
"""
    (tmp_path / "by_time.yaml").write_text(policy)
    case = {"name": "a", "server": "shop", "tool": "refund", "arguments": ARGUMENTS, "want": {"decision": "ALLOW", "reason": "on_time"}}  # fmt: skip
    folder = in_folder(tmp_path, TABLE, json.dumps({"cases": [case]}))
    assert [result.problem for result in run_tool_cases(folder, PolicyLibrary.load(folder)).results] == [""]


@pytest.mark.parametrize(
    ("amount", "currency", "why"),
    [
        ("10.5", "jpy", "has more than 0 decimal digits"),
        ("10,50", "EUR", "must be a plain decimal number"),
        ("100000000000000000", "EUR", "at most 1000000000000 minor units"),
        ("1", "XXQ", "ISO 4217"),
        ("1", "u\u017fd", "ISO 4217"),
        ("1", "\u0131nr", "ISO 4217"),
        ("1", "\u00dfp", "ISO 4217"),
    ],
)
def test_an_amount_that_is_no_money_is_refused_with_the_reason(amount: str, currency: str, why: str) -> None:
    text = TABLE.replace("amount: {type: int, min: 1, max: 100000}", "amount: {type: decimal}")
    text = text.replace(", one_of: [usd, EUR]", "").replace("minor: args.amount", "major: args.amount")
    table = parse_tool_table(text.replace("string(args.amount)", "args.charge"))
    with pytest.raises(ToolRefused) as refused:
        question(table, amount=amount, currency=currency)
    assert refused.value.reason_code == "mapping_failed"
    said = str(refused.value)
    assert "shop/refund: params.amount is not an amount of money: " in said
    assert why in said

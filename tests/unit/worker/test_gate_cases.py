"""Files of labelled cases: read strictly, with place and nearest known word; expanded to one case per combination."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from sentinel.platform.resources import policies_dir
from sentinel.policy.errors import PolicyError
from sentinel.policy.switches import read_switches
from worker.gates.case_inputs import EarlierRefund
from worker.gates.cases import CaseFile, read_cases
from worker.refunds.workflow.graph import Escalation

HEAD = """scenario: fee
systems: {private: private_refund}
base: {channel: private, currency: EUR, amount: "4.90", paid: "80.00"}
cases:
"""


def written(folder: Path, cases: str, *, head: str = HEAD, name: str = "fee.yaml") -> Path:
    path = folder / name
    path.write_text(head + cases)
    return path


def refusal(folder: Path, cases: str, **over: str) -> tuple[int, str]:
    """(line, message with hint) of the refusal."""
    with pytest.raises(PolicyError) as refused:
        read_cases(written(folder, cases, **over))
    return refused.value.line, str(refused.value)


@pytest.mark.parametrize(
    ("case", "line", "said"),
    [
        ("  - {id: a, given: {chanel: private}, want: {end: execute}}", 5, 'did you mean "channel"'),
        ("  - {id: a, want: {end: execute}}\n  - {id: b, want: {end: exekute}}", 6, 'did you mean "execute"'),
        ("  - {id: a, want: {end: person, reason: open_complain}}", 5, 'did you mean "open_complaint"'),
        ("  - {id: a, given: {flags: [blacklist]}, want: {end: person}}", 5, 'did you mean "blacklisted"'),
        ("  - {id: a, given: {before: [{amount: \"1.00\", ago: yesterdy}]}, want: {end: person}}", 5, 'mean "yesterday"'),
        ("  - {id: a, given: {delivered: 7 days}, want: {end: person}}", 5, "is not a time such as 7d"),
        ("  - {id: a, given: {amount: 4.9}, want: {end: person}}", 5, 'write "4.9" in quotes'),
        ("  - {id: a, given: {amount: \"4.901\"}, want: {end: person}}", 5, "decimal digits"),
        ("  - {id: a, each: {curency: [USD]}, want: {end: person}}", 5, 'did you mean "currency"'),
        ('  - {id: a, each: {"paid amount": [["1.00"]]}, want: {end: person}}', 5, "2 values are needed, 1 is given"),
        ("  - {id: a, want: {end: person}}\n  - {id: a, want: {end: deny}}", 6, 'two cases are named "a"'),
        ("  - {id: a, given: {channel: public}, want: {end: execute}}", 5, 'systems has no "public"'),
        ("  - {id: a}", 5, '"want" is missing'),
        ("  - {id: a, given: {amount: \"0.00\"}, want: {end: person}}", 5, "must be more than 0"),
        ("  - {id: a, given: {delivered: 999999d}, want: {end: person}}", 5, "is more than a hundred years"),
        (f"  - {{id: {'a' * 60}, each: {{reason: [{'b' * 30}], note: [{'c' * 30}]}}, want: {{end: person}}}}", 5, "longer than 110"),
    ],
)  # fmt: skip
def test_a_fault_is_refused_with_its_line_and_the_nearest_known_word(
    tmp_path: Path, case: str, line: int, said: str
) -> None:
    found, text = refusal(tmp_path, case)
    assert found == line and said in text


def test_a_case_without_an_amount_is_refused(tmp_path: Path) -> None:
    _, text = refusal(tmp_path, "  - {id: a, want: {end: person}}", head=HEAD.replace('amount: "4.90", ', ""))
    assert 'the case has no "amount"' in text


def test_each_makes_one_case_per_combination_and_takes_fields_together(tmp_path: Path) -> None:
    file = read_cases(written(tmp_path, """
  - id: t
    each:
      currency: [USD, EUR]
      "paid amount": [["80.00", "8.00"], ["123.45", "12.34"]]
      before: [[{amount: "1.00", ago: today}]]
    want: {end: execute}
"""))  # fmt: skip
    assert [case.id for case in file.cases] == [
        "t/USD/80.00-8.00/1", "t/USD/123.45-12.34/1", "t/EUR/80.00-8.00/1", "t/EUR/123.45-12.34/1",
    ]  # fmt: skip
    assert [(case.given.currency, case.given.paid_minor, case.given.amount_minor) for case in file.cases][1] == (
        "USD", 12345, 1234,
    )  # fmt: skip
    assert all(case.given.before == (EarlierRefund(100, "today"),) for case in file.cases)


def test_same_is_the_amount_that_is_asked_for(tmp_path: Path) -> None:
    given = read_cases(written(tmp_path, """
  - id: a
    given: {shipping_fee: same, price_drop: same, images: [{kind: fee_receipt, amount: same}], delivered: 7d+1s}
    want: {end: execute}
""")).cases[0].given  # fmt: skip
    assert (given.shipping_fee_minor, given.item_paid_minor, given.price_now_minor) == (490, 8000, 7510)
    assert given.images == ({"kind": "fee_receipt", "amount": (490, "EUR")},)
    assert given.delivered_seconds == 7 * 86400 + 1


def test_json_lines_are_the_same_cases_with_their_own_lines(tmp_path: Path) -> None:
    path = tmp_path / "fee.jsonl"
    head = '{"scenario": "fee", "systems": {"private": "private_refund"}, "base": {"channel": "private", "currency": "EUR", "paid": "80.00", "amount": "4.90"}}\n'
    path.write_text(head + '\n{"id": "a", "want": {"end": "execute"}}\n')
    assert [(case.id, case.given.amount_minor) for case in read_cases(path).cases] == [("a", 490)]
    path.write_text(head + '\n{"id": "a", "want": {"end": "exekute"}}\n')
    with pytest.raises(PolicyError) as refused:
        read_cases(path)
    assert refused.value.line == 3 and 'did you mean "execute"' in str(refused.value)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["fee.yaml", "fee.jsonl"])
def test_the_digest_is_of_the_cases_that_were_read(tmp_path: Path, name: str) -> None:
    """The finding: the file was read again for it, so that a report named other cases than those that had run."""
    text = HEAD + "  - {id: a, want: {end: execute}}\n"
    if name.endswith(".jsonl"):
        text = '{"scenario": "fee", "systems": {"private": "private_refund"}}\n{"id": "a", "given": {"channel": "private", '
        text += '"currency": "EUR", "paid": "80.00", "amount": "4.90"}, "want": {"end": "execute"}}\n'
    once = tmp_path / name
    os.mkfifo(once)  # gives what is written into it to one reader
    writer = threading.Thread(target=once.write_text, args=(text,), daemon=True)
    writer.start()
    file = read_cases(once)
    writer.join(timeout=10)
    assert [case.id for case in file.cases] == ["a"]
    assert file.digest == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def test_a_line_separator_within_a_text_ends_no_json_line(tmp_path: Path) -> None:
    """As in rows and facts: customers' words may contain it, and JSON does not escape it."""
    path = tmp_path / "fee.jsonl"
    head = '{"scenario": "fee", "systems": {"private": "private_refund"}, "base": {"channel": "private", "currency": "EUR", "paid": "80.00", "amount": "4.90"}}\r\n'
    path.write_text(f'{head}{{"id": "a", "given": {{"reason": "one\u2028two"}}, "want": {{"end": "person"}}}}\r\n')
    (case,) = read_cases(path).cases
    assert (case.given.reason, case.where) == ("one\u2028two", f"{path}:2:3")


def shipped(scenario: str) -> CaseFile:
    return read_cases(policies_dir() / "gates" / f"{scenario}.yaml")


GATES = sorted(one.gate for one in read_switches(policies_dir() / "switches.yaml").values() if one.gate)
# What no labelled case can bring about: a replay has its authority, its directory and its recogniser, and an order of the
# case's own currency of which nothing but the case itself was paid back.
_NEVER = {"order_missing", "analyst_refund", "system_not_proven", "order_directory_unavailable", "recogniser_unavailable", "system_not_ready", "step_refused",
          "unknown_escalation", "critic_timeout", "critic_error", "critic_malformed", "critic_rejected",
          "order_overdrawn", "order_other_currency", "order_paid_unknown"}  # fmt: skip


@pytest.mark.parametrize("scenario", GATES)
def test_every_scenario_has_its_cases_with_every_end_and_every_common_gate(scenario: str) -> None:
    file = shipped(scenario)
    assert file.scenario == scenario and len(file.cases) >= 80
    assert {case.want.end for case in file.cases} == {"execute", "person", "deny", "error", "waiting"}
    reasons = {case.want.reason for case in file.cases}
    assert reasons >= {
        "halted", "switch_off", "outside_canary", "open_complaint", "account_mismatch", "blacklisted", "refunded_before",
        "order_unknown", "no_route", "outside_window", "order_other_currency", "over_limit_early", "critic_amount",
        "critic_instructions", "duplicate_refund", "customer_declined", "confirmation_expired", "awaiting_customer",
        "currency_not_covered", "too_many_attempts",
    }  # fmt: skip


def test_together_the_cases_know_every_reason_that_a_case_can_bring_about() -> None:
    reasons = {case.want.reason for scenario in GATES for case in shipped(scenario).cases}
    # Words that hide or repeat something are suspicious before they come to the critic.
    early = {"critic_encoded_text", "critic_repeated_text"}
    assert {str(reason) for reason in Escalation} - _NEVER - early <= {str(reason) for reason in reasons}

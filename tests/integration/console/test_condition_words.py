"""A condition in words says what the condition says, and nothing at all where it is not understood whole."""

from __future__ import annotations

import re

import pytest

from ops_console.pages.condition_words import in_words
from ops_console.pages.limit_words import cap_in_words, each_in_words
from sentinel.core.decision import WindowKind
from sentinel.platform.resources import policies_dir
from sentinel.policy.conditions import normalised
from sentinel.policy.describe import describe, window_in_words
from sentinel.policy.library import PolicyLibrary

NUMBERS = {"top": {"USD": "1000.00", "EUR": "1000.00"}, "low": {"USD": "20.00", "JPY": "3000"}, "one": {"EUR": "5.00"}}
SAID = {
    "risk.stale_window": "risk stale window is true",
    "!(a && b)": "not (a is true and b is true)",
    "a || b && !c": "a is true or (b is true and c is false)",
    "(a || b) && present.c": "(a is true or b is true) and c is given",
    "!present.c && !!a": "c is not given and a is true",
    "amount_minor > numbers.top": "the amount is more than 1,000.00 (USD, EUR)",
    "amount_minor <= numbers.low": "the amount is at most its currency's figure (20.00 USD, 3,000 JPY)",
    "amount_minor >= numbers.one": "the amount is at least 5.00 EUR",
    "amount_minor * 10 > order.paid_minor": "the amount in minor units times 10 is more than order paid in minor units",
    'action in ["a.b", "c"] && !(x in ["y"])': "the action is one of “a.b”, “c” and x is none of “y”",
    'action != "a." + b': "the action is not “a.” followed by b",
    '!action.startsWith("a.")': "the action does not begin with “a.”",
    "!currency_covered && currency.covered": "the policy has no figures for its currency and currency covered is true",
}
UNSAID = (
    "!a == b", "a && 5", "x / 2 > 1", "x % 2 == 0", "x > -1", "a ? b : c", "now.getHours() > 3", "[1].exists(x, x > 0)", "a in b",
    "x[0] == 1", "5u == x", "numbers.unknown > 3", "amount_minor > numbers.unknown", "amount_minor + 1 > numbers.top", "1 < 2 == c",
    '"a\\n" == b', "a b", "(a", "a)", "", "(x) > 3", '"x" && a',
)  # fmt: skip


@pytest.mark.parametrize("condition", SAID)
def test_a_condition_reads_as_it_decides(condition: str) -> None:
    assert in_words(condition, NUMBERS) == SAID[condition]
    assert in_words(normalised(condition), NUMBERS) == SAID[condition], "its layout is no part of it"


def test_what_is_not_understood_whole_has_no_words() -> None:
    assert {condition: in_words(condition, NUMBERS) for condition in UNSAID} == dict.fromkeys(UNSAID, "")


def test_every_rule_that_is_shipped_has_words_with_its_amounts_and_none_of_the_marks() -> None:
    for policy in PolicyLibrary.load(policies_dir()).policies:
        told = describe(policy)
        for rule in told["rules"]:
            words = in_words(rule["when"], told["numbers"])
            assert words, rule["when"]
            assert (
                not any(mark in words for mark in ("&&", "||", "!", "==", ">", "<", "numbers", "_")) or "“" in words
            ), words


def test_every_limit_that_is_shipped_has_words_that_are_those_of_the_policy_command_but_for_its_condition() -> None:
    for policy in PolicyLibrary.load(policies_dir()).policies:
        told = describe(policy)
        for limit in told["limits"]:
            cap = re.sub(r"(?<=[0-9]),(?=[0-9]{3})", "", cap_in_words(limit))
            condition = f" when {limit['when']}" if limit["when"] else ""
            assert limit["words"] == f"{cap}{condition}; over it {limit['then']} ({limit['reason']})"
            assert bool(limit["when"]) == bool(limit["when"] and in_words(limit["when"], told["numbers"]))


def test_a_limits_window_and_what_each_has_its_own_budget_of_are_told() -> None:
    windows = {("calendar_day", 0): "per calendar day in Asia/Tokyo", ("calendar_month", 0): "per calendar month in Asia/Tokyo",
               ("rolling", 3600 * 24): "in any 24 hours", ("rolling", 3600 * 48): "in any 2 days", ("rolling", 3600 * 36): "in any 36 hours"}  # fmt: skip
    assert {(kind, n): window_in_words(WindowKind(kind), n, "Asia/Tokyo") for kind, n in windows} == windows
    assert each_in_words(("risk.customer_band", "currency")) == "each risk customer band and currency"

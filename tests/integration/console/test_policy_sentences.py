"""Every rule and limit is shown with the policy's own sentence, and its condition and amounts as they are written."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ops_console.pages.text import cap_in_words, each_in_words, named_amounts
from sentinel.authority import policies
from sentinel.authority.policies import declare_policies, remember_policies
from sentinel.core.canonical import sha256_hex
from sentinel.core.decision import WindowKind
from sentinel.core.errors import EngineUnavailable
from sentinel.core.operation import build_operation
from sentinel.platform.resources import policies_dir
from sentinel.policy.compile import CompiledPolicy
from sentinel.policy.describe import describe, window_in_words
from sentinel.policy.library import PolicyLibrary
from sentinel.policy.model import rolling_bucket_seconds
from sentinel.policy.parse import MAX_EXPIRY, MAX_WINDOW
from tests.integration.console.approval_pages import card
from tests.support.decided_by import decided_by
from tests.support.verbs import guarded
from tests.unit.policy.policy_samples import without_sentences

SHIPPED = PolicyLibrary.load(policies_dir()).policies
SCENARIOS = ("fee", "price_diff", "compensation", "defect", "quality")
USD = {"value": "90.00", "currency": "USD"}
ASKED: dict[str, dict[str, dict[str, Any]]] = {
    "retail-refund": {"refund.create": {"amount": {"value": "200.00", "currency": "USD"}, "refund_id": "rf_1"}},
    "small-refund": {
        f"refund.small.{name}": {"amount": USD, "refund_id": f"rf_{name}", "channel": "private", "scenario": name,
                                 "order": {"paid": USD}, "account_ref": "acct_1"}
        for name in SCENARIOS
    },
    "order-fraud": {"order.fulfill": {"amount": USD, "band": "medium", "order_key": "demo/o_1"}},
    "agent-actions": {"gift_card.issue": {"amount": USD}},
}  # fmt: skip
"""By policy: operations that need a person and that between them would use each of its limits."""
RISK = {"duplicate_refund": False, "stale_window": False, "suspicious_reason": False, "customer_attempts_24h": 1}


def sentences(policy: CompiledPolicy) -> list[str]:
    """What the policy's rules and limits say; one that has no sentence fails here."""
    found = [one.says for one in (*policy.policy.rules, *policy.policy.limits)]
    assert all(found)
    return [one for one in found if one]


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)))


def cards(fixtures: Any, policy_id: str, **settings: Any) -> Iterator[str]:
    """The approval cards of the policy's operations, as a person reads them."""
    approver = fixtures.browser(f"ann-{policy_id}", app=fixtures.app(**settings))
    caller = fixtures.caller()
    for action, params in ASKED[policy_id].items():
        operation = build_operation(
            idempotency_key=f"asked:{action}", agent_id=caller.agent_id, action=action, resource=f"thing/{action}",
            params={"risk": RISK, **params},
        )  # fmt: skip
        recorded = guarded(fixtures.authority, caller, operation)
        assert recorded.status == "pending", (action, recorded)
        yield text_of(card(approver, recorded.approval_id))


def test_every_rule_and_limit_that_is_shipped_has_a_sentence_of_its_own_without_the_marks_of_its_condition() -> None:
    for policy in SHIPPED:
        found = sentences(policy)
        assert len(set(found)) == len(found), policy.policy.policy_id
        for sentence in found:
            assert re.fullmatch(r"[A-Z][^&|=<>_]{10,}\.", sentence), sentence


@pytest.mark.parametrize("policy", SHIPPED, ids=lambda one: one.policy.policy_id)
def test_every_sentence_that_is_shipped_is_on_its_policys_page_and_on_an_approvals_card(
    fixtures: Any, policy: CompiledPolicy
) -> None:
    declare_policies(fixtures.authority)
    policy_id = policy.policy.policy_id
    page = text_of(fixtures.browser("vic", "viewer").get(f"/ops/policies/{policy_id}").get_data(as_text=True))
    shown, wanted = page.partition(" Source ")[0], sentences(policy)
    assert [one for one in wanted if one not in shown] == []
    told = " ".join(cards(fixtures, policy_id))
    assert [one for one in wanted if one not in told] == []


def test_a_policy_that_was_kept_without_sentences_shows_its_conditions_alone(fixtures: Any) -> None:
    (policy,) = [one for one in SHIPPED if one.policy.policy_id == "retail-refund"]
    text = without_sentences(policy)
    older = sha256_hex(text)
    remember_policies(fixtures.authority.pool, [(older, "retail-refund", "older", text)])
    page = fixtures.browser("vic", "viewer").get("/ops/policies/retail-refund")
    shown = text_of(page.get_data(as_text=True).partition('id="source"')[0])
    assert [one for one in sentences(policy) if one in shown] == []
    assert [rule.when for rule in policy.policy.rules if rule.when not in shown] == []
    assert not re.search(r"\bNone (?!of the latest operations)", shown)
    recorded = fixtures.guard("200.00")
    decided_by(fixtures, older, recorded.operation_id)
    told = text_of(card(fixtures.browser("ann"), recorded.approval_id))
    assert [rule.says for rule in policy.policy.rules if rule.says and rule.says in told] == []
    assert [rule.when for rule in policy.policy.rules if rule.when not in told] == []
    assert older[:19] in told and "None" not in told


def test_the_amounts_that_a_condition_names_stand_below_it(fixtures: Any) -> None:
    declare_policies(fixtures.authority)
    for shown in (
        text_of(fixtures.browser("vic", "viewer").get("/ops/policies/retail-refund").get_data(as_text=True)),
        *cards(fixtures, "retail-refund"),
    ):
        assert (
            "amount_minor > numbers.approve_up_to numbers.approve_up_to: 1,000.00 EUR, 1,000.00 GBP, 1,000.00 USD"
            in shown
        )
        assert "risk.customer_attempts_24h >= 3 " in shown


def test_each_number_is_named_once_in_the_conditions_order_and_an_unknown_one_not_at_all() -> None:
    numbers = {"low": {"USD": "20.00", "JPY": "3000"}, "lowest": {"EUR": "5.00"}}
    condition = "a > numbers.lowest && ( b < numbers . low || b == numbers.lowest ) && numbers.other > 1"
    assert named_amounts(condition, numbers) == ["numbers.lowest: 5.00 EUR", "numbers.low: 20.00 USD, 3,000 JPY"]
    assert named_amounts("amount_minor > 5", numbers) == []


def test_every_limit_that_is_shipped_has_words_that_are_those_of_the_policy_command_but_for_its_condition() -> None:
    for policy in SHIPPED:
        for limit in describe(policy)["limits"]:
            cap = re.sub(r"(?<=[0-9]),(?=[0-9]{3})", "", cap_in_words(limit))
            condition = f" when {limit['when']}" if limit["when"] else ""
            assert limit["words"] == f"{cap}{condition}; over it {limit['then']} ({limit['reason']})"


SIZES = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}


def seconds_of(words: str) -> int:
    found = re.fullmatch("(?:in any|within) (?:([0-9,]+) )?([a-z]+?)s?", words)
    assert found is not None, words
    return int((found[1] or "1").replace(",", "")) * SIZES[found[2]]


def test_every_length_that_is_accepted_is_told_to_the_second() -> None:
    windows = {
        seconds for seconds in range(3600, MAX_WINDOW + 1, 300) if seconds % rolling_bucket_seconds(seconds) == 0
    }
    assert len(windows) > 800
    for seconds in windows:
        assert seconds_of(window_in_words(WindowKind.ROLLING, seconds, "UTC")) == seconds
    (policy, *_) = SHIPPED
    for seconds in (60, 61, 90, 1800, 3600, 5400, 86_400, 90_000, 172_800, MAX_EXPIRY):
        terms = replace(policy.policy.approval, expires_seconds=seconds, two_people_from={})
        words = describe(replace(policy, policy=replace(policy.policy, approval=terms)))["approval"]["words"]
        assert seconds_of(words.partition(", ")[2]) == seconds


def test_a_limits_window_and_what_each_has_its_own_budget_of_are_told() -> None:
    windows = {("calendar_day", 0): "per calendar day in Asia/Tokyo", ("calendar_month", 0): "per calendar month in Asia/Tokyo",
               ("rolling", 3600 * 24): "in any 24 hours", ("rolling", 3600 * 48): "in any 2 days", ("rolling", 3600 * 36): "in any 36 hours"}  # fmt: skip
    assert {(kind, n): window_in_words(WindowKind(kind), n, "Asia/Tokyo") for kind, n in windows} == windows
    other = {
        3600: "in any hour",
        5400: "in any 90 minutes",
        12_600: "in any 210 minutes",
        7200: "in any 2 hours",
        86_100: "in any 1,435 minutes",
    }
    assert {n: window_in_words(WindowKind.ROLLING, n, "UTC") for n in other} == other
    assert each_in_words(("risk.customer_band", "currency")) == "each risk customer band and currency"


def test_a_declaration_that_fails_halfway_puts_nothing_in_force(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding: each statement was a transaction of its own, and readers saw sets that nobody had declared."""
    pool = fixtures.authority.pool
    before = policies.digests_in_force(pool)
    monkeypatch.setattr(policies, "TAKE_OUT_OF_FORCE", "select 1 / 0")
    with pytest.raises(EngineUnavailable):
        remember_policies(pool, [("sha256:" + "0" * 64, "another", "v1", "{}")])
    assert policies.digests_in_force(pool) == before

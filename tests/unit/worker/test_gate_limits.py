"""Which limits a launch gate wants tried is what the policy declares, whatever a request would be answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.cli.gates import windows_of
from sentinel.platform.command_line import InvalidUsage
from sentinel.platform.resources import policies_dir
from sentinel.policy.compile import CompiledPolicy
from sentinel.policy.library import PolicyLibrary

FACTS, RULES, CURRENCIES = "\nfacts:\n", "\nrules:\n", ("EUR", "GBP", "USD")
AGE = (FACTS, f"{FACTS}  age: {{type: int, from: params.risk.age, vouched_by: worker}}\n")
FEE_DAY = 'when: action == "refund.small.fee", window: calendar_day'
SHIPPED = {f"fee_{window}" for window in ("day", "24h", "month", "90d")}


def changed(folder: Path, *changes: tuple[str, str]) -> CompiledPolicy:
    """The shipped policy of small refunds with these changes."""
    text = (policies_dir() / "small_refund.yaml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    (folder / "small_refund.yaml").write_text(text)
    (policy,) = PolicyLibrary.load(folder).without_totals().policies
    return policy


def names(policy: CompiledPolicy) -> dict[str, set[str]]:
    return {currency: {str(one["id"]) for one in windows_of(policy, "fee", currency)} for currency in CURRENCIES}


@pytest.mark.parametrize(
    "changes",
    [
        [AGE, (RULES, f"{RULES}  - {{id: far, says: Too far., when: age > 900, then: DENY, reason: over_limit}}\n")],
        [(RULES, f"{RULES}  - {{id: late, says: By day only., when: now.getHours('UTC') >= 0, then: DENY, reason: over_limit}}\n")],
        [(FEE_DAY, FEE_DAY.replace('fee"', 'fee" && amount_minor > 500'))],
        [(FEE_DAY, FEE_DAY.replace('fee"', 'fee" && channel == "public"'))],
        [(FEE_DAY, FEE_DAY.replace('action == "refund.small.fee"', 'scenario == "fee" && present.account'))],
    ],
    ids=["denied for want of a fact", "denied at any hour", "by amount", "another channel", "by a fact that may be there"],
)  # fmt: skip
def test_every_limit_that_may_apply_is_wanted(changes: list[tuple[str, str]], tmp_path: Path) -> None:
    assert names(changed(tmp_path, *changes)) == dict.fromkeys(CURRENCIES, SHIPPED)


def test_a_limit_is_named_as_the_authority_counts_it_and_one_of_another_scenario_is_not(tmp_path: Path) -> None:
    policy = changed(tmp_path, (FEE_DAY, FEE_DAY.replace("small.fee", "small.defect")))
    assert names(policy) == dict.fromkeys(CURRENCIES, SHIPPED - {"fee_day"})
    assert windows_of(policy, "fee", "EUR")[0] == {
        "id": "fee_24h", "currency": "EUR", "kind": "rolling", "seconds": 86_400, "key_prefix": "small-refund/fee_24h|", "cap_minor": 3000,
    }  # fmt: skip


def test_a_limit_without_a_cap_in_a_covered_currency_is_named(tmp_path: Path) -> None:
    policy = changed(tmp_path, ('cap: {USD: "30.00", EUR: "30.00", GBP: "30.00"}', 'cap: {USD: "30.00", GBP: "30.00"}'))
    with pytest.raises(InvalidUsage, match="limit fee_day has no cap in EUR"):
        windows_of(policy, "fee", "EUR")

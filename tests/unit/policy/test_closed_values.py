"""A comparison that can never hold is refused at load: an action, a currency or a declared value that is misspelt."""

from __future__ import annotations

from pathlib import Path

import pytest
from policy_samples import POLICY, compile_text

from sentinel.platform.resources import policies_dir
from sentinel.policy import conditions
from sentinel.policy.checked_tree import NotCovered
from sentinel.policy.errors import PolicyError
from sentinel.policy.library import PolicyLibrary

CLOSED = (
    POLICY.replace("[sample.pay]", "[sample.pay, gift.*]")
    .replace("facts:\n", "facts:\n  act: {type: string, from: action, vouched_by: authority}\n")
    .replace("  ordered_at:", "  tier: {type: string, from: params.tier, one_of: [gold, silver], vouched_by: worker}\n  ordered_at:")
)  # fmt: skip


def _with(condition: str) -> str:
    return CLOSED.replace("when: risk.count >= 3", f"when: '{condition}'")


@pytest.mark.parametrize(
    ("condition", "column", "message"),
    [
        ('act == "sample.payout"', 19, '"sample.payout" is not an action of this policy (did you mean "sample.pay"?)'),
        ('"sample.payout" != act', 12, '"sample.payout" is not an action of this policy'),
        ('risk.count > 1 && (act in ["gift.card", "sampel.pay"])', 52, '"sampel.pay" is not an action of this policy'),
        ('act == "refund.create"', 19, '"refund.create" is not an action of this policy (known: sample.pay, gift.*)'),
        ('act == "gift.*"', 19, '"gift.*" is not an action of this policy (ask act.startsWith("gift."))'),
        ('currency == "eur"', 24, '"eur" is not an ISO 4217 currency (did you mean "EUR"?)'),
        ('tier == "golden"', 20, '"golden" is not a value of "tier" (did you mean "gold"?)'),
        ('present.tier && !(tier == "Silver")', 38, '"Silver" is not a value of "tier" (did you mean "silver"?)'),
    ],
)
def test_a_text_that_the_variable_can_never_be_is_refused(
    condition: str, column: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(PolicyError) as caught:
        compile_text(tmp_path, _with(condition))
    assert f'rule "often": when: {message}' in caught.value.detail
    assert caught.value.column == column


def test_a_declared_value_that_looks_like_a_pattern_stands_for_itself_alone(tmp_path: Path) -> None:
    def text(compared: str) -> str:
        return _with(f'tier == "{compared}"').replace("one_of: [gold, silver]", 'one_of: ["gold.*", silver]')

    assert compile_text(tmp_path, text("gold.*"))
    with pytest.raises(PolicyError, match='"gold.x" is not a value of "tier"'):
        compile_text(tmp_path, text("gold.x"))


BY_THE_ENGINE = (
    'now.getHours("Europe/Berlin") >= 22', 'account.matches("a.*")', "[1, 2].exists(x, x == risk.count)",
    'risk.count in {1: true}', "string(risk.count) == account",
)  # fmt: skip


@pytest.mark.parametrize("beside", BY_THE_ENGINE)
@pytest.mark.parametrize(
    ("compared", "value"),
    [
        ('act == "sample.payout"', '"sample.payout"'),
        ('tier in ["gold", "silber"]', '"silber"'),
        ('[true].exists(x, currency == "eur" && x)', '"eur"'),
    ],
)
def test_a_misspelt_value_is_refused_beside_what_only_the_engine_answers(
    beside: str, compared: str, value: str, tmp_path: Path
) -> None:
    for condition in (f"{compared} && {beside}", f"{beside} || !({compared})"):
        with pytest.raises(PolicyError, match=f"when: {value} is not") as caught:
            compile_text(tmp_path, _with(condition))
        assert caught.value.column == 12 + condition.index(value)


def test_the_caret_is_under_the_comparison_and_not_under_the_same_text_elsewhere(tmp_path: Path) -> None:
    condition = 'account == "golden" || tier == "golden"'
    with pytest.raises(PolicyError) as caught:
        compile_text(tmp_path, _with(condition))
    assert caught.value.column == 12 + condition.rindex('"golden"')


def test_a_condition_whose_parts_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unread(serialized: bytes) -> None:
        raise NotCovered("a node of an unknown shape")

    monkeypatch.setattr(conditions, "checked_expression", unread)
    with pytest.raises(PolicyError, match="when: cannot be checked: a node of an unknown shape"):
        compile_text(tmp_path, POLICY)


@pytest.mark.parametrize(
    "condition",
    [
        'act == "sample.pay" || act == "gift.card.issue" || "gift.x" == act',
        'currency in ["EUR", "JPY"] && currency != "USD"',
        'tier == "gold" || tier in ["silver"]',
        'account == "anything"',
        '["sampel"].exists(act, act == "sampel") && [{"tier": 1}].all(tier, "x" in tier)',
        'act.startsWith("sampel.") || act + "x" == "y" || act == account',
    ],
)
def test_what_may_hold_is_accepted(condition: str, tmp_path: Path) -> None:
    assert compile_text(tmp_path, _with(condition))


def test_the_condition_of_a_limit_is_looked_at_too(tmp_path: Path) -> None:
    limited = CLOSED.replace("    window: calendar_day\n", "    window: calendar_day\n    when: act == 'sample.payd'\n")
    with pytest.raises(PolicyError, match='limit "account_day": when: "sample.payd" is not an action of this policy'):
        compile_text(tmp_path, limited)


def test_the_shipped_policies_name_only_what_may_be() -> None:
    assert PolicyLibrary.load(policies_dir()).policies

"""Conditions: only the object True is true. The mutant, which trusts truthiness, fails open and is seen."""

from __future__ import annotations

from typing import Any

import pytest

from sentinel.policy.conditions import Condition, ConditionError, Conditions, normalised, references

VARIABLES = {"n": "int", "flag": "bool", "risk.count": "int", "name": "string", "at": "timestamp", "now": "timestamp"}

# Each of them cannot be answered: a missing fact, an overflow, a division, a wrong kind, a budget.
UNANSWERABLE: list[tuple[str, dict[str, Any]]] = [
    ("n < 5", {}),
    ("risk.count < 5", {"n": 1}),
    ("flag && n < 5", {"flag": True}),
    ("n < 5", {"n": "1"}),
    ("n < 5", {"n": None}),
    ("flag", {"flag": 1}),
    ("n / 0 < 5", {"n": 1}),
    ("n + 9223372036854775807 > 0", {"n": 1}),
    ("timestamp(name) < now", {"name": "soon"}),
    ("name.matches(name)", {"name": "("}),
    ("[1, 2, 3].exists(x, x > n)", {}),
]


class Truthy(Condition):
    """The mutant: takes the engine's value for its truth."""

    __slots__ = ()

    def holds(self, activation: Any) -> bool | None:
        return bool(self._evaluate(activation).value())


def _unanswered(kind: type[Condition]) -> list[bool | None]:
    conditions = Conditions(VARIABLES)
    answers = []
    for text, values in UNANSWERABLE:
        condition = conditions.compile(text)
        condition.__class__ = kind
        answers.append(condition.holds(conditions.activation(values)))
    return answers


def test_what_cannot_be_answered_is_neither_true_nor_false() -> None:
    assert set(_unanswered(Condition)) == {None}


def test_the_mutant_that_trusts_truthiness_is_caught() -> None:
    assert True in _unanswered(Truthy)


@pytest.mark.parametrize("spoilt", UNANSWERABLE)
def test_asked_at_once_one_that_cannot_answer_is_no_answer_and_the_others_are(
    spoilt: tuple[str, dict[str, Any]],
) -> None:
    conditions = Conditions(VARIABLES)
    combined = conditions.combined([conditions.compile(text) for text in ("true", spoilt[0], "false")])
    assert tuple(combined.answers(spoilt[1])) == (True, None, False)


def test_asked_at_once_each_answers_as_alone() -> None:
    conditions = Conditions(VARIABLES)
    alone = [conditions.compile(text) for text in ("n < 5", "n > 5 || flag", "name == 'a, b'", "flag ? n == 1 : n == 2", "!flag", "name.matches('a.*')")]  # fmt: skip
    combined = conditions.combined(alone)
    assert combined.by_engine == {5}
    for n in (1, 2, 9):
        for flag in (True, False):
            values = {"n": n, "flag": flag, "name": "a, b"}
            activation = conditions.activation(values)
            assert list(combined.answers(values)) == [condition.holds(activation) for condition in alone]


def test_what_an_answer_does_not_need_may_be_missing() -> None:
    conditions = Conditions(VARIABLES)
    activation = conditions.activation({"flag": True})
    assert conditions.compile("flag || n < 5").holds(activation) is True
    assert conditions.compile("!flag && n < 5").holds(activation) is False


def test_a_loop_over_the_engines_budget_is_no_answer() -> None:
    conditions = Conditions(VARIABLES)
    numbers = "[" + ",".join(str(i) for i in range(40)) + "]"
    loops = f"{numbers}.all(a, {numbers}.all(b, {numbers}.all(c, a + b + c >= 0)))"
    assert conditions.compile(loops).holds(conditions.activation({})) is None


def test_normalised_text_means_the_same_and_is_stable() -> None:
    text = "flag&&(n<5||!(name=='a  b'))// why\n"
    assert normalised(text) == "flag && ( n < 5 || ! ( name == 'a  b' ) )"
    assert normalised(normalised(text)) == normalised(text)


def test_references_are_the_declared_names_in_use() -> None:
    assert references("risk.count < 5 && name.startsWith('x')", VARIABLES) == {"risk.count", "name"}
    assert references("name == 'risk.count' || name == \"it's risk.count\"", VARIABLES) == {"name"}


@pytest.mark.parametrize("text", ["`n` < 5", "n < 5 # x", "'''a''' == name", "b'a' == b'a'", "n < 0.5", "n < .5", ""])
def test_odd_spellings_are_refused(text: str) -> None:
    with pytest.raises(ConditionError):
        Conditions(VARIABLES).compile(text)


def test_quoted_text_may_contain_what_is_refused_elsewhere() -> None:
    conditions = Conditions(VARIABLES)
    condition = conditions.compile("name == 'has(1.5)'")
    assert condition.holds(conditions.activation({"name": "has(1.5)"})) is True


@pytest.mark.parametrize("text", ["string(n / 0)", "name + string(risk.count)", "n / 0", "name", "n > 0 ? name : 'x'"])
def test_an_expression_that_fails_has_no_value_and_not_the_engines_message(text: str) -> None:
    conditions = Conditions(VARIABLES)
    assert conditions.compile_value(text).value(conditions.activation({"n": 1})) is None


def test_an_expression_has_text_a_whole_number_or_a_boolean() -> None:
    conditions = Conditions(VARIABLES)
    values = conditions.activation({"n": 7, "name": "a"})
    found = [conditions.compile_value(text) for text in ("name + ':' + string(n)", "n * 2", "n > 7")]
    assert [(one.kind, one.value(values)) for one in found] == [("string", "a:7"), ("int", 14), ("bool", False)]
    for text in ("at", "[n]", "{'a': n}", "null", "n +", "nam", "1.5"):
        with pytest.raises(ConditionError):
            conditions.compile_value(text)

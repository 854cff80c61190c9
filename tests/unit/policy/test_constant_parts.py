"""A part of a condition that can never have a value is refused where a policy is loaded, with its place and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from policy_samples import POLICY, compile_text

from sentinel.core.canonical import canonical_json, sha256_hex
from sentinel.policy.conditions import ConditionError, Conditions
from sentinel.policy.errors import PolicyError
from sentinel.policy.explain import compile_stored_policy

CONDITIONS = Conditions({"n": "int", "flag": "bool", "name": "string", "now": "timestamp"})

# A condition, the text that the caret stands on, and why.
NEVER = [
    ("flag && name.matches('(')", "'('", "missing )"),
    ("matches(name, 'a{99999}')", "'a{", "invalid repetition size"),
    ("n / 0 < 5", "0 <", "divide by zero"),
    ("n > 7 || n % (3 - 3) == 1", "- 3", "modulus by zero"),
    ("uint(n) / 0u == 1u", "0u", "divide by zero"),
    ("1 / 0 > n", "0 >", "divide by zero"),
    ("timestamp('soon') < now", "'soon'", "String to Timestamp conversion failed"),
    ("now - timestamp('2026-02-30T00:00:00Z') > duration('1h')", "'2026", "String to Timestamp conversion failed"),
    ("now - now > duration('a day')", "'a day'", "String to Duration conversion failed"),
    ("now.getHours('Europe/Berln') == 3", "'Europe", "Invalid timezone"),
    ("int('many') > n", "'many'", "cannot convert string to int"),
    ("9223372036854775807 + 1 > n", "1 > n", "integer overflow"),
    ("true || name in [string(1 / 0)]", "0)]", "divide by zero"),
    ("[1, 2].exists(x, x / 0 == n)", "0 ==", "divide by zero"),
    ("[n].exists(x, x == [1, 2][5])", "5]", "index=5 size=2"),
    ("{'a': int('x')}['a'] == n", "'x'", "cannot convert string to int"),
    ("{'a': 1}.b == n", ".b", "Key not found in map"),
    ("n in [{'a': 1}.b]", ".b", "Key not found in map"),
    ("'\U0001f600' == name || n / 0 == 1", "0 ==", "divide by zero"),
]


@pytest.mark.parametrize(("text", "place", "why"), NEVER)
def test_a_part_that_can_never_have_a_value_is_refused_with_its_place(text: str, place: str, why: str) -> None:
    with pytest.raises(ConditionError) as refused:
        CONDITIONS.check_constants(CONDITIONS.parts(text))
    assert "can never have a value" in refused.value.message and why in refused.value.message
    assert refused.value.offset == text.index(place)


@pytest.mark.parametrize(
    "text",
    [
        "name.matches('a.*(b|c)') || name.matches(name)", "n / 2 > 1 && 7 % n == 1 && 0 / n == 0", "uint(n) / 2u == 1u",
        "now - timestamp('2026-02-28T00:00:00Z') > duration('1h') + duration('90s')", "now.getHours('Europe/Berlin') == 3",
        "now.getHours() == 3 && now.getHours('+02:00') == 3", "int(name) > n && timestamp(name) < now",
        "[1, 2].map(x, x * n).exists(x, x / n == [1, 2][n])", "{'a': n}['a'] == 1 && {'a': 1}[name] == 1", "type(n) == int",
        "{'a': 1}.a == n && {'a': n}.b == 1 && n in [1, 1] && name in {'a': 1, 'b': 2}",
    ],
)  # fmt: skip
def test_what_depends_on_the_request_and_what_has_a_value_is_accepted(text: str) -> None:
    CONDITIONS.compile(text)
    CONDITIONS.check_constants(CONDITIONS.parts(text))


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "rule"),
    [
        ("when: risk.count >= 3", "when: risk.count / 0 >= 3", 22, 24, "often"),
        ("when: risk.known", "when: |\n      risk.known ||\n        account.matches('(')", 19, 25, "known_fraud"),
        ("    cap:", "    when: ordered_at < timestamp('soon')\n    cap:", 35, 34, "account_day"),
    ],
)
def test_a_policy_file_with_one_is_refused_with_file_line_and_rule(
    old: str, new: str, line: int, column: int, rule: str, tmp_path: Path
) -> None:
    with pytest.raises(PolicyError) as refused:
        compile_text(tmp_path, POLICY.replace(old, new, 1))
    found = refused.value
    assert (found.line, found.column, found.rule) == (line, column, rule)
    assert "when: this can never have a value: " in found.message


def test_a_policy_that_was_recorded_with_one_is_still_compiled_to_explain_its_decisions(tmp_path: Path) -> None:
    document: dict[str, Any] = orjson.loads(canonical_json(compile_text(tmp_path, POLICY).policy.document()))
    document["rules"][1]["when"] = "risk.count / 0 >= 3"
    text = canonical_json(document)
    assert compile_stored_policy(text, sha256_hex(text)) is not None

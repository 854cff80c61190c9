"""Conditions as Python answer exactly as the engine does: generated conditions and values, every shipped policy, every case."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sentinel.core.decision import Verdict
from sentinel.platform.resources import policies_dir
from sentinel.policy import condition_function as module
from sentinel.policy.cases import read_cases
from sentinel.policy.checked_tree import Node, NodeKind, NotCovered, checked_tree
from sentinel.policy.conditions import ConditionError, Conditions
from sentinel.policy.evaluate import evaluate
from sentinel.policy.facts import Requester, extract_facts
from sentinel.policy.library import PolicyLibrary
from tests.unit.policy.policy_samples import NOW, POLICY, by_engine, compile_text, sample_request, untranslated

SCALE = int(os.environ.get("SENTINEL_TEST_SCALE", "1"))
TYPES = {
    "n": "int", "m": "int", "risk.count": "int", "flag": "bool", "present.x": "bool", "name": "string", "other": "string",
    "at": "timestamp", "now": "timestamp",
}  # fmt: skip
CONDITIONS = Conditions(TYPES)
LEAST, MOST = -(2**63), 2**63 - 1

INTEGERS = st.sampled_from(
    ["n", "m", "risk.count", "0", "1", "-1", "3", "100", str(MOST), str(LEAST), "size(name)", "other.size()"]
)
TEXTS = st.sampled_from(["name", "other", "''", "'a'", '"ab"', "'é'", "'\U0001f600'", "'\\u00e9'", "'a\\n'", "'%'"])
TIMES = st.sampled_from(["at", "now"])
COMPARED = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])

_integers = st.recursive(
    INTEGERS,
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "/", "%"]), inner),
        st.builds("(-({}))".format, inner),
    ),
    max_leaves=4,
)
_texts = st.recursive(TEXTS, lambda inner: st.builds("({} + {})".format, inner, inner), max_leaves=3)
_durations = st.one_of(
    st.builds("({} - {})".format, TIMES, TIMES),
    st.builds(
        "duration('{}')".format, st.sampled_from(["0s", "24h", "90m", "720h", "1s", "2562047h", "2562048h", "9999999h"])
    ),
)
_atoms = st.one_of(
    st.sampled_from(["flag", "present.x", "true", "false"]),
    st.builds("{} {} {}".format, _integers, COMPARED, _integers),
    st.builds("{} {} {}".format, _texts, COMPARED, _texts),
    st.builds("{} {} {}".format, TIMES, COMPARED, TIMES),
    st.builds("{} {} {}".format, _durations, COMPARED, _durations),
    st.builds("{}.{}({})".format, _texts, st.sampled_from(["startsWith", "endsWith", "contains"]), _texts),
    st.builds(
        "{} in [{}]".format, TEXTS, st.lists(st.sampled_from(["'a'", "'ab'", "'é'", "''"]), max_size=3).map(", ".join)
    ),
    st.builds(
        "{} in [{}]".format,
        _integers,
        st.lists(st.sampled_from(["0", "1", "-1", str(MOST)]), max_size=3).map(", ".join),
    ),
)
EXPRESSIONS = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("!({})".format, inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
        st.builds("({} == {})".format, inner, inner),
        st.builds("({} < {})".format, inner, inner),
    ),
    max_leaves=6,
)
UNTRANSLATED = st.sampled_from(
    [
        "name.matches(other)",
        "string(n) == name",
        "now.getHours() < 9",
        "[n, m].all(x, x > 0)",
        "timestamp(name) < now",
        "n in [m]",
    ]
)

LONGEST = timedelta(microseconds=2**63 // 1000)
"""The longest difference of two times that the engine has, in whole microseconds; the other way it has one second less."""
AROUND = [timedelta(microseconds=off) for off in (-2_000_000, -1, 0, 1, 2_000_000)]
LONG_BEFORE = [datetime(2020, 1, 1, tzinfo=UTC) - LONGEST + around for around in AROUND]
LONG_AFTER = [datetime(2020, 1, 1, tzinfo=UTC) + LONGEST + around for around in AROUND]

_right: dict[str, st.SearchStrategy[Any]] = {
    "int": st.one_of(st.integers(-3, 4), st.sampled_from([LEAST, LEAST + 1, MOST, MOST - 1, 2**53, 10**12, 3037000500])),
    "bool": st.booleans(),
    "string": st.one_of(st.sampled_from(["", "a", "ab", "é", "e\u0301", "\U0001f600", "\uffff", "a\n", "a\x01b", "A"]), st.text(max_size=5).filter(lambda text: "\0" not in text)),
    "timestamp": st.one_of(
        st.datetimes(datetime(2020, 1, 1), datetime(2020, 1, 3)).map(lambda at: at.replace(tzinfo=UTC)),
        st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31)).map(lambda at: at.replace(tzinfo=UTC)),
        st.sampled_from([datetime(2020, 1, 1, tzinfo=UTC), *LONG_BEFORE, *LONG_AFTER]),
        st.sampled_from([datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
                         datetime(2020, 1, 2, tzinfo=timezone(timedelta(hours=-5)))]),
    ),
}  # fmt: skip
_wrong = st.sampled_from(
    [None, True, 0, 1, 2**63, LEAST - 1, 1.0, "1", "", "\ud800", b"a", [], {}, datetime(2020, 1, 2), timedelta(1)]
)
VALUES = st.fixed_dictionaries({}, optional={name: st.one_of(_right[kind], _right[kind], _right[kind], _right[kind], _wrong) for name, kind in TYPES.items()})  # fmt: skip


def engine_answers(texts: list[str], values: Mapping[str, Any]) -> list[bool | None]:
    conditions = [untranslated(CONDITIONS.compile(text)) for text in texts]
    return list(CONDITIONS.combined(conditions).answers(values))


def answers_or_error(ask: Any) -> Any:
    """What it answers, or the kind of what it raises: the engine refuses some values altogether."""
    try:
        return [*ask()]
    except Exception as error:
        return type(error)


@settings(max_examples=200 * SCALE)
@given(texts=st.lists(EXPRESSIONS, min_size=1, max_size=3), values=st.lists(VALUES, min_size=1, max_size=8))
def test_a_generated_condition_answers_as_the_engine_does(texts: list[str], values: list[dict[str, Any]]) -> None:
    try:
        conditions = [CONDITIONS.compile(text) for text in texts]
    except ConditionError:
        assume(False)
    combined = CONDITIONS.combined(conditions)
    assert not combined.by_engine, texts
    for one in values:
        assert answers_or_error(lambda one=one: combined.answers(one)) == answers_or_error(
            lambda one=one: engine_answers(texts, one)
        ), (
            texts,
            one,
        )


@settings(max_examples=100 * SCALE)
@given(texts=st.lists(st.one_of(EXPRESSIONS, UNTRANSLATED), min_size=2, max_size=4), values=VALUES)
def test_a_condition_that_is_not_translated_is_answered_by_the_engine_beside_the_others(texts: list[str], values: dict[str, Any]) -> None:  # fmt: skip
    try:
        conditions = [CONDITIONS.compile(text) for text in texts]
    except ConditionError:
        assume(False)
    combined = CONDITIONS.combined(conditions)
    assert {place for place, one in enumerate(conditions) if one.tree is None} == combined.by_engine
    assert answers_or_error(lambda: combined.answers(values)) == answers_or_error(lambda: engine_answers(texts, values))


@pytest.mark.parametrize("text", ["name.matches('a+')", "string(n) == 'x'", "[1, 2].exists(x, x > n)", "timestamp(name) < now", "n in [1, m]",
                                  "now.getHours('Europe/Berlin') < 9", "duration('1.5h') < now - at", "{'a': n}['a'] == 1"])  # fmt: skip
def test_what_is_not_covered_is_left_to_the_engine(text: str) -> None:
    assert CONDITIONS.combined([CONDITIONS.compile(text)]).by_engine == {0}


@pytest.mark.parametrize(
    "text", ["b'a' == b'a' || flag", "(n + " * 60 + "n" + ")" * 60 + " > 0"], ids=["bytes", "deep"]
)
def test_what_is_not_accepted_is_no_condition(text: str) -> None:
    with pytest.raises(ConditionError):
        CONDITIONS.compile(text)


@pytest.mark.parametrize(
    "damaged", [b"", b"\x12\x00", b"\x12\xff", b"\x0a\x03abc", b"\x12\x03\x22\x01\x08", b"\x12\x02\x25\x00"]
)
def test_a_tree_that_is_not_understood_is_not_covered(damaged: bytes) -> None:
    with pytest.raises(NotCovered):
        checked_tree(damaged)


def test_a_tree_of_another_shape_is_not_covered() -> None:
    for tree in (Node(NodeKind.VARIABLE, "unknown"), Node(NodeKind.CONSTANT, 1), Node(NodeKind.LIST, None), Node(NodeKind.CALL, "equals", (Node(NodeKind.CONSTANT, 1), Node(NodeKind.CONSTANT, "a")))):  # fmt: skip
        with pytest.raises(NotCovered):
            module.condition_function([tree], TYPES)


@pytest.mark.parametrize("text", ["now - at < duration('720h')", "at - now > duration('720h')", "at - now == now - at"])
@pytest.mark.parametrize(
    "at", [*LONG_BEFORE, *LONG_AFTER, datetime(2, 1, 1, tzinfo=UTC), datetime(9998, 1, 1, tzinfo=UTC)]
)
def test_times_further_apart_than_the_engine_counts_have_no_difference(text: str, at: datetime) -> None:
    condition, values = CONDITIONS.compile(text), {"at": at, "now": datetime(2020, 1, 1, tzinfo=UTC)}
    combined = CONDITIONS.combined([condition])
    assert not combined.by_engine
    assert [*combined.answers(values)] == engine_answers([text], values)


def test_an_allow_does_not_rest_on_a_difference_that_the_engine_does_not_have(tmp_path: Path) -> None:
    policy = compile_text(
        tmp_path,
        POLICY.replace("when: amount_minor <= numbers.allow_up_to", "when: now - ordered_at < duration('720h')"),
    )
    for at, verdict in (("2026-11-20T10:00:00Z", Verdict.ALLOW), ("2400-01-01T00:00:00Z", Verdict.DENY)):
        decision = evaluate(policy, sample_request(ordered_at=at), NOW)
        assert decision.verdict is verdict
        assert decision == evaluate(by_engine(policy), sample_request(ordered_at=at), NOW)


def test_text_of_a_policy_is_only_ever_a_constant() -> None:
    """A condition that would do harm as Python is a plain comparison of texts."""
    harm = "'__import__(\"os\").abort()'"
    condition = CONDITIONS.compile(f"name == {harm} || name in [{harm}]")
    combined = CONDITIONS.combined([condition])
    assert not combined.by_engine
    assert tuple(combined.answers({"name": '__import__("os").abort()'})) == (True,)


# --- the shipped policies -----------------------------------------------------------------------------------------------

_odd = st.sampled_from([None, True, False, 0, 1, 3, 6, -1, 2**53 - 1, 2**53, 2**70, "", "x", "acct_1", "low", "high", "é", "\ud800", "x" * 501, 1.5, [], {}, {"value": "1", "currency": "USD"},
                        {"amount_minor": 5, "currency": "EUR"}, "halted", "switch_off", "2026-11-21T09:00:00Z"])  # fmt: skip
_money = st.builds(
    lambda minor, currency: {"amount_minor": minor, "currency": currency},
    st.sampled_from([1, 1500, 15000, 15001, 100000, 100001, 0, -1, 10**12, 10**12 + 1]), st.sampled_from(["USD", "EUR", "JPY", "XXX"]),
)  # fmt: skip


def _request_of(policy: Any) -> st.SearchStrategy[dict[str, Any]]:
    """A request with something, right or wrong, at the paths of the policy's facts."""
    paths = sorted(
        {path for fact in policy.facts for path in fact.paths}
        | ({policy.policy.once_per.path} if policy.policy.once_per else set())
    )

    def laid_out(values: list[Any], action: str) -> dict[str, Any]:
        request: dict[str, Any] = {"agent_id": "agent-1", "resource": "r", "risk_class": "standard", "params": {}}
        for path, value in zip(paths, values, strict=True):
            at = request
            for key in path[:-1]:
                at = at.setdefault(key, {}) if isinstance(at.get(key, {}), dict) else {}
            if value is not ...:
                at[path[-1]] = value
        return {**request, "action": action}

    likely = st.one_of(st.just(...), _money, _odd, st.booleans(), st.integers(0, 7))
    return st.builds(laid_out, st.tuples(*[likely] * len(paths)).map(list), st.sampled_from(policy.policy.actions))


@settings(max_examples=300 * SCALE)
@given(data=st.data())
def test_every_shipped_policy_decides_as_with_the_engine(data: st.DataObject) -> None:
    policy = data.draw(st.sampled_from(POLICIES))
    request = data.draw(_request_of(policy))
    requester = data.draw(st.sampled_from([Requester("k", is_worker=True), Requester("k")]))
    translated, asked = (
        evaluate(policy, request, NOW, requester=requester),
        evaluate(BY_ENGINE[policy.digest], request, NOW, requester=requester),
    )
    assert translated == asked


@settings(max_examples=200 * SCALE)
@given(data=st.data())
def test_facts_that_were_read_never_need_the_engine(data: st.DataObject) -> None:
    policy = data.draw(st.sampled_from(POLICIES))
    facts = extract_facts(policy, data.draw(_request_of(policy)))
    policy.rule_conditions._function(facts.variables)
    policy.limit_conditions._function(facts.vouched())


def test_the_shipped_policies_need_no_engine() -> None:
    assert not [
        policy.policy.policy_id
        for policy in POLICIES
        if policy.rule_conditions.by_engine | policy.limit_conditions.by_engine
    ]


def test_every_case_of_the_policies_is_decided_as_with_the_engine() -> None:
    library, count = PolicyLibrary.load(policies_dir()), 0
    for path in sorted((policies_dir() / "cases").glob("*.yaml")):
        for case in read_cases(path):
            policy = library.find(str(case.request.get("action", "")))
            if policy is not None:
                count += 1
                decided = evaluate(policy, case.request, NOW, requester=case.requester)
                assert decided == evaluate(BY_ENGINE[policy.digest], case.request, NOW, requester=case.requester), (
                    case.name
                )
    assert count > 100


POLICIES = PolicyLibrary.load(policies_dir()).policies
BY_ENGINE = {policy.digest: by_engine(policy) for policy in POLICIES}


# --- what turns red ------------------------------------------------------------------------------------------------------


def _floor(one: int, other: int) -> int | None:
    return None if other == 0 else one // other


@pytest.mark.parametrize(
    "name, mutant, text, values",
    [
        ("_divided", _floor, "n / 2 == -1", {"n": -3}),
        ("_whole", lambda value: value, "n + 1 > 0", {"n": MOST}),
        ("_other", lambda value: None, "n == 1", {"n": True}),
        ("_text", lambda value: None, "name == 'é'", {"name": "é"}),
        ("_moment", lambda value: value, "at < now", {"at": datetime(2020, 1, 1)}),
        (
            "_difference",
            operator.sub,
            "now - at < duration('720h')",
            {"at": datetime(2400, 1, 1, tzinfo=UTC), "now": NOW},
        ),
    ],
)
def test_a_translation_that_is_a_little_wrong_is_caught(
    monkeypatch: pytest.MonkeyPatch, name: str, mutant: Any, text: str, values: dict[str, Any]
) -> None:
    monkeypatch.setitem(module._GLOBALS, name, mutant)
    broken = CONDITIONS.combined([CONDITIONS.compile(text)])
    assert answers_or_error(lambda: broken.answers(values)) != answers_or_error(lambda: engine_answers([text], values))


@pytest.mark.parametrize("text", ["name == 'a'", "name in ['a']", "name == other"])
def test_the_engine_is_not_asked_about_a_text_with_a_zero_character_which_it_would_cut(text: str) -> None:
    values = {"name": "a\0b", "other": "a"}
    condition = CONDITIONS.compile(text)
    assert CONDITIONS.combined([condition]).answers(values) == (False,)
    with pytest.raises(ValueError, match="zero character"):
        engine_answers([text], values)
    # Why: what the engine itself says of it. Once it says otherwise, the refusal can go.
    assert CONDITIONS._environment.compile(text).eval(CONDITIONS._environment.Activation(values)).value() is True

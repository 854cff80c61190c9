"""A guard's row: its terms are interned, and interning never gives one request the terms of another."""

from __future__ import annotations

import inspect
import itertools
import random
import uuid
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from sentinel.authority import guard
from sentinel.authority.engine import Authority, Caller
from sentinel.authority.guard import decided_row
from sentinel.authority.guard_rows import GuardRow, GuardTerms
from sentinel.authority.keys import WORKER_SCOPE
from sentinel.core.operation import Operation, build_operation
from sentinel.core.signing import PermitSigner
from sentinel.platform.resources import policies_dir
from sentinel.policy import evaluate
from sentinel.policy.library import ReloadablePolicies

IDS = [uuid.UUID(int=place) for place in range(1, 4)]


def authority(**over: Any) -> Authority:
    nothing: dict[str, Any] = dict.fromkeys(one.name for one in fields(Authority) if one.default is one.default_factory)
    given: dict[str, Any] = {"policies": ReloadablePolicies(policies_dir()), "clock": lambda: datetime.now(UTC), **over}
    return Authority(**{**nothing, "permits": PermitSigner(["x" * 40]), **given})


def callers() -> list[Caller]:
    return [
        Caller(tenant, uuid.UUID(int=9), principal, bound, scopes, owner)
        for tenant, principal, owner in itertools.product(IDS[:2], IDS[:2], [None, IDS[0]])
        for bound, scopes in [(None, frozenset({"guard", WORKER_SCOPE})), ("agent-1", frozenset({"guard"}))]
    ]


def operations() -> Iterator[Operation]:
    actions = [
        "refund.create",
        "refund.small.fee",
        "order.fulfill",
        "email.send",
        "data.export",
        "nobody.covers",
        "nobody.else",
    ]
    for action, value, currency, agent in itertools.product(
        actions, ["1.00", "999.00"], ["USD", "EUR"], ["agent-1", "agent-2"]
    ):
        for more in (
            {},
            {"scenario": "fee"},
            {"escalation": "switch_off"},
            {"risk": {"duplicate_refund": True, "customer_attempts_24h": 1}},
            {
                "risk": dict.fromkeys(("duplicate_refund", "stale_window", "suspicious_reason"), False)
                | {"customer_attempts_24h": 1}
            },
        ):
            yield build_operation(
                idempotency_key="k", agent_id=agent, action=action, risk_class="high" if value == "1.00" else None,
                params={"amount": {"value": value, "currency": currency}, "refund_id": "rf_1", "account_ref": "acct_1", **more},
            )  # fmt: skip


def questions() -> list[tuple[Authority, Caller, Operation, bool]]:
    """Questions of every kind, in a mixed order."""
    told = [
        authority(),
        authority(permit_seconds=60),
        authority(policies=ReloadablePolicies(policies_dir(), totals=False)),
    ]
    every = list(itertools.product(told, callers(), operations(), (True, False)))
    return random.Random(7).sample(every, 2000)


def row_of(question: tuple[Authority, Caller, Operation, bool]) -> GuardRow:
    told, caller, operation, has_start_step = question
    return decided_row(told, caller, operation, has_start_step=has_start_step, elapsed_ms=0)


def content(terms: GuardTerms) -> tuple[Any, ...]:
    return tuple(getattr(terms, one.name) for one in fields(terms))


def differing() -> list[Any]:
    """Questions whose interned terms are not those that are made for them alone."""
    asked = questions()
    guard._interned.clear()
    evaluate._outcome.cache_clear()
    interned = [row_of(one) for one in asked]
    found = []
    for one, kept in zip(asked, interned, strict=True):
        guard._interned.clear()
        evaluate._outcome.cache_clear()
        anew = row_of(one)
        if (content(anew.terms), anew.limits) != (content(kept.terms), kept.limits):
            found.append(one)
    return found


def test_interned_terms_are_those_that_would_be_made_anew() -> None:
    assert differing() == []


@pytest.mark.parametrize("place", [0, 1, 2, 3, 10, 11])
def test_terms_that_are_told_apart_by_less_are_caught(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    class Careless(dict[Any, Any]):
        """Overlooks one part of what tells terms apart."""

        def get(self, key: Any, default: Any = None) -> Any:
            return super().get((*key[:place], *key[place + 1 :]), default)

        def __setitem__(self, key: Any, value: Any) -> None:
            super().__setitem__((*key[:place], *key[place + 1 :]), value)

    monkeypatch.setattr(guard, "_interned", Careless())
    assert differing()


OUTCOME = (
    "policy",
    "answers",
    "vouched",
    "bound",
    "limit_answers",
    "reasons",
    "currency",
    "agent",
    "key",
    "lacks_once_key",
)
MATTERS = ("policy", "answers", "vouched", "currency", "agent")
"""What matters to the shipped policies, which have no limits of a key."""


@pytest.mark.parametrize("part", MATTERS)
def test_outcomes_that_are_told_apart_by_less_are_caught(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    kept: dict[Any, Any] = {}
    place, made = OUTCOME.index(part), evaluate._outcome.__wrapped__
    assert list(inspect.signature(made).parameters) == list(OUTCOME)

    class Careless:
        """Overlooks one part of what outcomes are told apart by."""

        cache_clear = staticmethod(kept.clear)

        def __call__(self, *asked: Any) -> Any:
            return kept.setdefault((*asked[:place], *asked[place + 1 :]), made(*asked))

    monkeypatch.setattr(evaluate, "_outcome", Careless())
    assert differing()


def test_the_same_question_has_the_same_terms_and_ids_of_its_own() -> None:
    question = questions()[0]
    one, other = row_of(question), row_of(question)
    assert one.terms is other.terms
    ids = [one_of[at : at + 16] for one_of in (one.ids, other.ids) for at in range(0, 80, 16)]
    assert len({*ids}) == 10 and one.salt != other.salt and len(bytes.fromhex(one.salt)) == 32


def test_no_more_terms_are_kept_than_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_MOST_TERMS", 10)
    guard._interned.clear()
    made = []
    for question in questions()[:100]:
        made.append(row_of(question).terms)
        assert 0 < len(guard._interned) <= 10
    assert len({id(terms) for terms in made}) > 10, "of more than are kept"


def test_a_row_is_ready_for_json_and_says_only_what_is_unusual() -> None:
    for question in questions()[:200]:
        row = row_of(question)
        told = orjson.loads(orjson.dumps({name: value for name, value in row.as_input().items() if name != "shared"}))
        assert ("approvable" in told) is (not row.terms.approvable) and ("asks_person" in told) is row.terms.asks_person
        assert ("bound_agent" in told) is (row.terms.bound_agent is not None)
        assert told["verdict"] in ("ALLOW", "APPROVAL_REQUIRED", "DENY") and len(told["limits"]) == len(row.limits)
        totals = orjson.loads(row.terms.shared)["totals"] if row.terms.shared else []
        assert not {one["limit_key"] for one in totals} & {one["limit_key"] for one in told["limits"]}

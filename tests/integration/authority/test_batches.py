"""Batches are exact: many decisions in one transaction are what they would be one by one, in the order of their keys."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from sentinel.authority import metrics
from sentinel.authority.actor import local_administrator
from sentinel.authority.api.guard import GUARD, to_operation
from sentinel.authority.decisions import Recorded
from sentinel.authority.guard import decided_row
from sentinel.authority.guard_rows import GuardRow
from sentinel.authority.halts import set_halt
from sentinel.core.errors import EngineUnavailable
from tests import mutants
from tests.support.commit_loop import record_all
from tests.support.commits import record_decisions
from tests.support.fixtures import Fixtures, four_keys, guard_body, make_fixtures, unique
from tests.support.harness import caller_of, decide, let_permits_expire, scaled, seeded
from tests.support.roomy import roomy_policies

Body = dict[str, Any]
Seen = tuple[str, str, str, str, str, bool | None]


@contextmanager
def copy_of(fixtures: Fixtures, policies: Path | None = None) -> Iterator[Fixtures]:
    """Other fixtures, on a copy of the empty schema."""
    name = f"{fixtures.admin.info.dbname}_b"
    fixtures.admin.execute(f"create database {name} template template_sentinel strategy file_copy".encode())
    try:
        with closing(make_fixtures(make_conninfo(fixtures.url, dbname=name), policies=policies)) as other:
            yield other
    finally:
        fixtures.admin.execute(f"drop database {name} with (force)".encode())


@contextmanager
def two_worlds(fixtures: Fixtures, policies: Path | None = None) -> Iterator[tuple[Fixtures, Fixtures]]:
    """The fixtures, and a copy where every row is decided alone, without the way of sets."""
    with copy_of(fixtures, policies) as other:
        mutants.without_the_plain_way_alone(other.admin)
        mutants.cut(
            other,
            "sentinel.record_batch",
            "if cardinality(plain) > 0 then",
            "plain := array[]::integer[]; if false then",
        )
        fixtures.admin.execute("create sequence sentinel.sets minvalue 0 start 0")
        fixtures.admin.execute("grant usage, update on sequence sentinel.sets to public")
        mutants.cut(
            fixtures,
            "sentinel.record_batch",
            "if cardinality(plain) = cardinality(batch)",
            "perform setval('sentinel.sets', nextval('sentinel.sets') - 1 + cardinality(plain)); if cardinality(plain) = cardinality(batch)",
        )
        mutants.cut(
            fixtures,
            "sentinel.record_decisions",
            "then return next one;",
            "then perform nextval('sentinel.sets'); return next one;",
        )
        yield fixtures, other


def a_batch(dice: random.Random, turn: int, number: int) -> list[Body]:
    """Requests with few accounts, few refunds, repeats of earlier keys and of keys in the same batch, changed ones too."""
    bodies = []
    for _ in range(number):
        key = f"k{dice.randint(max(0, turn * 6 - 8), turn * 6 + 8):03}"
        known = random.Random(key)
        body = guard_body(
            key, value=known.choice([1, 40, 90, 140, 200, 600, 2000]),
            params={"account_ref": f"acct_{known.randint(1, 3)}", "refund_id": f"rf_{known.randint(1, 40)}"})  # fmt: skip
        if known.random() < 0.2:
            body = four_keys(body)
        elif known.random() < 0.3:
            # Now and then somebody else's id: it gets no receipt.
            body["start_id"] = str(uuid.UUID(int=known.getrandbits(128) + (dice.random() < 0.1)))
        if dice.random() < 0.05:
            body["params"]["amount"]["value"] = 7
        bodies.append(body)
    return bodies


def seen(row: Recorded, body: Body) -> Seen:
    """What a caller could tell apart, without ids and times."""
    return (
        body["idempotency_key"],
        row.result,
        row.decision or "",
        row.reason_code or "",
        row.status or "",
        row.start_duplicate,
    )


def state(fixtures: Fixtures) -> dict[str, list[Any]]:
    """Everything that counts, without ids and times."""
    queries = {
        "operations": "select o.idempotency_key, s.status, s.decision, s.reason_code, s.once_live, s.permit_id is not null, s.start_id"
                      " from sentinel.operations o join sentinel.operation_states s using (tenant_id, operation_id) order by 1",
        "usage": "select limit_key, sum(held_minor), sum(captured_minor), sum(override_held_minor) from sentinel.usage group by 1 order by 1",
        "reservations": "select o.idempotency_key, r.state, r.amount_minor, r.overrides from sentinel.reservations r"
                        " join sentinel.operations o using (tenant_id, operation_id) order by 1, 2",
        "approvals": "select o.idempotency_key, a.status, a.reasons, a.required_people from sentinel.approvals a"
                     " join sentinel.operations o using (tenant_id, operation_id) order by 1, 2",
        "events": "select o.idempotency_key, e.kind from sentinel.events e join sentinel.operations o using (tenant_id, operation_id) order by 1, 2",
    }  # fmt: skip
    return {name: fixtures.admin.execute(query.encode()).fetchall() for name, query in queries.items()}


def rows_of(fixtures: Fixtures, bodies: Sequence[Body]) -> list[GuardRow]:
    caller = caller_of(fixtures)
    made = []
    for body in bodies:
        asked = GUARD.of_object(body)
        made.append(
            decided_row(
                fixtures.authority, caller, to_operation(asked, asked.idempotency_key), has_start_step=asked.has_start_step, elapsed_ms=0,
                start_id=asked.start_id,
            )
        )  # fmt: skip
    return made


def one_by_one(fixtures: Fixtures, bodies: Sequence[Body]) -> list[Seen]:
    """In the order of keys, as the batch works; answers in the order of `bodies`."""
    order = sorted(range(len(bodies)), key=lambda place: (bodies[place]["idempotency_key"], place))
    answers: dict[int, Seen] = {}
    for place in order:
        answers[place] = seen(
            record_decisions(fixtures.authority.pool, rows_of(fixtures, [bodies[place]]))[0], bodies[place]
        )
    return [answers[place] for place in range(len(bodies))]


def recorded_in_one_batch(fixtures: Fixtures, bodies: Sequence[Body]) -> list[Seen]:
    return [
        seen(row, body)
        for row, body in zip(record_decisions(fixtures.authority.pool, rows_of(fixtures, bodies)), bodies, strict=True)
    ]


def live_on(fixtures: Fixtures, turn: int) -> None:
    """What happens between batches, the same in both worlds."""
    if turn % 3 == 1:
        let_permits_expire(fixtures)
    if turn % 2:
        for (approval,) in fixtures.admin.execute(
            "select a.approval_id from sentinel.approvals a join sentinel.operations o using (tenant_id, operation_id)"
            " where a.status = 'pending' and a.required_people = 1 order by o.idempotency_key limit 2").fetchall():  # fmt: skip
            decide(fixtures, approval, "approve" if turn % 4 == 1 else "reject")


def sets(fixtures: Fixtures) -> int:
    """How many rows were recorded in sets."""
    return int(fixtures.one("select last_value from sentinel.sets"))


def a_new_batch(dice: random.Random, turn: int, number: int) -> list[Body]:
    """Requests that nobody asked before, with many accounts and refunds and now and then one that another has too."""
    return [
        guard_body(
            f"n{turn:03}_{place:02}", value=dice.choice([1, 40, 90, 140, 200, 600, 2000]),
            params={"account_ref": f"acct_{dice.randint(1, 250)}", "refund_id": f"rf_{dice.randint(1, 2500)}"},
            **({"start_id": str(uuid.UUID(int=dice.getrandbits(128), version=4))} if dice.random() < 0.3 else {}))
        for place in range(number)
    ]  # fmt: skip


def differences(
    batched: Fixtures, single: Fixtures, dice: random.Random, turns: int, number: int = 16, make: Any = a_batch
) -> list[str]:
    """What a batch answers or leaves otherwise than the same requests one by one. The checker of this file."""
    found = []
    for turn in range(turns):
        bodies = make(dice, turn, number)
        found += [
            f"turn {turn}: {a} instead of {b}"
            for a, b in zip(recorded_in_one_batch(batched, bodies), one_by_one(single, bodies), strict=True)
            if a != b
        ]
        live_on(batched, turn)
        live_on(single, turn)
    left, right = state(batched), state(single)
    found += [f"{name} differ" for name in left if left[name] != right[name]]
    return found or batched.broken_invariants() + single.broken_invariants()


@pytest.mark.parametrize("seed", [21, 22])
def test_a_batch_gives_every_row_what_it_would_get_alone(fixtures: Fixtures, seed: int) -> None:
    turns = scaled(8)
    with two_worlds(fixtures) as (batched, single):
        assert differences(batched, single, seeded(seed, turns * 16), turns) == []
        operations = state(batched)["operations"]
        statuses = {status for _, status, *_ in operations}
        assert sum(start_id is not None for *_, start_id in operations) > 3, "few started with the answer"
        assert statuses >= {"allowed", "started", "denied", "pending"}, "the batches were too tame"


@pytest.mark.parametrize("number", [1, 5, 16])
def test_a_set_gives_every_row_what_it_would_get_alone(database_url: str, tmp_path: Path, number: int) -> None:
    turns, policies = scaled(max(12, 64 // number)), roomy_policies(tmp_path)
    fixtures = make_fixtures(database_url, policies=policies)
    with closing(fixtures), two_worlds(fixtures, policies) as (batched, single):
        assert differences(batched, single, seeded(31, turns * number), turns, number, a_new_batch) == []
        statuses = {status for _, status, *_ in state(batched)["operations"]}
        assert statuses >= {"allowed", "started", "denied", "pending"}, "the batches were too tame"
        print(f"N={turns * number} rows in {turns} batches, {sets(batched)} of them in sets")
        assert turns * number / 3 <= sets(batched) < turns * number


def a_batch_in_two_currencies(dice: random.Random, turn: int, number: int) -> list[Body]:
    bodies = a_new_batch(dice, turn, number)
    for body in bodies[::2]:
        body["params"]["amount"]["currency"] = "EUR"
    return bodies


def test_rows_of_two_currencies_are_recorded_in_one_set(database_url: str, tmp_path: Path) -> None:
    """The finding: a breaker that declares an amount for each currency let no row of such a batch into a set."""
    turns, number, policies = scaled(4), 16, roomy_policies(tmp_path)
    fixtures = make_fixtures(database_url, policies=policies)
    with closing(fixtures), two_worlds(fixtures, policies) as (batched, single):
        assert differences(batched, single, seeded(34, turns * number), turns, number, a_batch_in_two_currencies) == []
        print(f"N={turns * number} rows in {turns} batches, {sets(batched)} of them in sets")
        assert sets(batched) >= turns * number / 2


@pytest.mark.parametrize(
    ("function", "fence", "instead"),
    [
        ("plain_rows", "from unnest(sentinel.tight_sums(sums, parts)) as k", "from unnest(sentinel.tight_sums(sums, parts)) as k where false"),
        ("plain_rows", "sentinel.once_folded(s.once_key) = a.once and s.once_live", "false"),
        ("plain_rows", "where once is not null group by 1, 2 having count(*) > 1", "where false group by 1, 2"),
        ("plain_rows", "sentinel.halt_over(a.tenant_id, a.agent_id, a.action, a.scenario) is not null", "false"),
        ("all_plain", "cardinality(sentinel.tight_sums(sums, parts)) > 0", "false"),
        ("all_plain", "sentinel.once_folded(s.once_key) = sentinel.once_folded(r.once_key) and s.once_live", "false"),
        ("all_plain", "count(distinct sentinel.once_folded(r.once_key)) = count(r.once_key)", "true"),
        ("all_plain", "sentinel.halt_over(t.tenant_id, t.agent_id, t.action, t.scenario) is not null", "false"),
    ],
    ids=[f"{what}, {where}" for where in ("row by row", "all at once") for what in ("a full budget", "what is live", "a duplicate in the batch", "a halt")],
)  # fmt: skip
def test_mutants_of_the_set_that_overlook_something_are_caught(
    fixtures: Fixtures, function: str, fence: str, instead: str
) -> None:
    def make(_: random.Random, turn: int, number: int) -> list[Body]:
        bodies = [guard_body(f"t{turn}_{place}", value=1) for place in range(number)]
        if turn == 0:
            bodies[0]["params"]["refund_id"] = bodies[1]["params"]["refund_id"] = "rf_twice"
        elif turn == 1:
            bodies[0]["params"]["refund_id"] = "rf_twice"
        elif turn == 2:
            for body in bodies[:4]:
                body["params"] |= {"account_ref": "acct_full", "amount": {"value": 140, "currency": "USD"}}
        else:
            for one in (batched, single):
                set_halt(one.console_pool, local_administrator(one.tenant_id), scope="tenant", reason="drill")
        return bodies

    with two_worlds(fixtures) as (batched, single):
        mutants.without_constraint(batched, "sentinel.budgets", "usage_within_cap")
        batched.admin.execute("drop index sentinel.operation_states_once")
        mutants.cut(batched, f"sentinel.{function}", fence, instead)
        assert differences(batched, single, seeded(32, 4 * 6), 4, 6, make) != []


@pytest.mark.parametrize(
    ("function", "fence", "instead"),
    [
        (
            "hold_slots",
            "sentinel.is_within_caps(sentinel.slots_added(b.held, taken), sentinel.slots_added(b.captured, older), most)",
            "true",
        ),
        ("record_one", "and s.once_live", "and false"),
        ("record_one", "exists (select from sentinel.halts where lifted_at is null)", "false"),
    ],
    ids=["a full budget", "what is live", "a halt"],
)
def test_mutants_of_the_row_that_comes_alone_are_caught(
    fixtures: Fixtures, function: str, fence: str, instead: str
) -> None:
    def make(_: random.Random, turn: int, number: int) -> list[Body]:
        body = guard_body(f"t{turn}", value=1)
        if turn < 2:
            body["params"]["refund_id"] = "rf_twice"
        elif turn < 5:
            body["params"] |= {"account_ref": "acct_full", "amount": {"value": 140, "currency": "USD"}}
        else:
            for one in (batched, single):
                set_halt(one.console_pool, local_administrator(one.tenant_id), scope="tenant", reason="drill")
        return [body]

    with two_worlds(fixtures) as (batched, single):
        mutants.without_constraint(batched, "sentinel.budgets", "usage_within_cap")
        batched.admin.execute("drop index sentinel.operation_states_once")
        mutants.cut(batched, f"sentinel.{function}", fence, instead)
        assert differences(batched, single, seeded(33, 6), 6, 1, make) != []


def test_mutant_that_overlooks_a_full_budget_is_caught(fixtures: Fixtures) -> None:
    with two_worlds(fixtures) as (batched, single):
        mutants.without_constraint(batched, "sentinel.budgets", "usage_within_cap")
        mutants.cut(
            batched, "sentinel.fitted_limits", "while exists (select from unnest(states) where not fits)", "while false"
        )
        mutants.cut(batched, "sentinel.decide_new", "where not l.fits", "where false")
        assert any("instead of" in found for found in differences(batched, single, seeded(23, 8 * 16), 8))


def test_a_batch_with_a_row_the_database_refuses_keeps_nothing_of_it(fixtures: Fixtures) -> None:
    good, bad = guard_body(), guard_body()
    rows = rows_of(fixtures, [good, bad])
    rows[1].terms = replace(rows[1].terms, risk_class=None)  # type: ignore[arg-type]
    with pytest.raises(EngineUnavailable):
        record_decisions(fixtures.authority.pool, rows)
    assert fixtures.one("select count(*) from sentinel.operations") == 0
    assert isinstance(record_all(fixtures.authority.decisions, rows)[0], Recorded), (
        "the writer then records each for itself"
    )
    assert fixtures.one("select count(*) from sentinel.operations") == 1
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize(
    ("invented", "counted"),
    [
        ("data.x{}", "data.*"),
        ("email.a.b{}", "email.*"),
        ("nobody.covers.this{}", "other"),
        ("refund.create", "refund.create"),
    ],
)
def test_actions_that_an_agent_invents_are_counted_by_the_policys_name_for_them(
    fixtures: Fixtures, invented: str, counted: str
) -> None:
    def decisions_counted() -> dict[str, float]:
        (family,) = metrics.DECISIONS.collect()
        found: dict[str, float] = {}
        for one in family.samples:
            if one.name.endswith("_total"):
                found[one.labels["action"]] = found.get(one.labels["action"], 0) + one.value
        return found

    before = decisions_counted()
    bodies = [guard_body(unique("invented")) | {"action": invented.format(number)} for number in range(8)]
    answers = fixtures.post("action/guard/batch", {"requests": bodies}).get_json()["answers"]
    assert [one["status"] for one in answers] == [200] * 8
    assert decisions_counted() == before | {counted: before.get(counted, 0) + 8}

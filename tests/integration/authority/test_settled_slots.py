"""What succeeded or ran out moves whole budgets where it may (`settle_slots`), and leaves what it would have left limit by limit."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sentinel.authority.decisions import REPORT_OUTCOMES
from sentinel.store.batch_statement import run_statement
from tests import mutants
from tests.integration.authority.test_batches import Body, a_new_batch, copy_of, recorded_in_one_batch
from tests.integration.authority.test_reads_do_not_grow import report_of
from tests.support.fixtures import Fixtures, make_fixtures
from tests.support.harness import let_permits_expire, scaled, seeded
from tests.support.roomy import roomy_policies

NUMBER = 16
USED = """
select limit_key, sum(held_minor), sum(captured_minor), sum(override_held_minor), sum(override_captured_minor)
from sentinel.usage group by 1 order by 1
"""
STARTED = """
select o.idempotency_key, s.permit_id from sentinel.operations o join sentinel.operation_states s using (tenant_id, operation_id)
where s.status = 'started' order by 1
"""
OVER = "update sentinel.budgets set buckets = array(select b - interval '2 minutes' from unnest(buckets) b) where subject like %s"
"""The parts that are being filled of some owners' budgets are others than what was reserved under says."""


@contextmanager
def two_ways(url: str, policies: Path) -> Iterator[tuple[Fixtures, Fixtures]]:
    """Fixtures, with a count of the calls that moved whole budgets and of those that did not, and others that move limit by limit alone."""
    with closing(make_fixtures(url, policies=policies)) as slots, copy_of(slots, policies) as limits:
        way = "if sentinel.settle_slots(held, settlement) then"
        mutants.cut(limits, "sentinel.settle_usage", way, "if false then")
        for sequence in ("whole", "by_limit"):
            slots.admin.execute(f"create sequence sentinel.{sequence} minvalue 0 start 0".encode())
            slots.admin.execute(f"grant usage on sequence sentinel.{sequence} to public".encode())
        mutants.cut(
            slots, "sentinel.settle_usage", f"{way} return; end if;",
            f"{way} perform nextval('sentinel.whole'); return; end if; perform nextval('sentinel.by_limit');",
        )  # fmt: skip
        yield slots, limits


def live(fixtures: Fixtures, bodies: list[Body], turn: int, together: int) -> None:
    """A batch of permissions; what of it was started succeeds, so many at once, and the rest is given back."""
    by_key = {body["idempotency_key"]: body for body in bodies}
    recorded_in_one_batch(fixtures, bodies)
    if turn % 4 == 1:
        fixtures.admin.execute(OVER, ["acct!_%|%"] if turn % 8 == 1 else ["%|%"])
    started = [
        report_of(fixtures, by_key[key], permit)
        for key, permit in fixtures.admin.execute(STARTED).fetchall()
        if key in by_key
    ]
    for first in range(0, len(started), together):
        run_statement(fixtures.admin, REPORT_OUTCOMES, started[first : first + together], 2000)
    if turn % 2:
        let_permits_expire(fixtures)
        fixtures.run_housekeeping()


def used(fixtures: Fixtures) -> list[Any]:
    """What each limit says is held and captured."""
    return fixtures.admin.execute(USED.encode()).fetchall()


def unlike(left: list[Any], right: list[Any]) -> list[Any]:
    """Where one of the two differs from the other, or is longer."""
    return [(a, b) for a, b in zip(left, right, strict=False) if a != b] + left[len(right) :] + right[len(left) :]


def differences(slots: Fixtures, limits: Fixtures, turns: int, together: int) -> list[Any]:
    """What the two ways leave otherwise, or else what is not as operations say after one of them alone. The checker of this file."""
    dice = seeded(41, turns * together)
    for turn in range(turns):
        bodies = a_new_batch(dice, turn, NUMBER)
        for body in bodies:
            if dice.random() < 0.6:
                body["start_id"] = str(uuid.UUID(int=dice.getrandbits(128), version=4))
        for fixtures in (slots, limits):
            live(fixtures, bodies, turn, together)
    return unlike(used(slots), used(limits)) or unlike(slots.broken_invariants(), limits.broken_invariants())


@pytest.mark.parametrize("together", [1, 5, 16])
def test_whole_budgets_are_moved_as_limit_by_limit(database_url: str, tmp_path: Path, together: int) -> None:
    turns = scaled(10)
    with two_ways(database_url, roomy_policies(tmp_path)) as (slots, limits):
        assert differences(slots, limits, turns, together) == []
        whole, by_limit = (slots.one(f"select last_value from sentinel.{name}") for name in ("whole", "by_limit"))
        print(f"N={whole} calls moved whole budgets, {by_limit} limit by limit")
        assert whole > by_limit > 0


@pytest.mark.parametrize(
    ("function", "fence", "instead"),
    [
        ("settle_slots", "b.limits = a.limits and b.buckets = a.buckets", "b.limits = a.limits"),
        ("settle_slots", "array_fill(-f.minor,", "array_fill(0::bigint,"),
        ("settle_slots", "array_fill(f.minor,", "array_fill(2 * f.minor,"),
        ("settle_slots", "sum(s.minor)::bigint as minor", "max(s.minor)::bigint as minor"),
        ("settle_usage", "set held = sentinel.slots_added(u.held, s.less)", "set held = u.held"),
    ],
    ids=["another part", "nothing is freed", "captured twice", "of a sum the largest", "nothing is freed limit by limit"],
)  # fmt: skip
def test_mutants_that_move_something_else_are_caught(
    database_url: str, tmp_path: Path, function: str, fence: str, instead: str
) -> None:
    with two_ways(database_url, roomy_policies(tmp_path)) as (slots, limits):
        mutants.cut(slots, f"sentinel.{function}", fence, instead)
        try:
            found = differences(slots, limits, 6, 5)
        except Exception as error:
            found = [error]  # a budget would be beyond its cap, or below nothing
        assert found != []

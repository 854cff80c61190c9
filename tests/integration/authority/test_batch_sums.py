"""What the program sums up over a batch is what the database sums up from the batch's rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.authority.decisions import RECORD_DECISIONS
from sentinel.authority.guard_rows import GuardRow
from sentinel.store.batch_statement import BatchStatement, run_statement
from sentinel.store.database import AUTHORITY
from tests import mutants
from tests.integration.authority.test_batches import a_batch, a_new_batch, rows_of
from tests.support.fixtures import Fixtures, make_fixtures
from tests.support.harness import scaled, seeded
from tests.support.roomy import roomy_policies

SUMMED_AGAIN = b"""
select (select array_agg(k order by k) from unnest(sentinel.budget_sums_of($4, $1, $2, every)) as k)
           is not distinct from (select array_agg(k order by k) from unnest($4) as k)
       and (select array_agg(k order by k) from unnest(sentinel.rate_sums_of($5, $1, $2, every)) as k)
           is not distinct from (select array_agg(k order by k) from unnest($5) as k), $3 is not null and $6 > 0
from (select array_agg(r.seq) as every from unnest($2) as r) as o
"""
IS_THE_SAME: BatchStatement[GuardRow, bool] = BatchStatement(
    "summed_again", SUMMED_AGAIN, RECORD_DECISIONS.types, RECORD_DECISIONS.encode,
    lambda result: [result.get_value(0, 0) == b"\x01"],
)  # fmt: skip


@pytest.fixture
def roomy(database_url: str, tmp_path: Path) -> Iterator[Fixtures]:
    """Fixtures of a policy with totals and a breaker."""
    with closing(make_fixtures(database_url, policies=roomy_policies(tmp_path))) as fixtures:
        yield fixtures


def differing(fixtures: Fixtures, batches: int) -> int:
    """In how many of so many random batches the sums differ."""
    dice, found = seeded(61, batches), 0
    with fixtures.as_role(AUTHORITY) as connection:
        for turn in range(batches):
            rows = rows_of(fixtures, (a_batch if turn % 2 else a_new_batch)(dice, turn, dice.randint(1, 24)))
            if turn % 3 == 0:  # of another currency and another agent too
                rows[0].terms = replace(rows[0].terms, currency="EUR", agent_id="another")
            found += not run_statement(connection, IS_THE_SAME, rows, 2000)[0]
    return found


def test_sums_of_a_batch_are_those_of_its_rows(roomy: Fixtures) -> None:
    batches = scaled(40)
    print(f"N={batches} batches")
    assert differing(roomy, batches) == 0


@pytest.mark.parametrize("function", ["budget_sums_of", "rate_sums_of"])
def test_mutants_that_count_what_is_not_allowed_are_caught(roomy: Fixtures, function: str) -> None:
    mutants.cut(roomy, f"sentinel.{function}", "t.verdict = 'ALLOW'", "true")
    assert differing(roomy, 20) > 0

"""Runs `deploy/invariants.sql`: each named query returns the ids of violations and must return none."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from sentinel.store.database import LONG_STATEMENT_SECONDS

_BLOCK = re.compile(r"^-- (\w+): (.+)\n((?:(?!-- \w+: ).*\n?)+)", re.MULTILINE)
_TEXTS = 1009
"""PostgreSQL's type text[]."""
AUTHORITY_ELSEWHERE = "-- with the authority"
"""The line of a block that compares the ledger with the authority: nothing to ask where the two are in two databases."""
SHOWN = 5
MINUTES = LONG_STATEMENT_SECONDS // 60
RAN_OUT = "it took longer than a check may"

COUNT_VIOLATIONS = "select count(*), (array_agg(what order by what))[1:{shown}] from ({query}) as found (what)"
IS_ONE_DATABASE = """
select exists (select from sentinel.operations) or not exists (select from refunds.ledger_entries where operation_id is not null)
  and not exists (select from refunds.executions)
"""


@dataclass(frozen=True, slots=True)
class Invariant:
    """One thing that must always hold; `compares` where it holds the ledger against the authority."""

    name: str
    sentence: str
    query: str
    compares: bool = False


@dataclass(frozen=True, slots=True)
class InvariantResult:
    """The result of one invariant: the number of violations, the first by id, or why it was not checked.

    `unchecked` is not a violation: the login may not read it, or what it compares is in another database. Where it `ran_out` of time
    nobody knows, and a person looks again.
    """

    name: str
    sentence: str
    violations: int
    damaged: tuple[str, ...] = ()
    unchecked: str = ""
    ran_out: bool = False

    @property
    def summary(self) -> str:
        """The result in one line."""
        if self.unchecked:
            return f"not checked, {self.unchecked}: {self.sentence}"
        if not self.violations:
            return self.sentence
        more = f" and {self.violations - len(self.damaged)} more" if self.violations > len(self.damaged) else ""
        return f"{self.violations} violations of: {self.sentence}: {', '.join(self.damaged)}{more}"


def read_invariants(path: Path) -> list[Invariant]:
    """The named queries of the file, in order."""
    return [
        Invariant(name, sentence, query.strip().rstrip(";"), AUTHORITY_ELSEWHERE in query)
        for name, sentence, query in _BLOCK.findall(path.read_text())
    ]


def run_invariants(connection: Any, path: Path, *, minutes: float = MINUTES) -> list[InvariantResult]:
    """What breaks each invariant; `minutes` is how long one may take.

    Each from a snapshot of its own, so that a live system does not look broken, and its tables are not kept from vacuum for longer.
    """
    return [_check_alone(connection, one, minutes) for one in read_invariants(path)]


def _check_alone(connection: Any, one: Invariant, minutes: float) -> InvariantResult:
    connection.execute("begin isolation level repeatable read read only")
    try:
        limit_statements(connection, minutes)
        return check_invariant(connection, one)
    finally:
        connection.execute("rollback")


def limit_statements(connection: Any, minutes: float) -> None:
    """Each statement of the open transaction ends after so many minutes."""
    connection.execute(f"set local statement_timeout = '{math.ceil(minutes * 60_000)}ms'")


def check_invariant(connection: Any, one: Invariant) -> InvariantResult:
    """Check one invariant within the open transaction, which goes on whatever the query does.

    Raises `ValueError` for a query that does not say what is damaged, as text.
    """
    connection.execute("savepoint asked")
    try:
        if one.compares and not connection.execute(IS_ONE_DATABASE).fetchone()[0]:
            return InvariantResult(
                one.name, one.sentence, 0, unchecked="the authority's operations are in another database"
            )
        cursor = connection.execute(COUNT_VIOLATIONS.format(shown=SHOWN, query=one.query))
        if cursor.description[1].type_code != _TEXTS:
            raise ValueError(f"the invariant {one.name} must return the ids of what breaks it, as one text column")
        count, damaged = cursor.fetchone()
        return InvariantResult(one.name, one.sentence, count, tuple(damaged or ()))
    except psycopg.errors.InsufficientPrivilege as error:
        connection.execute("rollback to asked")
        return InvariantResult(one.name, one.sentence, 0, unchecked=str(error).splitlines()[0])
    except psycopg.errors.QueryCanceled:
        connection.execute("rollback to asked")
        return InvariantResult(one.name, one.sentence, 0, unchecked=RAN_OUT, ran_out=True)
    except (
        psycopg.DataError, psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedFunction
    ) as error:  # fmt: skip
        # What the query reads is malformed, or is not there although this program's schema has it.
        connection.execute("rollback to asked")
        return InvariantResult(one.name, one.sentence, 1, damaged=(str(error).splitlines()[0],))

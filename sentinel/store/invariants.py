"""Runs `deploy/invariants.sql`: each named query returns the ids of violations and must return none."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from sentinel.core.wording import counted
from sentinel.store.database import LONG_STATEMENT_SECONDS

_BLOCK = re.compile(r"^-- (\w+): (.+)\n((?:(?!-- \w+: ).*\n?)+)", re.MULTILINE)
_TEXTS = 1009
"""PostgreSQL's type text[]."""
AUTHORITY_ELSEWHERE = "-- with the authority"
"""Marks a query that compares the ledger with the authority: it is not run when the two are in different databases."""
SHOWN = 5
MINUTES = LONG_STATEMENT_SECONDS // 60
RAN_OUT = "it took longer than its time limit"

COUNT_VIOLATIONS = "select count(*), (array_agg(what order by what))[1:{shown}] from ({query}) as found (what)"
IS_ONE_DATABASE = """
select exists (select from sentinel.operations) or not exists (select from refunds.ledger_entries where operation_id is not null)
  and not exists (select from refunds.executions)
"""


@dataclass(frozen=True, slots=True)
class Invariant:
    """One condition that must always hold; `compares` is set when it compares the ledger with the authority."""

    name: str
    sentence: str
    query: str
    compares: bool = False


@dataclass(frozen=True, slots=True)
class InvariantResult:
    """The result of one invariant: the number of violations and the first of their ids, or why it was not checked.

    `unchecked` is not a violation: the login may not read the tables, or what it compares is in another database. With
    `ran_out` the query timed out: the result is unknown, and a person must check again.
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
        return f"{counted(self.violations, 'violation')} of: {self.sentence}: {', '.join(self.damaged)}{more}"


def read_invariants(path: Path) -> list[Invariant]:
    """The named queries of the file, in order."""
    return [
        Invariant(name, sentence, query.strip().rstrip(";"), AUTHORITY_ELSEWHERE in query)
        for name, sentence, query in _BLOCK.findall(path.read_text())
    ]


def run_invariants(
    connection: psycopg.Connection[Any], path: Path, *, minutes: float = MINUTES
) -> list[InvariantResult]:
    """Check each invariant of the file; a query may take `minutes`.

    Each is checked in a snapshot of its own: one moment of a live system is consistent, and vacuum is not held back for
    longer than one query.
    """
    return [_check_alone(connection, one, minutes) for one in read_invariants(path)]


def _check_alone(connection: psycopg.Connection[Any], one: Invariant, minutes: float) -> InvariantResult:
    connection.execute("begin isolation level repeatable read read only")
    try:
        limit_statements(connection, minutes)
        return check_invariant(connection, one)
    finally:
        connection.execute("rollback")


def limit_statements(connection: psycopg.Connection[Any], minutes: float) -> None:
    """Set the statement timeout of the open transaction, in minutes.

    Between two statements it may rest as long, or `MINUTES`: a long checkpoint file is read meanwhile, for longer than
    a program's transactions may rest.
    """
    connection.execute(
        f"set local statement_timeout = '{math.ceil(minutes * 60_000)}ms';"
        f" set local idle_in_transaction_session_timeout = '{math.ceil(max(minutes, MINUTES) * 60_000)}ms'"
    )


def check_invariant(connection: Any, one: Invariant) -> InvariantResult:
    """Check one invariant within the open transaction, which stays usable when the query fails.

    Raises `ValueError` for a query that does not return the ids of violations as one text column.
    """
    connection.execute("savepoint asked")
    try:
        if one.compares and not connection.execute(IS_ONE_DATABASE).fetchone()[0]:
            return InvariantResult(
                one.name, one.sentence, 0, unchecked="the authority's operations are in another database"
            )
        cursor = connection.execute(COUNT_VIOLATIONS.format(shown=SHOWN, query=one.query))
        if cursor.description[1].type_code != _TEXTS:
            raise ValueError(f"the invariant {one.name} must return the ids of its violations, as one text column")
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
        # Stored data is malformed, or a table, column or function of this program's schema is missing: a violation too.
        connection.execute("rollback to asked")
        return InvariantResult(one.name, one.sentence, 1, damaged=(str(error).splitlines()[0],))

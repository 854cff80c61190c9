"""Deliberately broken copies of the authority, each with one fence removed, in a test's own database only.

A checker that stays green on its mutant proves nothing; so every "never" is also run here and has to turn red.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg

from tests.support.busy import long_enough
from tests.support.fixtures import Fixtures
from tests.support.kept_sessions import SESSIONS


def without_locks(fixtures: Fixtures, *names: str) -> None:
    """New connections' advisory locks of these names (e.g. "pg_advisory_xact_lock") do nothing.

    The functions name them without a schema, so a schema of that name in front of the system's takes their place.
    """
    run = fixtures.admin.execute
    run("create schema if not exists mutant")
    run("grant usage on schema mutant to public")
    for name in names:
        taken = "boolean language sql as 'select true'" if "_try_" in name else "void language sql as 'select'"
        run(f"create function mutant.{name}(bigint) returns {taken}".encode())
    run(f"alter database {fixtures.admin.info.dbname} set search_path = mutant, pg_catalog, public".encode())
    SESSIONS.forget(fixtures.admin.info.dbname)


def without_constraint(fixtures: Fixtures, table: str, name: str) -> None:
    """The table without one constraint or unique index."""
    fixtures.admin.execute(f"alter table {table} drop constraint if exists {name}".encode())
    fixtures.admin.execute(f"drop index if exists sentinel.{name}".encode())


def slow_events(fixtures: Fixtures, seconds: float) -> None:
    """Recording an event takes a while: the time between what was read and what is written becomes wide."""
    fixtures.admin.execute(
        f"create function sentinel.dawdle() returns trigger language plpgsql as"
        f" $$ begin perform pg_sleep({seconds}); return new; end $$".encode())  # fmt: skip
    fixtures.admin.execute(
        "create trigger dawdle before insert on sentinel.event_rows for each row execute function sentinel.dawdle()"
    )
    fixtures.admin.execute("grant execute on function sentinel.dawdle() to public")


def meet_before(admin: psycopg.Connection[Any], function: str, statement: str, *, parties: int = 2) -> None:
    """Whoever comes to `statement` in `function` waits there until `parties` have come; afterwards nobody waits.

    So a race that a mutant must lose happens at every run. Who has read stands still until the others have read too. One
    who is alone for three seconds, or longer on a busy machine, gets an error: then nothing raced. A test itself comes by `arrive`.
    """
    _make_meeting(admin, parties)
    _cut(admin, function, statement, f"perform sentinel.meet(); {statement}")


def without_the_plain_way_alone(admin: psycopg.Connection[Any]) -> None:
    """A row that comes alone is decided as a batch."""
    _cut(admin, "sentinel.record_decisions", "if cardinality(batch) = 1", "if false and cardinality(batch) = 1")


def meet_alone(admin: psycopg.Connection[Any], *, parties: int = 2) -> None:
    """`meet_before` where a row that comes alone has looked at all but the budgets and written nothing yet."""
    _make_meeting(admin, parties)
    looked = "if not sentinel.count_alone("
    _cut(
        admin,
        "sentinel.record_one",
        looked,
        f"if cardinality(rates) = 0 then perform sentinel.meet(); end if; {looked}",
    )
    written = "part := date_bin("
    _cut(admin, "sentinel.count_alone", written, f"perform sentinel.meet(); {written}")


def meet_in_set(admin: psycopg.Connection[Any], *, parties: int = 2) -> None:
    """`meet_before` within the statement that decides a set, whose view of the tables is taken already. A row that comes alone goes that
    way too: its own update of a budget looks for room once more, so there is no race to lose."""
    _make_meeting(admin, parties)
    without_the_plain_way_alone(admin)
    # Who loses a budget to another would begin again, and then see what the other did.
    _cut(admin, "sentinel.hold_sums", "if is_lost then", "if false then")
    fence = "select case when bool_and("
    _cut(
        admin,
        "sentinel.all_plain",
        fence,
        f"select case when sentinel.meet()::text is distinct from 'never' and {fence.removeprefix('select case when ')}",
    )


def _make_meeting(admin: psycopg.Connection[Any], parties: int) -> None:
    run = admin.execute
    run(
        "create sequence sentinel.arrivals minvalue 0 start 0"
    )  # its value is seen at once, whoever's transaction is open
    run(
        f"""
        create function sentinel.meet() returns void language plpgsql as $$
        declare
          until timestamptz := clock_timestamp() + make_interval(secs => {long_enough(3)});
        begin
          perform nextval('sentinel.arrivals');
          while (select last_value < {parties - 1} from sentinel.arrivals) loop
            if clock_timestamp() > until then raise exception 'nobody came to race with'; end if;
            perform pg_sleep(0.002);
          end loop;
        end $$""".encode()
    )
    run("grant select, usage on sequence sentinel.arrivals to public")
    run("grant execute on function sentinel.meet to public")


def arrive(fixtures: Fixtures) -> None:
    """Come to the meeting from outside."""
    fixtures.one("select nextval('sentinel.arrivals')")


def wait_for_arrivals(fixtures: Fixtures, number: int) -> None:
    """Wait, without coming oneself, until so many are there."""
    until = time.monotonic() + long_enough(3)
    while not fixtures.one("select is_called and last_value >= %s from sentinel.arrivals", number - 1):
        assert time.monotonic() < until, "nobody came"
        time.sleep(0.002)


def forgets_keys(fixtures: Fixtures) -> None:
    """An operation is never found again under its key."""
    run = fixtures.admin.execute
    run("create function sentinel.forgetful() returns trigger language plpgsql as"
        " $$ begin new.idempotency_key := new.idempotency_key || '#' || new.operation_id; return new; end $$")  # fmt: skip
    run(
        "create trigger forgetful before insert on sentinel.operation_rows for each row execute function sentinel.forgetful()"
    )
    run("grant execute on function sentinel.forgetful() to public")


def cut(fixtures: Fixtures, function: str, fence: str, instead: str = "") -> None:
    """`function` with every occurrence of `fence` replaced. Fails when the fence is not there: then the mutant is stale."""
    _cut(fixtures.admin, function, fence, instead)


def _cut(admin: psycopg.Connection[Any], function: str, fence: str, instead: str) -> None:
    source = definition(admin, function)
    assert fence in source, f"{function} has no {fence!r} any more: bring this mutant up to date"
    admin.execute(source.replace(fence, instead).encode())


def definition(admin: psycopg.Connection[Any], function: str) -> str:
    """The CREATE OR REPLACE text of a function."""
    row = admin.execute("select pg_get_functiondef(%s::regproc)", [function]).fetchone()
    assert row is not None
    return str(row[0])

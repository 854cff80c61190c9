"""Moves the clock that the authority's functions ask, in a test's own database only.

Every function of the authority takes its time from `clock_timestamp()`, named without a schema; a function of that name in
a schema in front of the system's takes its place, for connections opened after `take_over`. Nothing else is replaced: the
functions under test run as they are shipped.
"""

from __future__ import annotations

from datetime import datetime

from tests.support.fixtures import Fixtures


def take_over(fixtures: Fixtures) -> None:
    """New connections of this database take their time from `set_clock`; until then it is the real one."""
    run = fixtures.admin.execute
    run("create schema clock")
    run("create table clock.now (at timestamptz not null, since timestamptz not null, ticks boolean not null)")
    run("insert into clock.now select t, t, true from pg_catalog.clock_timestamp() as t")
    run(
        "create function clock.clock_timestamp() returns timestamptz language sql volatile as $$"
        " select at + case when ticks then pg_catalog.clock_timestamp() - since else '0'::interval end from clock.now $$"
    )
    run("grant usage on schema clock to public")
    run("grant select on clock.now to public")
    run(f"alter database {fixtures.admin.info.dbname} set search_path = clock, pg_catalog, public".encode())
    # What is open already would go on with the real clock: pools connect anew.
    run(
        "select pg_terminate_backend(pid, 60000) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    )


def set_clock(fixtures: Fixtures, moment: datetime, *, ticks: bool = False) -> None:
    """It is `moment` now, and stays so unless it `ticks`."""
    fixtures.admin.execute(
        "update clock.now set at = %s, since = pg_catalog.clock_timestamp(), ticks = %s", [moment, ticks]
    )

"""A database goes from test to test with sessions that were closed, and shows nothing of the one before: no row, no sequence, no change
of the schema, no setting of a session."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from sentinel.store.database import AUTHORITY, Pool, with_role
from sentinel.store.embedded import RunningServer
from tests.conftest import at
from tests.support import kept_databases, kept_sessions
from tests.support.catalog import catalog
from tests.support.kept_databases import KeptDatabases
from tests.support.kept_sessions import SESSIONS, KeptSessions
from tests.support.ledger_fixtures import wait_until

TABLES = "select format('%I.%I', schemaname, tablename) from pg_tables where schemaname in ('sentinel', 'refunds', 'orders', 'public')"
SEQUENCES = "select format('%I.%I', schemaname, sequencename), last_value from pg_sequences"
UNCHECKED = """
select format('alter table %s drop constraint %I', conrelid::regclass, conname) from pg_constraint
where contype = 'c' and conrelid <> 0 and conrelid::regclass::text ~ '^(sentinel|refunds|orders)' and conparentid = 0
union all
select format('alter table %s alter %I drop not null', attrelid::regclass, attname) from pg_attribute a
where attnotnull and attnum > 0 and not attisdropped and attidentity = '' and attrelid::regclass::text ~ '^(sentinel|refunds|orders)'
  and (select relkind from pg_class where oid = attrelid) = 'r'
  and not exists (select from pg_index where indrelid = attrelid and indisprimary and attnum = any (indkey))
"""
KEYS = """
select format_type(a.atttypid, a.atttypmod), quote_ident(a.attname) from pg_index x
join pg_attribute a on a.attrelid = x.indrelid and a.attnum = any (x.indkey) and a.attidentity = ''
where x.indisprimary and x.indrelid = %s::regclass
"""
VALUES = {
    "text": "'nobody'", "uuid": "gen_random_uuid()", "bigint": "7", "integer": "7", "smallint": "7", "boolean": "false",
    "timestamp with time zone": "now()", "bytea": "'x'", "date": "now()", "character varying(32)": "'nobody'", "character(3)": "'ZZZ'",
}  # fmt: skip
"""Of a key of each type, one that no row of a template has."""


@pytest.fixture
def kept(pg_server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeptDatabases]:
    """Databases that are used again at once, whose sessions are kept however many other databases' are."""
    monkeypatch.setattr(kept_databases, "RESTING", 1)
    monkeypatch.setattr(kept_sessions, "MOST_OF_ALL", 1_000)
    made = KeptDatabases(pg_server.admin_url)
    yield made
    made.close()


@pytest.fixture
def unchecked(pg_server: RunningServer, furnished_template: tuple[str, object]) -> Iterator[str]:
    """A template like that of `fixtures` whose tables take any row."""
    name = f"unchecked_{uuid.uuid4().hex[:8]}"
    with entered(pg_server.admin_url) as server:
        server.execute(f"create database {name} template {furnished_template[0]}".encode())
        with entered(at(pg_server.admin_url, name)) as admin:
            for (statement,) in admin.execute(UNCHECKED.encode()).fetchall():
                admin.execute(statement)
        yield name
        server.execute(f"drop database {name} with (force)".encode())


def entered(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True)


def identity(admin: psycopg.Connection[Any]) -> int:
    """Which database it is, whatever it is called now."""
    found = admin.execute("select oid from pg_database where datname = current_database()").fetchone()
    assert found is not None
    return int(found[0])


def add_a_row(admin: psycopg.Connection[Any], table: str) -> None:
    columns = admin.execute(KEYS.encode(), [table]).fetchall()
    names, values = ", ".join(name for _, name in columns), ", ".join(VALUES[kind] for kind, _ in columns)
    admin.execute(
        (
            f"insert into {table} ({names}) values ({values})" if columns else f"insert into {table} default values"
        ).encode()
    )


def test_a_test_finds_no_row_of_the_one_before_whatever_table_it_wrote(kept: KeptDatabases, unchecked: str) -> None:
    with kept.one_of(unchecked) as url, entered(url) as admin:
        before, which = catalog(admin), identity(admin)
        tables = [name for (name,) in admin.execute(TABLES.encode()).fetchall()]
        admin.execute("set session_replication_role = replica")
        for table in tables:
            counted = admin.execute(f"select count(*) from {table}".encode()).fetchone()
            add_a_row(admin, table)
            assert admin.execute(f"select count(*) - 1 from {table}".encode()).fetchone() == counted
    with kept.one_of(unchecked) as url, entered(url) as admin:
        assert identity(admin) == which, "it is the same database"
        assert catalog(admin) == before
        assert admin.execute(SEQUENCES.encode()).fetchall() == [
            (name, None) for name, _ in admin.execute(SEQUENCES.encode())
        ]
        # What was there from the beginning comes back when it was changed or deleted.
        admin.execute("set session_replication_role = replica")
        for table in tables:
            admin.execute(f"delete from {table}".encode())
    with kept.one_of(unchecked) as url, entered(url) as admin:
        assert (identity(admin), catalog(admin)) == (which, before)


CHANGES = (
    "create table public.more (a int)",
    "create schema more",
    "create view public.more as select 1 as a",
    "create function sentinel.more() returns int language sql return 1",
    "create index on sentinel.halts (reason)",
    "alter table sentinel.halts add column more int",
    "alter table sentinel.halts alter reason set default 'x'",
    "alter table sentinel.halts rename to more",
    "alter table sentinel.halts owner to sentinel_admin",
    "alter table sentinel.halts set (fillfactor = 50)",
    "alter table sentinel.approvals disable trigger all",
    "alter table sentinel.halts add constraint more check (reason <> 'x') not valid",
    "comment on table sentinel.halts is 'x'",
    "grant delete on sentinel.halts to sentinel_worker",
    "grant update (reason) on sentinel.halts to sentinel_worker",
    "revoke select on sentinel.halts from sentinel_authority",
    "revoke all on schema sentinel from sentinel_authority",
    "revoke execute on function pg_catalog.now() from public",
    "alter default privileges grant select on tables to sentinel_worker",
    "alter database {} set default_transaction_read_only = on",
    "alter database {} set search_path = public",
    "alter database {} connection limit 3",
    "alter role sentinel_worker in database {} set timezone = 'Asia/Tokyo'",
    "revoke connect on database {} from public",
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_database_whose_schema_grants_or_settings_a_test_changed_is_dropped(
    kept: KeptDatabases, migrated_template: str, change: str
) -> None:
    with kept.one_of(migrated_template) as url, entered(url) as admin:
        which = identity(admin)
        admin.execute(change.format(admin.info.dbname).encode())
    with kept.one_of(migrated_template) as url, entered(url) as admin:
        assert identity(admin) != which
        assert admin.execute("select from pg_database where oid = %s", [which]).fetchall() == []


def test_whatever_an_earlier_test_left_running_is_cut_off_and_finds_no_database_again(
    kept: KeptDatabases, migrated_template: str
) -> None:
    with kept.one_of(migrated_template) as url:
        left = entered(with_role(url, AUTHORITY))
    with kept.one_of(migrated_template) as later:
        with pytest.raises(psycopg.OperationalError):
            left.execute("select 1")
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            entered(url)
        assert conninfo_to_dict(later)["dbname"] != conninfo_to_dict(url)["dbname"]
    left.close()


def test_one_that_grew_is_dropped_and_a_copy_of_ones_own_serves_once(
    kept: KeptDatabases, migrated_template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept.one_of(migrated_template) as url, entered(url) as admin:
        grown = identity(admin)
    monkeypatch.setattr(kept_databases, "MOST_BYTES", 0)
    with kept.one_of(migrated_template) as url, entered(url) as admin:
        assert identity(admin) != grown
    with kept.copy_of(migrated_template) as url, entered(url) as admin:
        alone = identity(admin)
    with entered(at(url, "postgres")) as admin:
        assert admin.execute("select from pg_database where oid = any (%s)", [[grown, alone]]).fetchall() == []


LEFT_BEHIND = (
    "set statement_timeout = 77", "set search_path = public", "listen left_behind",
    "declare left_behind cursor with hold for select 1", "set role sentinel_worker",
)  # fmt: skip
SEEN = """
select current_setting('statement_timeout'), current_setting('role'), current_setting('search_path'),
  (select count(*) from pg_listening_channels()), (select count(*) from pg_cursors where name = 'left_behind')
"""


def of_pool(url: str, *statements: str) -> tuple[int, Any]:
    """A session of a pool after these statements: its process, and what `SEEN` says of it."""
    pool = Pool(with_role(url, AUTHORITY), size=1)
    try:
        with pool.connection() as connection:
            for statement in statements:
                connection.execute(statement.encode(), prepare=False)
            found = connection.execute(SEEN.encode(), prepare=False).fetchone()
            return connection.info.backend_pid, found
    finally:
        pool.close()


def test_a_closed_session_serves_a_later_test_as_if_it_had_begun(kept: KeptDatabases, migrated_template: str) -> None:
    with kept.one_of(migrated_template) as url:
        process, begun = of_pool(url)
        assert of_pool(url, *LEFT_BEHIND)[0] != process, "not before what is left in it was taken away"
    with kept.one_of(migrated_template) as later:
        pools = [of_pool(later) for _ in range(3)]
        assert later == url and process in [one for one, _ in pools]
        assert [found for _, found in pools] == [begun] * 3


def test_a_session_with_something_unfinished_is_closed(kept: KeptDatabases, migrated_template: str) -> None:
    with kept.one_of(migrated_template) as url:
        pool = Pool(with_role(url, AUTHORITY), size=1)
        with pool.connection() as connection:
            connection.execute("begin")
            process = connection.info.backend_pid
            pool.close()
        with entered(url) as admin:
            gone = "select count(*) = 0 from pg_stat_activity where pid = %s"
            wait_until(lambda: admin.execute(gone, [process]).fetchone() == (True,))


def test_so_many_sessions_are_kept_of_one_database_and_of_all_and_no_more(
    kept: KeptDatabases, migrated_template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test may open and close hundreds, and what rests takes the server's places."""
    sessions = KeptSessions()
    monkeypatch.setattr(kept_sessions, "MOST_OF_ONE", 2)
    monkeypatch.setattr(kept_sessions, "MOST_OF_ALL", 3)
    with kept.copy_of(migrated_template) as one, kept.copy_of(migrated_template) as other:
        taken = []
        for url in (one, one, one, other, other):
            sessions.keep(conninfo_to_dict(url)["dbname"])
            with entered(url) as admin:
                taken.append(sessions.give(kept_sessions.OWN, url, admin.pgconn, None))
        assert taken == [True, True, False, True, False]


def test_a_session_that_was_ended_or_begins_otherwise_now_is_not_handed_out(
    kept: KeptDatabases, migrated_template: str
) -> None:
    with kept.one_of(migrated_template) as url:
        process, _ = of_pool(url)
    with kept.one_of(migrated_template) as url, entered(url) as admin:
        admin.execute("select pg_terminate_backend(%s, 5000)", [process])
        other, _ = of_pool(url)
        assert other != process
    with kept.one_of(migrated_template) as url, entered(url) as admin:
        admin.execute(f"alter database {admin.info.dbname} set search_path = public".encode())
        SESSIONS.forget(admin.info.dbname)
        later, (*_, path, _, _) = of_pool(url)
        assert later != other and path == "public"


def test_a_session_that_began_while_its_database_was_read_only_is_not_handed_out(
    kept: KeptDatabases, migrated_template: str
) -> None:
    """Reset as at its start it would refuse the writes of a later test."""
    with kept.one_of(migrated_template) as url, entered(url) as admin:
        name = admin.info.dbname
        admin.execute(f"alter database {name} set default_transaction_read_only = on".encode())
        process, _ = of_pool(url)
        admin.execute("set default_transaction_read_only = off")
        admin.execute(f"alter database {name} reset default_transaction_read_only".encode())
    with kept.one_of(migrated_template) as later:
        assert later == url and process not in [of_pool(later)[0] for _ in range(3)]


@pytest.mark.fresh_database
def test_a_test_that_counts_reads_may_ask_for_a_copy_of_its_own(database_url: str) -> None:
    with entered(database_url) as admin:
        assert admin.execute("select sum(n_tup_ins + n_tup_del) from pg_stat_user_tables").fetchone() == (0,)

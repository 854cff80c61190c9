"""Databases of a test process that go from test to test, each emptied to what its template has before the next test gets it.

Copying a template takes PostgreSQL ten times as long as deleting the rows that a test wrote. Sessions that were closed in it go along
(`kept_sessions`). Where an earlier test left one open, that is ended and the database gets another name, so that whatever runs still
finds it no more. One whose schema, grants, comments or settings a test changed is dropped, as is one that grew large or served long.
"""

from __future__ import annotations

import functools
import uuid
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.kept_sessions import SESSIONS

RESTING = 3
"""So many of a template rest before one is used again: what was connected to it has ended by then."""
MOST_USES = 40
MOST_BYTES = 2 << 20
"""Of all tables: deleting more rows takes longer than a copy."""

_FINGERPRINT = """
select
  -- Rows written into any catalog of the database; whoever wrote them has counted them before he is gone.
  (select sum(pg_stat_get_tuples_inserted(oid) + pg_stat_get_tuples_updated(oid) + pg_stat_get_tuples_deleted(oid))
   from pg_class where relnamespace = 'pg_catalog'::regnamespace and relkind = 'r' and not relisshared
     and relname not in ('pg_class', 'pg_statistic')),
  -- Statistics are kept in pg_class too: what else it says.
  (select sum(hashtextextended(concat_ws('|', oid, relname, relnamespace, relowner, relkind, relpersistence, relhastriggers,
     relrowsecurity, relforcerowsecurity, relreplident, relacl, reloptions), 0)) from pg_class),
  (select concat_ws('|', datdba, datistemplate, datallowconn, datconnlimit, datacl) from pg_database where datname = current_database()),
  (select count(*) from pg_db_role_setting s join pg_database d on d.oid = s.setdatabase where d.datname = current_database())
"""
_TABLES = """
select c.oid::regclass::text, array_agg(quote_ident(a.attname) order by a.attnum) filter (where a.attgenerated = '')
from pg_class c join pg_namespace n on n.oid = c.relnamespace
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relkind = 'r' and c.relpersistence <> 't' and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname not like 'pg\\_toast%'
group by c.oid order by 1
"""
_SIZES = "select name, pg_relation_size(name::regclass) from unnest(%s::text[]) as name"
_SEQUENCES = """
select format('%I.%I', schemaname, sequencename), coalesce(last_value, start_value), last_value is not null from pg_sequences
"""
_OTHERS = (
    "select count(*) from pg_stat_activity where datname = %s and backend_type = 'client backend' and pid <> all(%s)"
)
"""Clients: an autovacuum worker is nobody's, and may come to any database at any time."""
_END_ALL = "select count(pg_terminate_backend(pid, 60000)) from pg_stat_activity where datname = %s"
_END = f"{_END_ALL} and pid = any(%s)"


@dataclass(frozen=True, slots=True)
class _Contents:
    """What a template has: for each table its columns and, where there are any, its rows, with what tells that they are the same."""

    tables: dict[str, list[str]]
    rows: dict[str, tuple[bytes, Any]]
    sequences: dict[str, tuple[int, bool]]


@dataclass(slots=True)
class _Kept:
    name: str
    template: str
    fingerprint: tuple[Any, ...] | None
    uses: int = 1


class KeptDatabases:
    """The kept databases of one server, for tests of one thread. `server_url` is the administrator's."""

    def __init__(self, server_url: str) -> None:
        self._url = server_url
        self._resting: dict[str, deque[_Kept]] = defaultdict(deque)
        self._contents: dict[str, _Contents] = {}

    @functools.cached_property
    def _server(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._url, autocommit=True)

    @contextmanager
    def one_of(self, template: str) -> Iterator[str]:
        """An administrator's address of a database that is as the template is; it rests afterwards."""
        kept = self._rested(template) or self._made(template)
        SESSIONS.keep(kept.name)
        yield self._address(kept.name)
        self._resting[template].append(kept)

    @contextmanager
    def copy_of(self, template: str) -> Iterator[str]:
        """An administrator's address of a copy that no test had before and none gets afterwards."""
        name = self._copied(template)
        yield self._address(name)
        self._drop(name)

    def close(self) -> None:
        """The databases go with their server."""
        self._server.close()

    def _address(self, name: str) -> str:
        return make_conninfo(**{**conninfo_to_dict(self._url), "dbname": name})

    def _copied(self, template: str) -> str:
        name = _new_name()
        end_all_in(self._server, template)
        self._tell("create database {} template {} strategy file_copy", name, template)
        return name

    def _made(self, template: str) -> _Kept:
        name = self._copied(template)
        with psycopg.connect(self._address(name), autocommit=True) as connection:
            if template not in self._contents:
                self._contents[template] = _contents(connection)
            return _Kept(name, template, _fingerprint(connection))

    def _rested(self, template: str) -> _Kept | None:
        """One that rested long enough, with what its template has; None where there is none to be had."""
        resting = self._resting[template]
        while len(resting) >= RESTING:
            kept = resting.popleft()
            if kept.uses < MOST_USES and (self._is_alone(kept) or self._renamed(kept)) and self._emptied(kept):
                kept.uses += 1
                return kept
            self._drop(kept.name)
        return None

    def _is_alone(self, kept: _Kept) -> bool:
        """Whether nobody is in it whom its earlier tests left."""
        own, closed = SESSIONS.make_ready(kept.name)
        if closed:  # they are not gone yet
            self._server.execute(_END, [kept.name, closed])
        return self._server.execute(_OTHERS, [kept.name, own]).fetchone() == (0,)

    def _renamed(self, kept: _Kept) -> bool:
        """Whether nobody is in it any more, nor can come back."""
        name = _new_name()
        SESSIONS.forget(kept.name)
        end_all_in(self._server, kept.name)
        try:
            self._tell("alter database {} rename to {}", kept.name, name)
        except psycopg.errors.ObjectInUse:
            return False
        kept.name = name
        return True

    def _emptied(self, kept: _Kept) -> bool:
        """Whether its rows and sequences are the template's again; False where it is to be dropped instead."""
        try:
            with SESSIONS.emptying(self._address(kept.name)) as connection:
                return _fingerprint(connection) == kept.fingerprint and _restore(
                    connection, self._contents[kept.template]
                )
        except psycopg.OperationalError:  # a test that lets nobody in any more
            return False

    def _drop(self, name: str) -> None:
        SESSIONS.forget(name)
        drop_database(self._server, name)

    def _tell(self, statement: str, *names: str) -> None:
        self._server.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))  # type: ignore[arg-type]


def end_all_in(server: psycopg.Connection[Any], name: str) -> None:
    """End who is in a database, and wait until they are gone: PostgreSQL itself waits five seconds for one that stands still."""
    server.execute(_END_ALL, [name])


def drop_database(server: psycopg.Connection[Any], name: str) -> None:
    """Drop a database, whoever is in it."""
    end_all_in(server, name)
    server.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def _new_name() -> str:
    return f"test_{uuid.uuid4().hex[:12]}"


def _fingerprint(connection: psycopg.Connection[Any]) -> tuple[Any, ...] | None:
    """What any change of the schema, of grants or of the database's settings makes another."""
    return connection.execute(_FINGERPRINT.encode()).fetchone()


def _contents(connection: psycopg.Connection[Any]) -> _Contents:
    tables = dict(connection.execute(_TABLES.encode()).fetchall())
    rows = {}
    for name, size in connection.execute(_SIZES.encode(), [list(tables)]).fetchall():
        if size:
            with connection.cursor().copy(_copy(name, tables[name], "to stdout")) as copy:
                data = b"".join(bytes(part) for part in copy)
            if data:
                rows[name] = data
    sums = dict(connection.execute(_sums(rows)).fetchall()) if rows else {}
    return _Contents(tables, {name: (data, sums[name]) for name, data in rows.items()}, _sequences(connection))


def _copy(table: str, columns: list[str], way: str) -> bytes:
    return f"copy {table} ({', '.join(columns)}) {way}".encode()


def _sums(tables: Any) -> bytes:
    """For each table a number that its rows make: the same rows, the same number."""
    return " union all ".join(
        f"select '{name}', coalesce(sum(hashtextextended(t::text, 0)), 0) from {name} t" for name in tables
    ).encode()


def _sequences(connection: psycopg.Connection[Any]) -> dict[str, tuple[int, bool]]:
    return {name: (at, called) for name, at, called in connection.execute(_SEQUENCES.encode()).fetchall()}


def _restore(connection: psycopg.Connection[Any], wanted: _Contents) -> bool:
    """Delete what was written, put back what the template has. No trigger of ours sees it: most tables let nobody delete."""
    sizes = dict(connection.execute(_SIZES.encode(), [list(wanted.tables)]).fetchall())
    if sum(sizes.values()) > MOST_BYTES:
        return False
    found = dict(connection.execute(_sums(wanted.rows)).fetchall()) if wanted.rows else {}
    changed = [name for name, (_, total) in wanted.rows.items() if found[name] != total]
    written = [name for name, size in sizes.items() if size and name not in wanted.rows] + changed
    moved = {name: at for name, at in _sequences(connection).items() if wanted.sequences[name] != at}
    connection.execute(
        "; ".join(
            [f"delete from {name}" for name in written]
            + [
                f"select setval('{name}', {at}, {called})"
                for name, (at, called) in wanted.sequences.items()
                if name in moved
            ]
        ).encode(),
        prepare=False,
    )
    for name in changed:
        with connection.cursor().copy(_copy(name, wanted.tables[name], "from stdin")) as copy:
            copy.write(wanted.rows[name][0])
    return True

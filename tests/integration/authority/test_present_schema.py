"""The schema has one present text: a database made from it, and one that migrations led there, are the same in everything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from sentinel.store import migrate as store
from sentinel.store.embedded import RunningServer
from sentinel.store.migrate import SCHEMA, migrate
from tests.support.catalog import catalog, differences
from tests.support.old_databases import empty_database, run_migrations

MEND = (
    "the schema's files and the migrations do not make the same database: change the file in store/schema and add a migration"
    " beside it (docs/decisions/0046-one-present-schema.md)"
)


@pytest.fixture
def by_migrations(pg_server: RunningServer) -> Iterator[str]:
    """A database that the migrations alone led to the newest revision, then upgraded as any other."""
    with empty_database(pg_server) as url:
        run_migrations(url)
        migrate(url)
        yield url


@pytest.fixture
def by_files(pg_server: RunningServer) -> Iterator[str]:
    """A database that was made from the schema's files."""
    with empty_database(pg_server) as url:
        migrate(url)
        yield url


def compare(one: str, other: str) -> set[str]:
    """The names of what differs."""
    with psycopg.connect(one) as first, psycopg.connect(other) as second:
        return set(differences(catalog(first), catalog(second)))


def test_a_database_by_the_files_is_one_by_the_migrations(by_files: str, by_migrations: str) -> None:
    assert compare(by_files, by_migrations) == set(), MEND
    with psycopg.connect(by_files) as admin:
        kinds = {name.split(" ")[0] for name in catalog(admin)}
    assert kinds == {
        "schema", "table", "column", "constraint", "index", "trigger", "view", "function", "type", "attribute", "sequence", "rows",
    }  # fmt: skip


CHANGES = {
    # what one of two equal databases is given more: what must be named
    "alter table sentinel.halts add column told_to text": "column sentinel.halts.told_to",
    "alter table sentinel.halts drop column breaker_key": "column sentinel.halts.breaker_key",
    "alter table sentinel.halts alter column level set default 'pause'": "column sentinel.halts.level",
    "alter table sentinel.halts alter column reason drop not null": "column sentinel.halts.reason",
    "alter table sentinel.halts alter column reason type varchar(80)": "column sentinel.halts.reason",
    "comment on column sentinel.halts.reason is 'why'": "column sentinel.halts.reason",
    "grant update (reason) on sentinel.halts to sentinel_console": "column sentinel.halts.reason",
    "comment on table sentinel.halts is 'halts'": "table sentinel.halts",
    "alter table sentinel.budgets set (fillfactor = 90)": "table sentinel.budgets",
    "alter table sentinel.halts owner to current_user": "table sentinel.halts",
    "grant delete on sentinel.halts to sentinel_console": "table sentinel.halts",
    "create table refunds.notes (note text)": "table refunds.notes",
    "alter table sentinel.halts drop constraint target_fits_scope": "constraint sentinel.halts.target_fits_scope",
    "drop index sentinel.halts_in_force": "index sentinel.halts_in_force",
    "alter table sentinel.event_rows disable trigger append_only": "trigger sentinel.event_rows.append_only",
    "drop trigger stays on refunds.confirmations": "trigger refunds.confirmations.stays",
    "create or replace view sentinel.public_tenants as select tenant_id, upper(label) as label from sentinel.tenants":
        "view sentinel.public_tenants",
    "grant select on sentinel.public_tenants to sentinel_worker": "view sentinel.public_tenants",
    "create or replace function sentinel.halt_lock() returns bigint language sql immutable parallel safe as 'select 1::bigint'":
        "function sentinel.halt_lock()",
    "grant execute on function sentinel.halt_lock() to sentinel_worker": "function sentinel.halt_lock()",
    "alter function sentinel.halt_lock() owner to current_user": "function sentinel.halt_lock()",
    "alter type orders.delivery_response add attribute told text": "attribute orders.delivery_response.told",
    "grant usage on sequence refunds.ledger_events_event_id_seq to sentinel_console": "sequence refunds.ledger_events_event_id_seq",
    "create type orders.mood as enum ('calm')": "type orders.mood",
    "grant create on schema orders to sentinel_orders": "schema orders",
    "insert into refunds.transitions values ('NEW', 'executed', 'EXECUTED')": "rows of refunds.transitions",
}  # fmt: skip


def test_what_only_one_of_two_has_is_named(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as admin:
        before = catalog(admin)
        missed = {}
        for change, named in CHANGES.items():
            with admin.transaction(force_rollback=True):
                admin.execute(change.encode())
                found = differences(before, catalog(admin))
            if named not in found:
                missed[change] = sorted(found)
        assert missed == {}
        assert differences(before, catalog(admin)) == {}, "each change was taken back"


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("authority/halts.sql", "  primary key (tenant_id, halt_id),", "  told_to text, primary key (tenant_id, halt_id),", "column sentinel.halts.told_to"),
        ("refunds/effects.sql", "between 1 and 20)", "between 1 and 30)", "constraint refunds.effects.effects_effect_number_check"),
        ("console/board.sql", "as select tenant_id, scope, target", "as select tenant_id, scope, target, level", "view sentinel.public_halts"),
        ("orders/analysts.sql", "create index refunds_followed on orders.refunds (tenant_id, filed_at)",
         "create index refunds_followed on orders.refunds (filed_at)", "index orders.refunds_followed"),
    ],
)  # fmt: skip
def test_a_file_that_was_changed_without_a_migration_is_named(
    pg_server: RunningServer, by_migrations: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str, old: str, new: str, named: str
) -> None:  # fmt: skip
    forgetful = tmp_path / "schema"
    shutil.copytree(SCHEMA, forgetful)
    text = (forgetful / file).read_text()
    assert text.count(old) == 1
    (forgetful / file).write_text(text.replace(old, new))
    monkeypatch.setattr(store, "SCHEMA", forgetful)
    with empty_database(pg_server) as url:
        migrate(url)
        assert named in compare(url, by_migrations)

"""Migrations: safe at once and again; a program runs only on the schema it was written for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from sentinel.store.embedded import RunningServer
from sentinel.store.migrate import (
    HEAD,
    SchemaNotReady,
    current_revision,
    function_texts,
    migrate,
    require_head,
)
from tests.support.harness import at_once, dump
from tests.support.logins import make_login
from tests.support.old_databases import SCRIPTS, alembic_config, at_revision, empty_database
from tests.support.world import guard_body, make_world


@pytest.fixture
def empty_url(pg_server: RunningServer) -> Iterator[str]:
    """An empty database."""
    with empty_database(pg_server) as url:
        yield url


def test_several_migrations_at_once_make_one_schema(empty_url: str) -> None:
    results = at_once([lambda: migrate(empty_url) for _ in range(3)])
    assert sorted(results, key=str) == sorted([(None, HEAD), (HEAD, HEAD), (HEAD, HEAD)], key=str)
    with psycopg.connect(empty_url) as connection:
        require_head(connection)


def test_migrating_again_changes_nothing(database_url: str) -> None:
    world = make_world(database_url)
    try:
        world.guard(guard_body())
        before = dump(world.admin)
        assert migrate(database_url) == (HEAD, HEAD)
        assert dump(world.admin) == before
        assert world.guard(guard_body())["decision"] == "ALLOW"
    finally:
        world.close()


def test_migrating_repairs_grants_that_somebody_took_or_gave(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute("revoke insert on sentinel.events from sentinel_authority")
        admin.execute("grant update on sentinel.events to sentinel_authority")
    migrate(database_url)
    with psycopg.connect(database_url) as admin:
        found = admin.execute(
            "select has_table_privilege('sentinel_authority', 'sentinel.events', 'insert'),"
            " has_table_privilege('sentinel_authority', 'sentinel.events', 'update')").fetchone()  # fmt: skip
    assert found == (True, False)


def functions(connection: psycopg.Connection) -> dict[str, str]:
    """Every function of ours by its signature, with its definition."""
    found = connection.execute(
        "select p.oid::regprocedure::text, pg_get_functiondef(p.oid) from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname in ('sentinel', 'refunds', 'orders')").fetchall()  # fmt: skip
    return dict(found)


def test_each_function_is_the_one_of_its_present_text(empty_url: str) -> None:
    migrate(empty_url)
    with psycopg.connect(empty_url) as admin:
        before = functions(admin)
        texts = "".join(file.read_text() for file in function_texts())
        names = re.findall(r"^create or replace function ([a-z0-9_.]+)", texts, re.MULTILINE)
        assert sorted(names) == sorted(signature.split("(")[0] for signature in before)
        assert len(set(names)) == len(names), "a function stands in two files"
        admin.execute("set check_function_bodies = off")
        admin.execute(texts.encode())
        assert functions(admin) == before


def test_an_altered_function_is_mended_and_a_strange_one_dropped(empty_url: str) -> None:
    migrate(empty_url)
    with psycopg.connect(empty_url, autocommit=True) as admin:
        before = functions(admin)
        admin.execute(
            "create or replace function sentinel.halt_over(tenant uuid, agent text, act text, scene text)"
            " returns uuid language sql stable as 'select null::uuid'"
        )
        admin.execute("create function refunds.stranger() returns integer language sql as 'select 1'")
        assert functions(admin) != before
        migrate(empty_url)
        assert functions(admin) == before


def test_functions_stand_in_their_present_text_alone() -> None:
    newer = [file for file in (SCRIPTS / "sql").glob("*.sql") if file.name > "0015"]
    for file in newer:
        assert "create or replace function" not in file.read_text().lower(), f"{file.name}: put it into store/schema/"


def test_the_programs_revision_is_the_newest_script() -> None:
    from alembic.script import ScriptDirectory

    assert ScriptDirectory.from_config(alembic_config()).get_heads() == [HEAD]


def test_a_downgrade_is_refused(database_url: str) -> None:
    from alembic import command
    from sqlalchemy import create_engine

    config = alembic_config()
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database_url))
    try:
        with engine.connect() as connection:
            config.attributes["connection"] = connection
            with pytest.raises(Exception) as refused:
                command.downgrade(config, "base")
            assert not isinstance(refused.value, AssertionError)
    finally:
        engine.dispose()
    with psycopg.connect(database_url) as admin:
        assert current_revision(admin) == HEAD


def test_a_migration_that_is_cut_off_leaves_nothing_and_can_be_run_again(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Path(os.environ.get("TMPDIR", "/tmp")) / f"roles-{uuid.uuid4().hex[:8]}.sql"
    broken.write_text("select no_such_column from sentinel.tenants")
    try:
        monkeypatch.setattr("sentinel.store.migrate.roles_sql", lambda: broken)
        with pytest.raises(Exception, match="no_such_column"):
            migrate(empty_url)
    finally:
        broken.unlink()
        monkeypatch.undo()
    with psycopg.connect(empty_url) as admin:
        assert current_revision(admin) is None
        assert admin.execute("select to_regnamespace('sentinel')").fetchone() == (None,)
    assert migrate(empty_url) == (None, HEAD)


@pytest.mark.parametrize("revision", [None, "0000", "9999"])
def test_another_revision_is_refused_and_the_command_named(empty_url: str, revision: str | None) -> None:
    with psycopg.connect(empty_url, autocommit=True) as admin:
        if revision is not None:
            admin.execute("create table public.schema_version (version_num text)")
            admin.execute("insert into public.schema_version values (%s)", [revision])
        with pytest.raises(SchemaNotReady, match="sentinel migrate"):
            require_head(admin)


def test_a_login_that_may_not_migrate_is_told_so_in_one_line(empty_url: str) -> None:
    poor_url = make_login(empty_url, "poor_login")
    try:
        environ = {**os.environ, "SENTINEL_DATABASE_URL": poor_url}
        ran = subprocess.run(
            [sys.executable, "-m", "sentinel.cli.main", "migrate"], env=environ, capture_output=True, text=True, timeout=60)  # fmt: skip
    finally:
        with psycopg.connect(empty_url, autocommit=True) as admin:
            admin.execute("drop role poor_login")
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1), ran
    assert ran.stderr.startswith("Error: cannot migrate")


STOOD = """
insert into sentinel.operation_states (tenant_id, operation_id, status, decision, reason_code, policy_id, policy_version, policy_label,
  policy_digest, decision_event_id, started_at, outcome, in_doubt_reason)
select %(tenant)s, %(operation)s, %(status)s, 'ALLOW', 'r', 'p', 'v', 'l', 'd', gen_random_uuid(), now() - interval '1 hour',
  %(outcome)s, case when %(status)s = 'in_doubt' then 'no_report' end"""
SAID = """
insert into sentinel.events (tenant_id, event_id, kind, operation_id, body, hash, occurred_at)
values (%(tenant)s, gen_random_uuid(), 'in_doubt_resolved', %(operation)s, %(body)s, 'h', %(at)s)"""


def test_what_was_started_and_said_before_has_its_times_after(empty_url: str) -> None:
    """0015: what is open may still be acted on for a while; a "not executed" of before is final; the rest has no such times."""
    at_revision(empty_url, "0014")
    tenant, said_at = uuid.uuid4(), "2026-05-01 10:00+00"
    stood = {
        "open": ("started", None, None), "silent": ("in_doubt", None, None), "failed": ("in_doubt", "error", None),
        "done": ("completed", "success", None), "executed": ("completed", "success", '{"executed":true}'),
        "not_executed": ("completed", "error", '{"executed":false}'),
    }  # fmt: skip
    ids = {name: uuid.uuid4() for name in stood}
    with psycopg.connect(empty_url, autocommit=True) as admin:
        for name, (status, outcome, word) in stood.items():
            fields = {
                "tenant": tenant,
                "operation": ids[name],
                "status": status,
                "outcome": outcome,
                "body": word,
                "at": said_at,
            }
            admin.execute(STOOD, fields)
            if word is not None:
                admin.execute(SAID, fields)
    assert migrate(empty_url) == ("0014", HEAD)
    with psycopg.connect(empty_url) as admin:
        found = admin.execute(
            "select operation_id, act_until > now() + interval '10 minutes', not_executed_at = %s from sentinel.operation_states",
            [said_at],
        ).fetchall()
    times = {name: next(tuple(row[1:]) for row in found if row[0] == ids[name]) for name in ids}
    assert times == {
        "open": (True, None), "silent": (True, None), "failed": (None, None), "done": (None, None), "executed": (None, None),
        "not_executed": (None, True),
    }  # fmt: skip

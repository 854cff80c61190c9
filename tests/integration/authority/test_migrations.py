"""Migrations: safe at once and again; a program runs only on the schema it was written for."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo

from sentinel.cli.main import main as sentinel
from sentinel.platform.resources import invariants_sql
from sentinel.store.database import AUTHORITY, CONSOLE
from sentinel.store.embedded import RunningServer
from sentinel.store.invariants import read_invariants
from sentinel.store.migrate import (
    _LOCK,
    BASELINE,
    FUNCTION,
    HEAD,
    SCHEMA,
    SchemaNotReady,
    alembic_config,
    current_revision,
    migrate,
    require_head,
    schema_text,
)
from tests.support.fixtures import guard_body, make_fixtures
from tests.support.harness import at_once, dump
from tests.support.logins import make_login
from tests.support.old_databases import SCRIPTS, empty_database, run_migrations


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


def test_a_schema_that_another_made_meanwhile_is_seen_in_the_same_transaction(empty_url: str) -> None:
    with psycopg.connect(empty_url) as connection, psycopg.connect(empty_url, autocommit=True) as other:
        assert current_revision(connection) is None
        other.execute("create table public.schema_version as select %s::text as version_num", [HEAD])
        assert current_revision(connection) == HEAD


def test_migrating_again_changes_nothing(database_url: str) -> None:
    fixtures = make_fixtures(database_url)
    try:
        fixtures.guard(guard_body())
        before = dump(fixtures.admin)
        assert migrate(database_url) == (HEAD, HEAD)
        assert dump(fixtures.admin) == before
        assert fixtures.guard(guard_body())["decision"] == "ALLOW"
    finally:
        fixtures.close()


def test_migrating_repairs_grants_that_somebody_took_or_gave(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute("revoke insert on sentinel.event_rows from sentinel_authority")
        admin.execute("grant update on sentinel.event_rows to sentinel_authority")
    migrate(database_url)
    with psycopg.connect(database_url) as admin:
        found = admin.execute(
            "select has_table_privilege('sentinel_authority', 'sentinel.event_rows', 'insert'),"
            " has_table_privilege('sentinel_authority', 'sentinel.event_rows', 'update')").fetchone()  # fmt: skip
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
        texts = "\n".join(FUNCTION.findall(schema_text()))
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


def test_every_file_of_the_schema_is_applied_once() -> None:
    listed = re.findall(r"^\\ir (\S+)$", (SCHEMA / "all.sql").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(
        str(file.relative_to(SCHEMA)) for file in SCHEMA.rglob("*.sql") if file.name != "all.sql"
    )
    statements = re.findall(r"^create (?:or replace )?function ", schema_text(), re.MULTILINE)
    assert set(statements) == {"create or replace function "}, "`sentinel migrate` replaces what begins so"
    assert len(statements) == len(FUNCTION.findall(schema_text())), (
        "a function's text ends with a line that ends in $$;"
    )


def test_the_baseline_never_changes() -> None:
    (file,) = (SCRIPTS / "sql").glob(f"{BASELINE}_*.sql")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert digest == "affee321323e57787f502873ecca193775394fa66f094286503d049d1b7c8828", (
        "databases are at it already: write a migration instead"
    )


def test_functions_stand_in_their_present_text_alone() -> None:
    newer = [file for file in (SCRIPTS / "sql").glob("*.sql") if file.name[:4] > BASELINE]
    assert newer
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
            with pytest.raises(RuntimeError, match="There is no way back from this migration; restore a backup"):
                command.downgrade(config, "base")
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


@pytest.mark.parametrize("already", [None, HEAD])
def test_a_database_that_only_reads_is_told_as_one_that_is_away(empty_url: str, already: str | None) -> None:
    """The finding: as something that a person must correct, 2, although after a failover the next try may do it."""
    if already:
        migrate(empty_url)
    only_reads = make_conninfo(empty_url, options="-c default_transaction_read_only=on")
    done = CliRunner().invoke(sentinel, ["migrate"], env={"SENTINEL_DATABASE_URL": only_reads})
    assert (done.exit_code, done.stderr.count("\n")) == (3, 1) and "it is read-only" in done.stderr, done.output
    assert migrate(empty_url) == (already, HEAD)


def test_a_time_limit_of_the_administrators_login_cuts_no_migration_off(empty_url: str) -> None:
    """The finding: managed servers give that login one, and over many rows each migration ended at the same place, undone."""
    limited = make_conninfo(empty_url, options="-c statement_timeout=1s")
    with psycopg.connect(empty_url, autocommit=True) as holder, ThreadPoolExecutor(1) as thread:
        holder.execute(f"select pg_advisory_lock({_LOCK})".encode())
        try:
            migrating = thread.submit(migrate, limited)
            with pytest.raises(TimeoutError):
                migrating.result(timeout=3)
        finally:
            holder.execute(f"select pg_advisory_unlock({_LOCK})".encode())
        assert migrating.result() == (None, HEAD)


@pytest.mark.parametrize(
    ("revision", "told"),
    [(None, "run `sentinel migrate`"), ("0000", "run `sentinel migrate`"), ("9999", "install the version that migrated it")],
)  # fmt: skip
def test_another_revision_is_refused_and_what_to_do_named(empty_url: str, revision: str | None, told: str) -> None:
    with psycopg.connect(empty_url, autocommit=True) as admin:
        if revision is not None:
            admin.execute("create table public.schema_version (version_num text)")
            admin.execute("insert into public.schema_version values (%s)", [revision])
        with pytest.raises(SchemaNotReady, match=told):
            require_head(admin)


def test_a_revision_that_nobody_knows_is_refused(empty_url: str) -> None:
    migrate(empty_url)
    with psycopg.connect(empty_url, autocommit=True) as admin:
        admin.execute("update public.schema_version set version_num = '9999'")
        with pytest.raises(SchemaNotReady, match="does not know the database's revision: .*9999"):
            migrate(empty_url)
        assert current_revision(admin) == "9999"


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


RESERVED = """
insert into sentinel.operation_states (tenant_id, operation_id, status, decision, reason_code, policy_id, policy_version, policy_label,
  policy_digest, decision_event_id, permit_id, permit_expires_at)
values ({ids}, 'allowed', 'ALLOW', 'small_amount', 'p', '1', 'p 1', 'd', gen_random_uuid(), gen_random_uuid(), now());
insert into sentinel.reservations select tenant_id, permit_id, operation_id, 'acct_1', 400, '{{p/day|acct_1,p/hour|acct_1}}', array[now(), now()],
  '{overrides}', 'held', now(), null from sentinel.operation_states where operation_id = '{operation}';
insert into sentinel.reservations values ({tenant}, gen_random_uuid(), '{operation}', 'acct_1', 400, '{{p/day|acct_1}}', array[now()], '{{f}}', 'released', now(), now())
"""


def test_what_permits_reserve_is_kept_by_an_upgrade(empty_url: str) -> None:
    run_migrations(empty_url, "0025")
    tenant, within, beside = (uuid.uuid4() for _ in range(3))
    with psycopg.connect(empty_url) as admin:
        for operation, overrides in ((within, "{f,f}"), (beside, "{f,t}")):
            ids = f"'{tenant}', '{operation}'"
            admin.execute(
                RESERVED.format(ids=ids, tenant=f"'{tenant}'", operation=operation, overrides=overrides).encode()
            )
    migrate(empty_url)
    with psycopg.connect(empty_url) as admin:
        found = admin.execute(
            "select operation_id, amount_minor, limit_keys, overrides, state from sentinel.reservations"
        ).fetchall()
    keys = ["p/day|acct_1", "p/hour|acct_1"]
    assert sorted(found) == sorted(
        [(within, 400, keys, [False, False], "held"), (beside, 400, keys, [False, True], "held")]
    )


USED = """
insert into sentinel.usage (tenant_id, limit_key, bucket, window_seconds, cap_minor, held_minor, captured_minor, override_held_minor) values
  ($1, 'p/day|acct_1|USD', '2026-01-01', 0, 900, 100, 200, 0), ($1, 'p/day|acct_1|USD', '2026-01-02', 0, 900, 300, 0, 5000),
  ($1, 'p/hour|acct_1|USD', '2026-01-02 10:00', 3600, 400, 0, 7, 0), ($1, 'p/hour|acct_1|USD', '2026-01-02 10:06', 3600, 400, 3, 0, 0),
  ($1, 'q/day|acct_1|USD', '2026-01-02', 0, 50, 1, 49, 0), ($2, 'p/day|acct_1|USD', '2026-01-02', 0, 900, 0, 0, 40)
"""
SEEN = """
select tenant_id, limit_key, bucket, window_seconds, cap_minor, held_minor, captured_minor, override_held_minor, override_captured_minor
from sentinel.usage order by 1, 2, 3
"""


def test_what_is_used_of_limits_is_kept_by_an_upgrade(empty_url: str) -> None:
    run_migrations(empty_url, "0027")
    with psycopg.connect(empty_url) as admin:
        psycopg.RawCursor(admin).execute(USED.encode(), [uuid.uuid4(), uuid.uuid4()])
        before = admin.execute(SEEN.encode()).fetchall()
    migrate(empty_url)
    with psycopg.connect(empty_url) as admin:
        assert admin.execute(SEEN.encode()).fetchall() == before
        slots = admin.execute(
            "select subject, policy_id, limits, held, captured from sentinel.budgets order by 2, 4, 5"
        ).fetchall()
        parts = admin.execute(
            "select limit_key, held_minor, captured_minor from sentinel.usage_parts order by 1, 2"
        ).fetchall()
    assert slots == [
        ("acct_1|USD", "p", ["day"], [0], [0]), ("acct_1|USD", "p", ["day", "hour"], [300, 3], [0, 0]), ("acct_1|USD", "q", ["day"], [1], [49]),
    ]  # fmt: skip
    assert parts == [
        ("p/day|acct_1|USD", 0, 0),
        ("p/day|acct_1|USD", 0, 0),
        ("p/day|acct_1|USD", 100, 200),
        ("p/hour|acct_1|USD", 0, 7),
    ]


DECIDED = """
insert into sentinel.operations (tenant_id, operation_id, idempotency_key, principal_id, agent_id, action, resource, risk_class, digest, request,
  salt, scenario, once_key, amount_minor, currency, created_at, basis)
select $1, md5('operation' || n)::uuid, 'key_' || n, md5('key')::uuid, 'agent', 'refund.create', 'refund/rf_' || n, 'standard',
  'sha256:' || encode(sha256(n::text::bytea), 'hex'), '{"request":' || n || '}', case n when 1 then 'no digits' else encode(sha256('salt'), 'hex') end,
  case n when 2 then 'fee' end, 'refund|rf_' || n, case when n > 2 then 100 * n end, case when n > 2 then 'USD' end, now(),
  case when n > 1 then '{"rules":[]}' end
from generate_series(1, 6) as n;
insert into sentinel.operation_states (tenant_id, operation_id, status, decision, reason_code, policy_id, policy_version, policy_label, policy_digest,
  decision_event_id, once_key, once_live, permit_id, permit_expires_at, started_at, act_until, in_doubt_reason, reserved_minor, limit_keys,
  limit_buckets, reservation)
select $1, md5('operation' || n)::uuid, status, decision, 'because', 'p', 'v' || n % 2, 'P', 'sha256:' || n % 2, md5('event' || n)::uuid,
  'refund|rf_' || n, n > 3, case when n > 3 then md5('permit' || n)::uuid end, case when n > 3 then now() end, case when n > 4 then now() end,
  case when n > 4 then now() end, case when n = 6 then 'no_report' end, case when n > 3 then 100 * n end,
  case when n > 3 then array['p/day|a|USD', 'p/total|~tenant|USD'] end, case when n > 3 then array[now(), now()] end, case when n > 3 then 'held' end
from (values (1, 'denied', 'DENY'), (2, 'pending', 'APPROVAL_REQUIRED'), (3, 'expired', 'APPROVAL_REQUIRED'), (4, 'allowed', 'ALLOW'),
             (5, 'started', 'ALLOW'), (6, 'in_doubt', 'ALLOW')) as s (n, status, decision);
insert into sentinel.events (tenant_id, event_id, kind, operation_id, agent_id, body, hash, occurred_at, transaction_id)
select $1, md5('event' || n)::uuid, kind, case when n < 7 then md5('operation' || n)::uuid end, case when n < 8 then 'agent' end, '{"event":' || n || '}',
  'sha256:' || encode(sha256(n::text::bytea), 'hex'), now(), (1000 + n)::text::xid8
from (values (1, 'decision'), (2, 'decision'), (3, 'decision'), (4, 'decision'), (5, 'decision'), (6, 'decision'), (7, 'check_report'), (8, 'halt_set'),
             (9, 'start'), (10, 'outcome')) as e (n, kind);
insert into sentinel.feed select $1, row_number() over (order by transaction_id), event_id from sentinel.events
"""
READ = {
    "events": "select * from sentinel.events order by event_id",
    "operations": "select tenant_id, operation_id, idempotency_key, principal_id, agent_id, action, resource, risk_class, digest, request,"
                  " nullif(salt, 'no digits'), scenario, once_key, amount_minor, currency, created_at, basis from sentinel.operations order by operation_id",
    "reservations": "select * from sentinel.reservations order by operation_id",
    "feed": "select * from sentinel.public_feed order by position",
    "states": "select s.operation_id, s.status, s.decision, s.reason_code, {policy}.policy_id, {policy}.policy_version, {policy}.policy_label,"
              " {policy}.policy_digest, s.once_key, s.once_live, s.permit_id, s.reserved_minor from sentinel.operation_states s {join} order by 1",
}  # fmt: skip


def read_all(admin: psycopg.Connection, *, policy: str, join: str) -> dict[str, list[tuple[object, ...]]]:
    """Every row as programs read it."""
    return {
        name: admin.execute(query.replace("{policy}", policy).replace("{join}", join).encode()).fetchall()
        for name, query in READ.items()
    }


def test_what_was_decided_before_reads_as_before_after_an_upgrade(empty_url: str) -> None:
    run_migrations(empty_url, "0030")
    with psycopg.connect(empty_url) as admin:
        tenant = str(uuid.uuid4())
        for statement in DECIDED.replace("$1", f"'{tenant}'::uuid").split(";"):
            admin.execute(statement.encode())
        before = read_all(admin, policy="s", join="")
    assert {name: len(rows) for name, rows in before.items()} == {
        "events": 10, "operations": 6, "reservations": 3, "feed": 6, "states": 6}  # fmt: skip
    migrate(empty_url)
    with psycopg.connect(empty_url) as admin:
        after = read_all(admin, policy="t", join="join sentinel.decision_terms t using (terms_id)")
        salts = {salt for (salt,) in admin.execute("select salt from sentinel.operations")}
    after["operations"] = [(*row[:10], row[10] or None, *row[11:]) for row in after["operations"]]
    assert [name for name in before if after[name] != before[name]] == []
    assert len(salts) == 2 and "" in salts, "a salt that is no digits opens nothing, and is empty"


def test_the_doctor_of_a_newer_program_says_first_that_the_schema_is_older_and_asks_nothing_of_it(
    empty_url: str,
) -> None:
    run_migrations(empty_url, "0025")
    with psycopg.connect(empty_url, autocommit=True) as admin:
        for role in (AUTHORITY, CONSOLE):
            admin.execute(f"grant select on public.schema_version to {role}".encode())
            for schema in ("sentinel", "refunds", "orders"):
                admin.execute(f"grant usage on schema {schema} to {role}".encode())
                admin.execute(f"grant select on all tables in schema {schema} to {role}".encode())
    ran = CliRunner().invoke(sentinel, ["doctor", "--json"], env={"SENTINEL_DATABASE_URL": empty_url})
    checks = {one["name"]: one for one in json.loads(ran.stdout)}
    assert (ran.exit_code, ran.exception.__class__) == (1, SystemExit)
    assert next(name for name, one in checks.items() if not one["ok"]) == "schema"
    assert "at revision 0025, this program needs" in checks["schema"]["detail"]
    asked_nothing = {name for name, one in checks.items() if not one["checked"]}
    assert {one.name for one in read_invariants(invariants_sql())} | {
        "checkpoints",
        "database safety",
        "locks",
    } == asked_nothing


def test_what_a_role_may_run_by_an_older_version_is_taken_away_by_the_next_migration(empty_url: str) -> None:
    """The finding: grants of tables were made anew, those of functions stayed for ever in an upgraded database."""
    may = """select has_function_privilege('sentinel_worker', p.oid, 'execute') from pg_proc p where p.proname = 'resolve_approval'"""
    migrate(empty_url)
    with psycopg.connect(empty_url, autocommit=True) as admin:
        admin.execute("grant execute on function sentinel.resolve_approval to sentinel_worker")
        assert admin.execute(may).fetchone() == (True,)
        migrate(empty_url)
        assert admin.execute(may).fetchone() == (False,)

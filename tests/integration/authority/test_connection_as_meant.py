"""A program does not start, and is not ready, on a connection that is not what it means: another role, no limits, a way to the owner."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ops_console.audience import Audience
from ops_console.serving import _SHARES, _require_databases
from ops_console.settings import ConsoleSettings
from sentinel.authority.actor import local_administrator
from sentinel.authority.decisions import RECORD_DECISIONS, REPORT_OUTCOMES, START_OPERATIONS
from sentinel.authority.halts import set_halt
from sentinel.authority.settings import Settings
from sentinel.core.errors import EngineUnavailable
from sentinel.store.batch_statement import BatchStatement
from sentinel.store.database import AUTHORITY, BOARD, CONSOLE, ORDERS, POOLER, PUBLIC, WORKER, Pool, with_role
from sentinel.store.safety import UnsafeDatabase, database_status, require_ready
from tests.support.fixtures import SECRET, Fixtures, guard_body, served, start_body
from tests.support.logins import as_login, make_login, program_url
from tests.support.settings_table import render
from worker.refunds.build import open_ledger, refuse_unsafe_database
from worker.refunds.settings import WorkerSettings

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = (AUTHORITY, WORKER, ORDERS, CONSOLE, PUBLIC, BOARD)
AS_MEANT = (
    "alter role {0} set role = {1}", "alter role {0} set statement_timeout = '5s'", "alter role {0} set lock_timeout = '2s'",
    "alter role {0} set idle_in_transaction_session_timeout = '10s'", "alter role {0} set timezone = 'UTC'",
)  # fmt: skip
DIRECT = {
    "an administrator": ("superuser", (), "is an administrator's"),
    "one that makes roles": (f"createrole in role {AUTHORITY}", (), "is an administrator's"),
    "one that bypasses row security": (f"bypassrls in role {AUTHORITY}", (), "is an administrator's"),
    "a member of the owner": (f"in role {AUTHORITY}, sentinel_owner", (), "may become sentinel_owner"),
    "an acknowledged loss": (f"in role {AUTHORITY}", ("alter role {0} set synchronous_commit = off",), "synchronous_commit = off"),
    "one that only reads": (f"in role {AUTHORITY}", ("alter role {0} set default_transaction_read_only = on",), "transaction_read_only"),
    "too few connections": (f"connection limit 3 in role {AUTHORITY}", (), "may open 4 connections and"),
}  # fmt: skip
POOLED = {
    "no role": ("alter role {0} reset role", "alter role {0} set role = sentinel_authority"),
    "another role": ("alter role {0} set role = sentinel_worker", "acts as sentinel_worker and not as sentinel_authority"),
    "no limit of a statement": ("alter role {0} reset statement_timeout", "statement_timeout is off"),
    "too long a statement": ("alter role {0} set statement_timeout = '1min'", "statement_timeout is 60000 ms; it must be 5000 ms or less"),
    "no limit of a lock": ("alter role {0} reset lock_timeout", "lock_timeout is off"),
    "an idle transaction for ever": ("alter role {0} reset idle_in_transaction_session_timeout", "idle_in_transaction_session_timeout is off"),
    "another isolation": ("alter role {0} set default_transaction_isolation = 'serializable'", "default_transaction_isolation = serializable"),
    "an acknowledged loss": ("alter role {0} set synchronous_commit = off", "synchronous_commit = off"),
    "another time zone": ("alter role {0} set timezone = 'Asia/Tokyo'", "TimeZone is Asia/Tokyo"),
}  # fmt: skip


@contextmanager
def login(fixtures: Fixtures, terms: str = "", statements: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """(name, address) of a login of its own, gone after the block."""
    name = f"login_{uuid.uuid4().hex[:8]}"
    url = make_login(fixtures.url, name, terms)
    try:
        for statement in statements:
            fixtures.admin.execute(statement.format(name, AUTHORITY).encode())
        yield name, url
    finally:
        fixtures.admin.execute(f"drop role {name}".encode())


def readyz(url: str, fixtures: Fixtures) -> Any:
    """What an authority on this address says of itself."""
    settings = Settings(database_url=url, secret_keys=(SECRET,), pool_size=1)
    with served(settings, fixtures.authority.policies) as (_, app):
        return app.test_client().get("/readyz")


@pytest.mark.parametrize("role", PROGRAMS)
def test_a_program_s_own_login_is_as_meant(fixtures: Fixtures, role: str) -> None:
    url = program_url(fixtures.url, role)
    require_ready(url, role, connections=1)
    pool = Pool(with_role(url, role), size=1)
    try:
        assert database_status(pool, role).faults == ()
    finally:
        pool.close()


def test_an_ordinary_login_that_was_granted_the_role_is_as_meant_too(fixtures: Fixtures) -> None:
    with login(fixtures, f"in role {AUTHORITY}") as (_, url):
        require_ready(url, AUTHORITY, connections=4)
        assert readyz(url, fixtures).status_code == 200


@pytest.mark.parametrize("name", DIRECT)
def test_another_connection_is_refused_at_the_start_and_its_cause_named(fixtures: Fixtures, name: str) -> None:
    terms, statements, cause = DIRECT[name]
    with login(fixtures, terms, statements) as (_, url):
        # One that only reads is waited for, as one that is away: after a failover it writes again.
        refusal = EngineUnavailable if name == "one that only reads" else UnsafeDatabase
        with pytest.raises(refusal, match=re.escape(cause)):
            require_ready(url, AUTHORITY, connections=4)
        if "connections" not in name:
            assert readyz(url, fixtures).status_code == 503


def test_an_authority_that_may_only_read_says_in_its_figures_that_it_does_not_decide(fixtures: Fixtures) -> None:
    """As one on a replica, or on a full disk: its database answers, and counting it goes well."""
    terms, statements, _ = DIRECT["one that only reads"]
    with login(fixtures, terms, statements) as (_, url):
        settings = Settings(database_url=url, secret_keys=(SECRET,), pool_size=1, health_port=7870)
        with served(settings, fixtures.authority.policies) as (_, app):
            figures = app.test_client().get("/metrics", base_url="http://127.0.0.1:7870").text.splitlines()
    assert {"sentinel_ready 0.0", "sentinel_database_up 1.0"} <= set(figures)


def test_a_worker_whose_login_may_open_fewer_connections_than_its_lanes_need_does_not_start(fixtures: Fixtures) -> None:
    with login(fixtures, f"connection limit 6 in role {WORKER}") as (name, url):
        for lanes in (2, 3):
            settings = WorkerSettings(database_url=url, tenant_id=fixtures.tenant_id, lanes=lanes)
            with open_ledger(settings) as ledger:
                if lanes == 2:
                    refuse_unsafe_database(ledger)
                    continue
                with pytest.raises(UnsafeDatabase, match=f"may open 7 connections and {name} is allowed 6"):
                    refuse_unsafe_database(ledger)


@pytest.mark.parametrize("audience", [Audience.OPERATORS, Audience.PUBLIC])
def test_the_pools_of_a_console_that_share_a_login_are_counted_together(fixtures: Fixtures, audience: Audience) -> None:
    """The finding: each was compared with the limit alone, and what did not fit was refused while it served."""
    with login(fixtures, f"connection limit 12 in role {CONSOLE}, {BOARD}") as (name, url):
        shares = [_SHARES[audience](ConsoleSettings())]
        _require_databases(ConsoleSettings(database_url=url, pool_size=8, board_pool_size=4), shares)
        with pytest.raises(UnsafeDatabase, match=f"may open 13 connections and {name} is allowed 12"):
            _require_databases(ConsoleSettings(database_url=url, pool_size=8, board_pool_size=5), shares)


@pytest.mark.parametrize("name", POOLED)
def test_what_the_login_must_bring_itself_behind_a_pooler_is_asked_for(
    fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Without start-up options, as behind a pooler, on a connection that says so."""
    monkeypatch.setenv(POOLER, "transaction")
    statement, cause = POOLED[name]
    terms = f"in role {AUTHORITY}, {WORKER}"
    with login(fixtures, terms, AS_MEANT) as (who, url):
        require_ready(url, AUTHORITY)
        assert readyz(url, fixtures).json["checks"]["session"] is True
        fixtures.admin.execute(statement.format(who).encode())
        with pytest.raises(UnsafeDatabase, match=re.escape(cause.format(who))):
            require_ready(url, AUTHORITY)
        answer = readyz(url, fixtures)
        assert (answer.status_code, answer.json["checks"]["session"]) == (503, False)


def test_who_is_made_a_member_of_the_owner_while_it_runs_is_not_ready_any_more(fixtures: Fixtures) -> None:
    with login(fixtures, f"in role {AUTHORITY}") as (name, url):
        pool = Pool(with_role(url, AUTHORITY), size=1)
        try:
            assert database_status(pool, AUTHORITY).faults == ()
            fixtures.admin.execute(f"grant sentinel_owner to {name}".encode())
            found = database_status(pool, AUTHORITY).faults
            assert len(found) == 1
            assert found[0].startswith(f"the login {name} may become sentinel_owner")
        finally:
            pool.close()


def test_mutant_such_a_member_can_rewrite_history(fixtures: Fixtures) -> None:
    """Which is why it is refused: the role alone, as it was asked before, is a good one."""
    with login(fixtures, f"in role {AUTHORITY}, sentinel_owner") as (_, url):
        with psycopg.connect(with_role(url, AUTHORITY)) as connection:
            connection.execute("reset role")
            connection.execute("set role sentinel_owner")
            connection.execute("alter table sentinel.event_rows disable trigger append_only")
            connection.rollback()


def of_texts(name: str, sql: bytes) -> BatchStatement[str, tuple[str, ...]]:
    """A statement for the connections of an event loop, of one text, $1, that answers with texts."""

    def decode(result: Any) -> list[tuple[str, ...]]:
        columns = range(result.nfields)
        return [tuple(result.get_value(row, column).decode() for column in columns) for row in range(result.ntuples)]

    return BatchStatement(name, sql, ("text",), lambda rows, _: [rows[0].encode()], decode)


SETTINGS_FROM = of_texts("settings_from", b"select name, setting from pg_settings where source = $1")
SET_FOR_GOOD = of_texts("set_for_good", b"select set_config('statement_timeout', $1, false)")


def test_no_setting_outlives_its_transaction(fixtures: Fixtures) -> None:
    """Whatever was done with a connection, the next who gets it finds the settings as they were at its start."""
    url = program_url(fixtures.url, AUTHORITY)
    settings = Settings(database_url=url, secret_keys=(SECRET,), pool_size=1)
    with served(settings, fixtures.authority.policies) as (authority, app):
        client, headers = app.test_client(), {"X-API-Key": fixtures.key}

        def ask(path: str, body: dict[str, Any]) -> Any:
            return client.post(f"/api/sentinel/{path}", json=body, headers=headers)

        def changed() -> list[Any]:
            with authority.pool.connection() as connection:
                return connection.execute("select name, setting from pg_settings where source = 'session'").fetchall()

        def on_the_loop(statement: BatchStatement[str, tuple[str, ...]], given: str) -> list[tuple[str, ...]]:
            asked = authority.connections.commit(statement, [given], 1.0)
            return list(asyncio.run_coroutine_threadsafe(asked, app._loop).result(60))

        before = [*changed(), *on_the_loop(SETTINGS_FROM, "session")]
        body = guard_body(value=40)
        answer = ask("action/guard", body)
        assert answer.status_code == 200
        assert ask("action/guard", body).status_code == 200
        assert ask("action/guard/start", start_body(body, answer.json)).status_code == 200
        assert ask("action/guard", guard_body(value=300)).status_code == 200
        assert ask("action/check", {name: body[name] for name in ("agent_id", "action", "params")}).status_code == 200
        assert (
            ask(
                "action/guard/report",
                {name: body[name] for name in ("idempotency_key", "action", "agent_id")} | {"outcome": "success"},
            ).status_code
            == 200
        )
        set_halt(
            fixtures.console_pool, local_administrator(fixtures.tenant_id), scope="agent", target="x", reason="drill"
        )
        assert client.get("/readyz").status_code == 200
        assert changed() == before == []
        (of_the_loop,) = authority.connections._of_loop.values()
        (one,) = of_the_loop._all
        assert {RECORD_DECISIONS.sql, START_OPERATIONS.sql, REPORT_OUTCOMES.sql} <= one._types.keys()
        assert on_the_loop(SETTINGS_FROM, "session") == [], "on the one that these were decided on"
        with authority.pool.connection() as connection:
            connection.execute("set statement_timeout = 0")
        assert changed() == [("statement_timeout", "0")], "the mutant: a SET that stays is seen"
        on_the_loop(SET_FOR_GOOD, "0")
        assert on_the_loop(SETTINGS_FROM, "session") == [("statement_timeout", "0")], "and on the loop's"


def test_a_password_is_replaced_as_the_page_says_and_the_old_one_ends(fixtures: Fixtures) -> None:
    (row,) = (line for line in render().splitlines() if line.startswith("| Database passwords |"))
    create, end_role, end_login = re.findall(r"`((?:create|alter|drop) role [^`]*)`", row)
    create = create.replace("password '…'", "password 'b'")
    following = create.replace("authority_b", "authority_c")

    def starts(login: str, password: str) -> None:
        require_ready(as_login(fixtures.url, login, password), AUTHORITY, connections=96)

    old = program_url(fixtures.url, AUTHORITY)
    require_ready(old, AUTHORITY)
    try:
        fixtures.admin.execute(create.encode())
        starts("authority_b", "b")
        fixtures.admin.execute(end_role.encode())
        with pytest.raises(psycopg.OperationalError, match="not permitted to log in"):
            psycopg.connect(old).close()
        starts("authority_b", "b")
        fixtures.admin.execute(following.encode())
        fixtures.admin.execute(end_login.replace("authority_a", "authority_b").encode())
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(as_login(fixtures.url, "authority_b", "b")).close()
        starts("authority_c", "b")
    finally:
        fixtures.admin.execute(f"alter role {AUTHORITY} login".encode())
        fixtures.admin.execute(b"drop role if exists authority_b, authority_c")


_SET = re.compile(r"""["'\s(]set\s+(?!local\b|constraints\b|transaction\b)(session\s+)?(role|statement_timeout|lock_timeout|timezone|search_path|\w+_timeout|synchronous_commit|session)\b""", re.IGNORECASE)  # fmt: skip


def test_no_program_sets_anything_for_longer_than_its_transaction() -> None:
    """Nor would a text that does: only `set local` and `set_config(..., true)` are in what programs send."""
    sources = [path for folder in ("sentinel", "worker", "ops_console") for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 200
    told: list[str] = []
    for path in sources:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            statement = any(word in line for word in ("execute(", "run(", '"set ', "'set "))
            if statement and _SET.search(line) and "alter " not in line:
                told.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert told == []
    assert _SET.search("connection.execute(\"set statement_timeout = '5min'\")")
    texts = [path.read_text() for path in (ROOT / "sentinel" / "store" / "schema").rglob("*.sql")]
    assert [text for text in texts if re.search(r"set_config\([^;]*,\s*false\s*\)", text)] == []

"""Through a real pgbouncer in transaction pooling that drops start-up options: refused unless said, and right when it is."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from sentinel.authority.actor import local_administrator
from sentinel.authority.halts import lift_halt, set_halt
from sentinel.authority.settings import Settings
from sentinel.store.database import (
    AUTHORITY,
    BOARD,
    CONSOLE,
    ORDERS,
    POOLER,
    PUBLIC,
    WORKER,
    Pool,
    UndeclaredPooler,
    with_role,
)
from sentinel.store.embedded import RunningServer
from sentinel.store.loop_connections import _OfLoop
from sentinel.store.safety import UnsafeDatabase, database_status, require_ready
from tests.support.fixtures import SECRET, Fixtures, guard_body, served, start_body
from tests.support.harness import on_a_loop
from tests.support.logins import make_login, program_url
from tests.support.pgbouncer import SERVER_CONNECTIONS, Pooler, running_pgbouncer, server_connections
from tests.support.ports import free_port
from tests.support.served_programs import clean_env, end, eventually, module, request, run_warm_command, start_serve
from tests.support.warm_process import WarmProcess

PROGRAMS = (AUTHORITY, WORKER, ORDERS, CONSOLE, PUBLIC, BOARD)
OTHER = "sentinel_pooled_login"
"""A login with another name, whose role and limits stand on itself."""


@pytest.fixture(scope="module")
def pooler(pg_server: RunningServer) -> Iterator[Pooler]:
    secrets = {role: pg_server.address.passwords.of(role) for role in PROGRAMS}
    secrets[OTHER] = str(conninfo_to_dict(pg_server.admin_url)["password"])
    with running_pgbouncer(pg_server, secrets) as found:
        yield found


@pytest.fixture
def pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POOLER, "transaction")


def address(fixtures: Fixtures, pooler: Pooler, role: str) -> str:
    return pooler.at(program_url(fixtures.url, role))


@pytest.mark.parametrize("role", PROGRAMS)
def test_a_pooler_that_nobody_declared_is_refused_and_the_setting_named(
    fixtures: Fixtures, pooler: Pooler, role: str
) -> None:
    with pytest.raises(
        UnsafeDatabase, match=f"a connection pooler is in front of PostgreSQL: set {POOLER}=transaction"
    ):
        require_ready(address(fixtures, pooler, role), role)


def test_undeclared_no_loop_takes_a_connection_through_it(fixtures: Fixtures, pooler: Pooler) -> None:
    connections = _OfLoop(with_role(address(fixtures, pooler, AUTHORITY), AUTHORITY), 1)
    with pytest.raises(UndeclaredPooler):
        on_a_loop(connections.take(behind=False))
    assert connections.in_use == 0


def test_undeclared_the_worker_and_the_doctor_name_it_where_others_have_prepared(
    fixtures: Fixtures, pooler: Pooler
) -> None:
    left_prepared(address(fixtures, pooler, WORKER))
    refused = run_warm_command(
        "--once", program="worker.retail_refund_agent", WORKER_DATABASE_URL=address(fixtures, pooler, WORKER),
        SENTINEL_URL=f"http://127.0.0.1:{free_port()}", SENTINEL_TENANT_ID=str(fixtures.tenant_id),
        SENTINEL_REFUND_AGENT_API_KEY=fixtures.key,
    )  # fmt: skip
    assert (refused.returncode, f"{POOLER}=transaction" in refused.stderr) == (2, True), refused.stderr
    left_prepared(address(fixtures, pooler, AUTHORITY))
    refused = run_warm_command("doctor", SENTINEL_DATABASE_URL=address(fixtures, pooler, AUTHORITY))
    assert (refused.returncode, f"{POOLER}=transaction" in refused.stderr) == (3, True), refused.stderr


@pytest.mark.parametrize("role", PROGRAMS)
def test_it_is_noticed_too_where_another_client_left_prepared_statements(
    fixtures: Fixtures, pooler: Pooler, role: str
) -> None:
    url = address(fixtures, pooler, role)
    left_prepared(url)
    with pytest.raises(UnsafeDatabase, match=f"set {POOLER}=transaction"):
        require_ready(url, role)
    pool = Pool(with_role(url, role), size=1)
    try:
        assert any(f"set {POOLER}=transaction" in fault for fault in database_status(pool, role).faults)
    finally:
        pool.close()


def left_prepared(url: str) -> None:
    """On every server connection of this login, the names that a program of ours prepares first."""
    with contextlib.ExitStack() as stack:
        for _ in range(SERVER_CONNECTIONS):
            client = stack.enter_context(psycopg.connect(url, autocommit=True, prepare_threshold=None))
            stack.enter_context(client.transaction())
            for number in range(12):
                with contextlib.suppress(psycopg.errors.DuplicatePreparedStatement), client.transaction():
                    client.execute(f"prepare _pg3_{number} as select 1".encode())


@pytest.mark.parametrize("role", PROGRAMS)
def test_declared_every_program_s_login_brings_its_role_and_limits(
    fixtures: Fixtures, pooler: Pooler, pooled: None, role: str
) -> None:
    url = address(fixtures, pooler, role)
    require_ready(url, role)
    pool = Pool(with_role(url, role), size=2)
    try:
        assert database_status(pool, role).faults == ()
    finally:
        pool.close()


def test_a_login_of_another_name_needs_role_and_limits_on_itself(
    fixtures: Fixtures, pooler: Pooler, pooled: None
) -> None:
    made = make_login(fixtures.url, OTHER, f"in role {AUTHORITY}")
    try:
        with pytest.raises(UnsafeDatabase) as refused:
            require_ready(pooler.at(made), AUTHORITY)
        assert f"`alter role {OTHER} set role = {AUTHORITY}`" in refused.value.detail
    finally:
        with contextlib.suppress(psycopg.Error):
            fixtures.admin.execute(f"drop role {OTHER}".encode())


def lifecycle(client: Any, key: str, number: int) -> tuple[str, str]:
    """One operation from guard to report; (its key, what came of it)."""
    body, headers = guard_body(value=1 + number % 9, params={"account_ref": f"acct_{number}"}), {"X-API-Key": key}

    def ask(path: str, value: dict[str, Any]) -> Any:
        answer = client.post(f"/api/sentinel/action/{path}", json=value, headers=headers)
        assert answer.status_code == 200, (path, answer.text)
        return answer.json

    given = ask("guard", body)
    assert ask("guard", body)["operation_id"] == given["operation_id"]
    assert ask("guard/start", start_body(body, given))["started"] is True
    named = {name: body[name] for name in ("idempotency_key", "action", "agent_id")}
    assert ask("guard/report", {**named, "outcome": "success"})["received"] is True
    return str(body["idempotency_key"]), str(given["operation_id"])


def test_many_clients_on_few_connections_each_get_their_own_answers(
    fixtures: Fixtures, pooler: Pooler, pooled: None
) -> None:
    url = address(fixtures, pooler, AUTHORITY)
    settings = Settings(database_url=url, secret_keys=(SECRET,), pool_size=8)
    with served(settings, fixtures.authority.policies) as (_, app):
        with ThreadPoolExecutor(8) as several:
            told = dict(several.map(lambda number: lifecycle(app.test_client(), fixtures.key, number), range(160)))
        recorded = dict(
            fixtures.admin.execute("select idempotency_key, operation_id::text from sentinel.operations").fetchall()
        )
        assert told.items() <= recorded.items()
        assert len(told) == 160
        states = fixtures.admin.execute("select distinct status from sentinel.operation_states").fetchall()
        assert states == [("completed",)]
        assert app.test_client().get("/readyz").json["status"] == "ready"
        assert server_connections(fixtures.url, AUTHORITY) <= SERVER_CONNECTIONS
        assert fixtures.broken_invariants() == []
        print(f"N={len(told)} operations of 8 clients on {SERVER_CONNECTIONS} connections")


def test_mutant_with_prepared_statements_the_same_clients_get_errors(fixtures: Fixtures, pooler: Pooler) -> None:
    """What every program did before: it prepares under names that another client has on the same connection."""
    clients = [
        psycopg.connect(address(fixtures, pooler, AUTHORITY), autocommit=True, prepare_threshold=0) for _ in range(4)
    ]

    def ask(number: int) -> str:
        try:
            row = clients[number % 4].execute(f"select {number}, %s::int".encode(), [number]).fetchone()
            return "right" if row == (number, number) else "another's"
        except psycopg.Error as error:
            return type(error).__name__

    try:
        with ThreadPoolExecutor(4) as several:
            assert set(several.map(ask, range(80))) != {"right"}
    finally:
        for client in clients:
            client.close()


def test_people_stop_and_resume_through_it(fixtures: Fixtures, pooler: Pooler, pooled: None) -> None:
    pool = Pool(with_role(address(fixtures, pooler, CONSOLE), CONSOLE), size=2)
    by = local_administrator(fixtures.tenant_id)
    try:
        halt = set_halt(pool, by, scope="tenant", reason="drill").halt_id
        assert fixtures.guard(guard_body(value=40))["decision"] == "DENY"
        lift_halt(pool, by, halt, reason="over")
        assert fixtures.guard(guard_body(value=40))["decision"] == "ALLOW"
    finally:
        pool.close()


def test_as_processes_authority_console_worker_and_intake_work_behind_it(
    fixtures: Fixtures, pooler: Pooler, tmp_path: Any
) -> None:
    said = {POOLER: "transaction"}
    refused = run_warm_command(
        "serve",
        SENTINEL_DATABASE_URL=address(fixtures, pooler, AUTHORITY),
        SENTINEL_SECRET_KEYS=SECRET,
        SENTINEL_PORT=str(free_port()),
    )
    assert (refused.returncode, f"{POOLER}=transaction" in refused.stderr) == (2, True), refused.stderr
    authority, port, _, _ = start_serve(
        fixtures.url, tmp_path, **said, SENTINEL_DATABASE_URL=address(fixtures, pooler, AUTHORITY)
    )
    console_port, intake_port = free_port(), free_port()
    others: list[WarmProcess] = []
    try:
        others.append(_started("ops_console", "--port", str(console_port), "--board-port", str(free_port()), **said, SENTINEL_INSECURE_COOKIES="1", CONFIRM_SECRETS=SECRET,
                               SENTINEL_DATABASE_URL=address(fixtures, pooler, CONSOLE), SENTINEL_BOARD_DATABASE_URL=address(fixtures, pooler, BOARD)))  # fmt: skip
        mine = {"SENTINEL_URL": f"http://127.0.0.1:{port}", "SENTINEL_TENANT_ID": str(fixtures.tenant_id), **said}
        others.append(_started("worker.orders", "--port", str(intake_port), **mine, ORDERS_DATABASE_URL=address(fixtures, pooler, ORDERS),
                               SENTINEL_ORDERS_API_KEY=fixtures.new_key(agent_id="order-review"), ORDERS_DEMO_SECRET=SECRET))  # fmt: skip
        for which in (console_port, intake_port):
            assert eventually(lambda which=which: _is_ready(which), within=40), which
        worker = {
            **mine,
            "WORKER_DATABASE_URL": address(fixtures, pooler, WORKER),
            "SENTINEL_REFUND_AGENT_API_KEY": fixtures.key,
        }
        rows = '{"ledger_entry_id": "lge_p", "refund_id": "rf_p", "agent_id": "retail-refund-agent", "action": "refund.create",' \
               ' "amount": {"value": 12, "currency": "USD"}, "idempotency_key": "refund:lge_p", "account_ref": "acct_p", "risk":' \
               ' {"duplicate_refund": false, "stale_window": false, "suspicious_reason": false, "customer_attempts_24h": 1}}\n'  # fmt: skip
        assert run_warm_command("enqueue", "-", program="worker.cli", stdin=rows, **worker).returncode == 0
        done = run_warm_command("--once", program="worker.retail_refund_agent", **worker)
        assert done.returncode == 0, done.stderr
        assert fixtures.one("select status from refunds.ledger_entries") == "EXECUTED"
        no_word = run_warm_command("--once", program="worker.retail_refund_agent", **{**worker, POOLER: "none"})
        assert (no_word.returncode, f"{POOLER}=transaction" in no_word.stderr) == (2, True), no_word.stderr
    finally:
        for process in (*others, authority):
            end(process)


def _started(name: str, *arguments: str, **env: str) -> WarmProcess:
    nowhere = subprocess.DEVNULL
    return WarmProcess(module(name, *arguments), env=clean_env(**env), stdin=nowhere, stdout=nowhere, stderr=2)


def _is_ready(port: int) -> bool:
    try:
        return request("GET", f"http://127.0.0.1:{port}/readyz").status == 200
    except Exception:
        return False

"""A worker or an order intake whose key is another's does not start: exit 2 and one line that names both sides."""

from __future__ import annotations

import json
import signal
import subprocess

import psycopg
import pytest

from sentinel.authority.keys import SCOPES, issue_key
from sentinel.store.database import CONSOLE, ORDERS, Pool, with_role
from tests.acceptance.ledgers import Shop, open_shop, refund
from tests.support.fixtures import unique
from tests.support.logins import program_url
from tests.support.ports import free_port, listens
from tests.support.served_programs import Served, clean_env, eventually, module, request, run_warm_command

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shops(served: Served) -> tuple[Shop, Shop]:
    """Two tenants of one authority."""
    return open_shop(served), open_shop(served)


def label(shop: Shop) -> str:
    return str(shop.all("select label from sentinel.tenants where tenant_id = %s")[0][0])


def key_of(shop: Shop, agent_id: str, *scopes: str) -> str:
    """A key that is bound to one agent."""
    pool = Pool(with_role(shop.served.database_url, CONSOLE), size=1)
    try:
        return issue_key(pool, shop.tenant_id, agent_id=agent_id, scopes=scopes or ("guard", "heartbeat")).key
    finally:
        pool.close()


def intake(shop: Shop, key: str, port: int) -> subprocess.CompletedProcess[str]:
    return run_warm_command(
        "--port", str(port), program="worker.orders", SENTINEL_URL=shop.served.url, SENTINEL_ORDERS_API_KEY=key,
        ORDERS_DATABASE_URL=program_url(shop.served.database_url, ORDERS), SENTINEL_TENANT_ID=str(shop.tenant_id),
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["--once", "--loop", "--dry-run"])
def test_a_worker_with_a_key_of_another_tenant_does_not_start(shops: tuple[Shop, Shop], mode: str) -> None:
    mine, other = shops
    mine.enqueue([refund(name := unique("wrong"))])
    status, said = mine.work(mode, SENTINEL_REFUND_AGENT_API_KEY=other.key)
    assert (status, said.strip().count("\n")) == (2, 0)
    assert f'tenant "{label(other)}"' in said
    assert f'this is tenant "{label(mine)}"' in said
    assert other.key not in said
    assert mine.states()[f"lge_{name}"] == "NEW"
    assert other.all("select 1 from sentinel.operations where tenant_id = %s") == []


def test_a_worker_with_a_key_of_another_agent_does_not_start(shops: tuple[Shop, Shop]) -> None:
    mine, _ = shops
    status, said = mine.work("--once", SENTINEL_REFUND_AGENT_API_KEY=key_of(mine, "somebody-else"))
    assert (status, said.strip().count("\n")) == (2, 0)
    assert 'bound to agent "somebody-else", this is agent "retail-refund-agent"' in said


def test_an_intake_with_a_key_of_another_tenant_or_agent_does_not_start(shops: tuple[Shop, Shop]) -> None:
    mine, other = shops
    wrong = {
        other.key: f'tenant "{label(other)}", this is tenant "{label(mine)}"',
        key_of(mine, "x"): 'agent "x", this is agent "order-review"',
    }
    for key, said in wrong.items():
        port = free_port()
        done = intake(mine, key, port)
        assert done.returncode == 2
        assert said in done.stderr
        assert done.stderr.strip().count("\n") == 0
        assert not listens(port)


def test_an_intake_with_its_own_key_starts(shops: tuple[Shop, Shop]) -> None:
    mine, _ = shops
    port = free_port()
    process = subprocess.Popen(
        module("worker.orders", "--port", str(port), "--graceful-seconds", "1"),
        env=clean_env(SENTINEL_URL=mine.served.url, SENTINEL_ORDERS_API_KEY=key_of(mine, "order-review"),
                      ORDERS_DATABASE_URL=program_url(mine.served.database_url, ORDERS), SENTINEL_TENANT_ID=str(mine.tenant_id)),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert eventually(lambda: listens(port), within=20)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=150)


def test_a_refused_key_ends_a_single_run_with_3_and_costs_no_row_anything(shops: tuple[Shop, Shop]) -> None:
    mine, _ = shops
    names = [f"lge_{name}" for name in (unique("refused"), unique("refused"), unique("refused"))]
    mine.enqueue([refund(name.removeprefix("lge_")) for name in names])
    for _ in range(3):
        status, said = mine.work("--once", SENTINEL_REFUND_AGENT_API_KEY="snt_live_" + "x" * 43)
        assert status == 3
        assert "rows wait, no attempt was counted" in said
        with psycopg.connect(mine.served.database_url, autocommit=True) as admin:
            admin.execute("update refunds.ledger_entries set next_attempt_at = clock_timestamp() where status = 'NEW'")
    found = mine.all(
        "select ledger_entry_id, status, attempts from refunds.ledger_entries where tenant_id = %s and waits > 0"
    )
    assert {(name, "NEW", 0) for name in names} <= set(found)
    assert mine.work("--once")[0] == 0
    assert {mine.states()[name] for name in names} == {"EXECUTED"}


def test_a_loop_says_on_its_own_address_how_its_key_stands(shops: tuple[Shop, Shop]) -> None:
    """Accepted, then revoked under it: not ready within seconds, alive all the time."""
    mine, _ = shops
    key, port = key_of(mine, "retail-refund-agent", *SCOPES), free_port()
    base = f"http://127.0.0.1:{port}"
    worker = mine.worker("--loop", WORKER_HEALTH_PORT=str(port), SENTINEL_REFUND_AGENT_API_KEY=key)
    try:
        assert eventually(lambda: listens(port) and request("GET", f"{base}/readyz").status == 200, within=15)
        with psycopg.connect(mine.served.database_url, autocommit=True) as admin:
            admin.execute(
                "update sentinel.agent_keys set revoked_at = clock_timestamp() where tenant_id = %s and agent_id = %s",
                [mine.tenant_id, "retail-refund-agent"],
            )
        assert eventually(lambda: request("GET", f"{base}/readyz").status == 503, within=10)
        assert json.loads(request("GET", f"{base}/readyz").body)["checks"] == {
            "database": True, "writable": True, "schema": True, "session": True, "authority": True, "key": False,
        }  # fmt: skip
        assert request("GET", f"{base}/healthz").status == 200
        assert request("GET", f"{base}/ledger").status == 404
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=150)

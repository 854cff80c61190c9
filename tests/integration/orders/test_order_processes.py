"""The intake as several processes: what they count is counted together, and so are the orders of one account."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sentinel.platform.resources import policies_dir
from sentinel.platform.settings import UnsafeConfiguration
from sentinel.store.database import ORDERS
from tests import mutants
from tests.support.fixtures import Fixtures
from tests.support.harness import at_once, scaled
from tests.support.killed import children_of
from tests.support.ledger_fixtures import ROOT, wait_until
from tests.support.logins import program_url
from tests.support.order_fixtures import OrderFixtures, intake_process, make_intake, order_body
from tests.support.ports import free_port
from worker.orders import serving
from worker.orders.settings import OrderReviewSettings
from worker.orders.store import DeliveredOrder, DeliveryLook, OrderStore, TakeOutcome, TakeResult, body_digest

COUNTED = (
    'orders_deliveries_total{result="200",source="demo"} 8.0', 'orders_deliveries_total{result="replayed",source="demo"} 1.0',
    'orders_decided_total{event="allowed",lane="low"} 8.0',
)  # fmt: skip


def scraped(port: int) -> list[str]:
    """The lines of a program's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return str(answer.read().decode()).splitlines()


def test_what_several_processes_count_is_one_sum(orders: OrderFixtures) -> None:
    health = free_port()
    # A budget that a busy machine does not use up: what takes longer is answered 202 and goes on behind it.
    env = {
        "SENTINEL_ORDERS_PROCESSES": "2", "SENTINEL_ORDERS_HEALTH_PORT": str(health),
        "SENTINEL_ORDERS_BUDGET_SECONDS": "60", "SENTINEL_ORDERS_LEASE_SECONDS": "120",
    }  # fmt: skip
    with intake_process(orders.fixtures, orders.authority_url, orders.key, from_nothing=True, **env) as process:
        bodies = [order_body(f"o-{number}") for number in range(8)]
        assert [process.post(body) for body in [*bodies, bodies[0]]] == [200] * 9
        # A delivery is counted once it is answered, which its sender may know before.
        wait_until(lambda: set(COUNTED) <= set(scraped(health)))
        counted = "\n".join(scraped(health))
    for name in ("orders_score_seconds_count", "orders_delivery_seconds_count", "orders_queued", "orders_model_total"):
        assert name in counted


def test_a_process_in_a_killed_ones_place_serves_by_the_last_good_files(orders: OrderFixtures, tmp_path: Path) -> None:
    """The finding: it read the files anew and refused a faulty one, which ended the whole intake for good."""
    policies = shutil.copytree(policies_dir(), tmp_path / "policies")
    env = {
        "SENTINEL_ORDERS_PROCESSES": "2", "SENTINEL_POLICIES_DIR": str(policies),
        "SENTINEL_ORDERS_BUDGET_SECONDS": "60", "SENTINEL_ORDERS_LEASE_SECONDS": "120",
    }  # fmt: skip
    with intake_process(orders.fixtures, orders.authority_url, orders.key, from_nothing=True, **env) as process:
        wait_until(lambda: len(children_of(process.process.pid)) == 2)
        first = children_of(process.process.pid)
        for name in ("order_sources.yaml", "order_signals.yaml"):
            (policies / name).write_text("sources: [")
        for number, killed in enumerate(first):
            os.kill(killed, signal.SIGKILL)
            wait_until(lambda: len(new_ones(process.process, first)) == number + 1)
        assert [process.post(order_body(f"o-{number}")) for number in range(8)] == [200] * 8
        assert (process.process.poll(), len(new_ones(process.process, first))) == (None, 2)


def test_a_process_in_a_killed_ones_place_serves_its_tenant_while_the_database_is_away(orders: OrderFixtures) -> None:
    """The finding: it asked the database which tenant is the default one, and ended the whole intake where there was no answer."""
    admin = orders.fixtures.admin
    admin.execute(
        "insert into refunds.defaults (tenant_id) values (%s) on conflict do nothing", [orders.fixtures.tenant_id]
    )
    database = orders.one("select quote_ident(current_database())")
    with intake_process(
        orders.fixtures, orders.authority_url, orders.key, from_nothing=True, SENTINEL_TENANT_ID=""
    ) as process:
        (first,) = children_of(process.process.pid)
        try:
            admin.execute(f"alter database {database} connection limit 0".encode())
            os.kill(first, signal.SIGKILL)
            wait_until(lambda: bool(new_ones(process.process, [first])) and is_healthy(process.port))
        finally:
            admin.execute(f"alter database {database} connection limit -1".encode())
        wait_until(lambda: process.post(order_body("o-1")) == 200)
    assert orders.all("select tenant_id from orders.reviews") == [(orders.fixtures.tenant_id,)]


def is_healthy(port: int) -> bool:
    """Whether the intake answers."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=20):
        return True
    return False


def new_ones(process: subprocess.Popen[str], before: Sequence[int]) -> set[int]:
    """The processes that it forked since; fails where it ended."""
    assert process.poll() is None, "the intake ended"
    return set(children_of(process.pid)) - set(before)


ROUNDS = scaled(6)
EACH = {"amount": {"value": "1900.00", "currency": "USD"}}
"""One of them goes out alone; two of an account in a day are a person's."""


def two_intakes(fixtures: Fixtures, authority_url: str, monkeypatch: pytest.MonkeyPatch) -> list[OrderFixtures]:
    """Two that share the database alone. Each looks at what is new before the other has taken what it looked at."""
    looked = threading.Barrier(2)
    real = OrderStore.look

    def look(store: OrderStore, deliveries: Sequence[DeliveredOrder]) -> list[DeliveryLook]:
        found = real(store, deliveries)
        looked.wait(60)
        return found

    monkeypatch.setattr(OrderStore, "look", look)
    return [make_intake(fixtures, authority_url) for _ in range(2)]


@pytest.mark.usefixtures("patient")
def test_two_intakes_count_each_others_orders_of_one_account(
    fixtures: Fixtures, authority_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    intakes = two_intakes(fixtures, authority_url, monkeypatch)
    for number in range(ROUNDS):
        bodies = [order_body(f"o-{number}-{place}", account_ref=f"acct-{number}", **EACH) for place in range(2)]
        answers = at_once(
            [lambda one=one, body=body: one.deliver(body) for one, body in zip(intakes, bodies, strict=True)]
        )
        assert {answer.status_code for answer in answers} <= {200, 202}  # type: ignore[union-attr]
    rows = intakes[0].all("select account_ref, array_agg(lane order by lane) from orders.reviews group by account_ref")
    assert dict(rows) == {f"acct-{n}": ["low", "medium"] for n in range(ROUNDS)}
    assert fixtures.broken_invariants() == []
    for one in intakes:
        one.close()


@pytest.mark.usefixtures("patient")
def test_a_taking_that_does_not_count_again_is_found_out(
    fixtures: Fixtures, authority_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: an order is taken with the score of a look that other orders of its account came after."""
    mutants.cut(fixtures, "orders.take_scored", "i.account_ref is null or", "true or")
    intakes = two_intakes(fixtures, authority_url, monkeypatch)
    answers = at_once(
        [lambda one=one: one.deliver(order_body(account_ref="acct", **EACH)).status_code for one in intakes]
    )
    assert answers == [200, 200]
    for one in intakes:
        one.close()


@pytest.mark.usefixtures("patient")
def test_orders_of_other_accounts_are_taken_as_they_were_scored(
    fixtures: Fixtures, authority_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    intakes = two_intakes(fixtures, authority_url, monkeypatch)
    monkeypatch.setattr(OrderStore, "take", lambda _, deliveries: [] if not deliveries else pytest.fail("taken again"))
    answers = at_once([lambda one=one: one.deliver(order_body(**EACH)).status_code for one in intakes])
    assert answers == [200, 200]
    for one in intakes:
        one.close()


@pytest.mark.usefixtures("patient")
def test_who_takes_an_order_without_its_score_waits_for_who_takes_one_of_its_account(orders: OrderFixtures) -> None:
    """With look-ups or a model an order is counted in the transaction that takes it."""
    first, second = (_delivered(orders, order_body(name, account_ref="acct-one")) for name in ("o-1", "o-2"))
    with ThreadPoolExecutor(1) as thread, psycopg.connect(program_url(orders.fixtures.url, ORDERS)) as holder:
        other = OrderStore(_Held(holder), orders.fixtures.tenant_id, lease_seconds=60)  # type: ignore[arg-type]
        assert _velocities(other.take([first])) == [0]
        late = thread.submit(orders.review.store.take, [second])
        wait_until(lambda: late.done() or _waits_for_a_lock(orders), 20)
        holder.commit()
        assert _velocities(late.result(60)) == [1]


class _Held:
    """A pool of one connection, whose transaction ends when the test says so."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def connection(self) -> Any:
        return contextlib.nullcontext(self._connection)

    def watch(self, _: psycopg.Connection[Any]) -> Any:
        return contextlib.nullcontext()


def _delivered(orders: OrderFixtures, body: bytes) -> DeliveredOrder:
    source = orders.review.processor.sources.current().find("demo")
    assert source is not None
    return DeliveredOrder(source.to_order(json.loads(body)), body_digest(body))


def _velocities(taken: Sequence[TakeResult | Exception]) -> list[int | None]:
    assert all(isinstance(one, TakeResult) and one.outcome is TakeOutcome.TAKEN for one in taken), taken
    return [one.known.velocity_24h for one in taken if isinstance(one, TakeResult)]


def _waits_for_a_lock(orders: OrderFixtures) -> bool:
    query = (
        "select count(*) from pg_locks l join pg_database d on d.oid = l.database"
        " where not l.granted and d.datname = current_database()"
    )
    return bool(orders.one(query))


def test_a_shop_of_large_orders_is_allowed_longer_deliveries(orders: OrderFixtures) -> None:
    health = free_port()
    env = {"SENTINEL_ORDERS_MAX_BODY_BYTES": "300000", "SENTINEL_ORDERS_HEALTH_PORT": str(health)}
    note = 300_000 - len(order_body("o-large", note=""))
    with intake_process(orders.fixtures, orders.authority_url, orders.key, from_nothing=True, **env) as process:
        assert process.post(order_body("o-large", note="x" * note)) in (200, 202)
        assert process.post(order_body("o-large", note="x" * (note + 1))) == 413
        wait_until(lambda: 'orders_deliveries_total{result="body-too-large",source="demo"} 1.0' in scraped(health))
        assert 'orders_deliveries_total{result="body-too-large",source="shop"} 0.0' in scraped(health)
        wait_until(lambda: orders.status_and_lane("o-large") == ("FULFILLED", "low"))


def test_an_intake_with_one_port_for_two_listeners_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "configure_logs", lambda *_, **__: None)
    port = free_port()
    with pytest.raises(UnsafeConfiguration, match="^SENTINEL_ORDERS_HEALTH_PORT: must be another port"):
        serving.serve(OrderReviewSettings(port=port, health_port=port))


@pytest.mark.parametrize("module", ["worker.orders.serving", "sentinel.authority.serving", "ops_console.__main__"])
def test_counters_are_imported_only_once_their_folder_is_there(module: str) -> None:
    """Where they are imported earlier, each process counts for itself and tells nobody."""
    look = f"import sys, {module}; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], cwd=ROOT, check=False).returncode == 0

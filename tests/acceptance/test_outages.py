"""The database dies and comes back under running processes: no ALLOW meanwhile, the truth at /readyz, and no restart needed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from sentinel.platform.http.readiness import REMEMBERED_SECONDS
from sentinel.store.embedded import Embedded, remove
from sentinel.store.embedded.process import strays
from sentinel.store.migrate import migrate
from tests.acceptance.contract import problem
from tests.acceptance.demos import demo_folder
from tests.acceptance.ledgers import QUICK, Shop, broken_invariants_at, open_shop, refund
from tests.support.fixtures import add_tenant, guard_body, unique
from tests.support.served_programs import Served, eventually, request, served_on

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def postgres() -> Iterator[Embedded]:
    """A server of this module's own, to be killed."""
    with demo_folder("outage") as folder:
        server = Embedded(folder, own=True)
        try:
            migrate(server.start().admin_url)
            yield server
        finally:
            server.stop()
            remove(folder)


@pytest.fixture(scope="module")
def frail(postgres: Embedded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An authority on that server."""
    url = postgres.start().admin_url
    tenant_id, key, _ = add_tenant(url, unique("frail").replace("_", "-"))
    with served_on(url, Path(tmp_path_factory.mktemp("frail")), tenant_id=str(tenant_id), key=key) as found:
        yield found


@contextlib.contextmanager
def without_database(postgres: Embedded) -> Iterator[None]:
    data_dir = postgres.start().data_dir
    postgres.kill()
    try:
        # A backend that outlives its killed server by some milliseconds still decides, and durably.
        assert eventually(lambda: not strays(data_dir), within=10)
        yield
    finally:
        postgres.start()


def test_without_a_database_every_answer_is_a_refusal_that_may_be_retried(postgres: Embedded, frail: Served) -> None:
    body = guard_body(unique("away"))
    assert frail.post("action/guard", guard_body()).status == 200
    with without_database(postgres):
        reply = frail.post("action/guard", body)
        told = problem(reply, 503, "engine-unavailable")
        assert (told["decision"], told["reason_code"], told["retryable"]) == ("DENY", "engine_unavailable", True)
        assert reply.headers["retry-after"].isdigit()
        for path in ("approvals/since", "heartbeat?agent_id=a"):
            problem(frail.get(path), 503, "engine-unavailable")
        away = lambda: request("GET", f"{frail.url}/readyz").status == 503  # noqa: E731
        assert eventually(away, within=2 + REMEMBERED_SECONDS)
        assert request("GET", f"{frail.url}/healthz").status == 200
    assert eventually(lambda: request("GET", f"{frail.url}/readyz").status == 200, within=5)
    answer = frail.guard(body)
    assert answer["decision"] == "ALLOW"


def children(served: Served) -> set[int]:
    """The ids of its processes now."""
    return {
        int(one) for one in Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text().split()
    }


def test_what_time_does_goes_on_after_the_database_was_away_even_through_a_reload(
    postgres: Embedded, frail: Served
) -> None:
    with without_database(postgres):
        # A reload of the policies at the worst moment must not end the housekeeper for good.
        for child in children(frail):
            os.kill(child, signal.SIGHUP)
        time.sleep(1.5)
    assert eventually(lambda: request("GET", f"{frail.url}/readyz").status == 200, within=5)
    event = frail.guard(guard_body())["decision_event_id"]

    def has_position() -> bool:
        with psycopg.connect(frail.database_url) as connection:
            return connection.execute("select 1 from sentinel.feed where event_id = %s", [event]).fetchone() is not None

    assert eventually(has_position, within=5), "events get no positions any more"


def test_a_process_in_the_place_of_a_killed_one_leaves_what_another_authority_put_in_force(frail: Served) -> None:
    def in_force() -> set[str]:
        with psycopg.connect(frail.database_url) as connection:
            found = connection.execute("select policy_digest from sentinel.policies_in_force").fetchall()
        return {digest for (digest,) in found}

    def not_in_force() -> int:
        """How many policies its gauge counts."""
        told = request("GET", f"{frail.health_url}/metrics").body.decode()
        return sum(
            int(float(line.split()[1]))
            for line in told.splitlines()
            if line.startswith("sentinel_policies_not_in_force ")
        )

    def declare_another() -> None:
        """As an authority with another text would."""
        with psycopg.connect(frail.database_url) as connection:
            connection.execute(
                "update sentinel.policies_in_force set policy_digest = %s where policy_id = 'retail-refund'", [others]
            )

    own, others = in_force(), "sha256:" + "2" * 64
    declare_another()
    killed = children(frail)
    for child in killed:
        os.kill(child, signal.SIGKILL)
    # Once more: a killed one may have been about to declare what it had loaded itself.
    declare_another()
    assert eventually(lambda: len(children(frail) - killed) == len(killed) and not_in_force() == 1, within=20)
    assert others in in_force()
    frail.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: in_force() == own and not_in_force() == 0, within=20)


def test_a_process_that_ends_in_order_is_replaced_and_the_others_serve_on(frail: Served) -> None:
    """The finding: it removed the folder of the shared counters, no other could start, and the whole program ended with 3."""
    before = children(frail)
    ended = min(before)
    os.kill(ended, signal.SIGTERM)
    assert eventually(lambda: len(children(frail) - before) == 1 and ended not in children(frail), within=20)
    for number in range(20):
        assert frail.guard(guard_body(unique(f"replaced-{number}")))["decision"] == "ALLOW"
        assert request("GET", f"{frail.health_url}/metrics").status == 200
    assert (frail.process.poll(), len(children(frail))) == (None, 2)


def test_acknowledged_decisions_survive_the_death_of_the_database(postgres: Embedded, frail: Served) -> None:
    seen = {}
    for round_ in range(2):
        for number in range(30):
            body = guard_body(f"survive-{round_}-{number}")
            seen[body["idempotency_key"]] = (body, frail.guard(body))
        with without_database(postgres):
            pass
        assert eventually(lambda: request("GET", f"{frail.url}/readyz").status == 200, within=5)
    lost = [key for key, (body, first) in seen.items() if frail.guard(body)["proof_pack"] != first["proof_pack"]]
    assert not lost, f"{len(lost)} of {len(seen)} lost"
    print(f"0 of {len(seen)} lost over 2 kills")


def started(shop: Shop) -> bool:
    """Whether the loop shows itself in the ledger."""
    return bool(shop.all("select 1 from refunds.workers where tenant_id = %s"))


def test_a_working_loop_goes_on_by_itself_when_the_database_comes_back(postgres: Embedded, frail: Served) -> None:
    shop, name = open_shop(frail), unique("loop").replace("_", "-")
    worker = shop.worker("--loop", "--json", **QUICK)
    try:
        assert eventually(lambda: worker.poll() is not None or started(shop), within=10)
        shop.enqueue([refund(f"{name}_a{n}", n + 1) for n in range(40)])
        with without_database(postgres):
            time.sleep(0.5)
        shop.enqueue([refund(f"{name}_b{n}", n + 1) for n in range(10)])
        done = eventually(
            lambda: set(shop.states().values()) == {"EXECUTED"} and not shop.faults(), within=30, every=0.3
        )
        ended = worker.poll()
    finally:
        worker.send_signal(signal.SIGTERM)
        _, err = worker.communicate(timeout=150)
    assert ended is None, f"the loop ended: {err}"
    assert done, (shop.states(), shop.faults(), err)
    assert worker.returncode == 0, err
    away = [line.partition("does not answer")[2] for line in err.splitlines() if "does not answer:" in line]
    assert away and len(away) == len(set(away)), "one line for each cause, not one for each thread and attempt"
    assert err.count("the database answers again") <= 1, err
    assert shop.faults() == []
    assert broken_invariants_at(frail.database_url) == []

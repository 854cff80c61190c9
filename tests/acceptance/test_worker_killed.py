"""The refund worker as a process against a real authority: killed at every named place, stopped past its lease (G1, G2, G23)."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path

import psycopg
import pytest

from tests.acceptance.ledgers import (
    Shop,
    broken_invariants_at,
    fates,
    ledger_faults,
    mixed_rows,
    open_shop,
    refund,
)
from tests.mutants.pays_first import Died, pay_then_remember, without_safety_net
from tests.support.fixtures import unique
from tests.support.served_programs import SCALE, Served, eventually
from worker.failpoints import Failpoint

pytestmark = pytest.mark.slow
OWN_START = (Failpoint.AFTER_ALLOWED_RECORDED, Failpoint.BEFORE_START, Failpoint.AFTER_START)
"""Places that only a row passes whose start is a call of its own: one that names an order."""
ROUNDS = max(1, round(SCALE))


def armed(place: Failpoint, action: str = "kill", nth: int = 1) -> dict[str, str]:
    return {"SENTINEL_FAILPOINT": f"{place}:{action}:{nth}", "SENTINEL_ALLOW_FAILPOINTS": "1"}


def test_killed_at_every_place_nothing_is_paid_twice_and_nothing_is_forgotten(served: Served) -> None:
    seed = int(os.environ.get("SENTINEL_TEST_SEED", "0")) or random.SystemRandom().randrange(10**6)
    dice = random.Random(seed)
    shops: list[tuple[Failpoint, str, Shop]] = []
    print(f"seed {seed}, {ROUNDS} round(s) × {len(Failpoint)} places")

    def killed_at(place: Failpoint, nth: int) -> tuple[int, str]:
        shop, name = open_shop(served), unique("kill").replace("_", "-")
        enter = shop.enqueue_with_orders if place in OWN_START or dice.random() < 0.5 else shop.enqueue
        enter(mixed_rows(name))
        shops.append((place, name, shop))
        return shop.work("--once", "--json", **armed(place, nth=nth))

    for _ in range(ROUNDS):
        for place in Failpoint:
            nth = 1 if place in (Failpoint.AFTER_CLAIM, Failpoint.AFTER_FACTS) else dice.randint(1, 2)
            status, said = killed_at(place, nth)
            if nth > 1 and status == 0:
                # A place that is passed once per batch is not passed twice by so few rows: then the run ends well.
                status, said = killed_at(place, 1)
            assert status == -signal.SIGKILL, (place, nth, status, said)
    for place, name, shop in shops:
        shop.end_leases()
        status, said = shop.work("--once", "--json")
        assert status == 0, (place, said)
        assert shop.faults() == [], place
        assert shop.states() == fates(name), place
    assert broken_invariants_at(served.database_url) == []


def test_the_same_check_catches_a_worker_that_pays_before_it_remembers(served: Served) -> None:
    shop = open_shop(served)
    shop.enqueue([refund(unique("naive").replace("_", "-"))])
    with psycopg.connect(served.database_url) as connection:
        # Rolled back at the end: the mutant breaks this database only for itself.
        without_safety_net(connection)
        with contextlib.suppress(Died):
            pay_then_remember(connection, shop.tenant_id, dies=True)
        pay_then_remember(connection, shop.tenant_id, dies=False)
        faults = ledger_faults(connection, shop.tenant_id)
        connection.rollback()
    assert "executed twice: 1" in faults


@pytest.mark.parametrize("place", [Failpoint.AFTER_GUARD, Failpoint.AFTER_START, Failpoint.BEFORE_EXECUTION])
def test_a_worker_that_wakes_after_its_lease_cannot_act_late(served: Served, place: Failpoint) -> None:
    shop, name = open_shop(served), unique("stop").replace("_", "-")
    (shop.enqueue_with_orders if place in OWN_START else shop.enqueue)(mixed_rows(name, low=2))
    sleeper = shop.worker("--once", "--json", **armed(place, "stop"))
    try:
        stat = Path(f"/proc/{sleeper.pid}/stat")
        assert eventually(lambda: "T" in stat.read_text().rpartition(")")[2].split()[0], within=15), (
            "never stopped itself"
        )
        shop.end_leases()
        status, said = shop.work("--once", "--json")
        assert status == 0, said
        before = shop.all("select execution_id from refunds.executions where tenant_id = %s order by 1")
    finally:
        os.kill(sleeper.pid, signal.SIGCONT)
    out, err = sleeper.communicate(timeout=120)
    assert shop.all("select execution_id from refunds.executions where tenant_id = %s order by 1") == before, out + err
    assert shop.faults() == []
    assert shop.states() == fates(name, low=2)
    assert broken_invariants_at(served.database_url) == []


def test_an_armed_place_without_the_permission_refuses_to_start(served: Served) -> None:
    shop = open_shop(served)
    status, said = shop.work("--once", SENTINEL_FAILPOINT="after_start:kill")
    assert (status, len(said.strip().splitlines())) == (2, 1)
    assert "SENTINEL_ALLOW_FAILPOINTS" in said


def test_an_approved_row_is_paid_by_the_next_run_and_exactly_once(served: Served) -> None:
    shop, name = open_shop(served), unique("appr").replace("_", "-")
    shop.enqueue([refund(name, 300)])
    assert shop.work("--once")[0] == 0
    assert shop.states() == {f"lge_{name}": "APPROVAL_REQUIRED"}
    tenant = ["--tenant", str(shop.tenant_id)]
    approval = served.cli_json("approvals", "list", "--status", "pending", *tenant)[0]["approval_id"]
    person = next(one["email"] for one in served.cli_json("operators", "list", *tenant) if one["role"] == "approver")
    served.cli_json("approvals", "approve", approval, "--as", person, "--reason", "fine", *tenant)
    time.sleep(0.3)
    for _ in range(2):
        status, said = shop.work("--once", "--json")
        assert status == 0, said
    assert shop.states() == {f"lge_{name}": "EXECUTED"}
    assert shop.faults() == []


def test_while_the_authority_is_away_nothing_is_paid_and_then_everything(served: Served) -> None:
    shop, name = open_shop(served), unique("away").replace("_", "-")
    shop.enqueue(mixed_rows(name, low=2))
    status, said = shop.work("--once", "--json", SENTINEL_URL="http://127.0.0.1:9")
    assert status == 3
    assert set(shop.states().values()) == {"NEW"}, said
    time.sleep(0.5)
    status, said = shop.work("--once", "--json")
    assert status == 0, said
    assert json.loads(said)
    assert shop.states() == fates(name, low=2)
    assert shop.faults() == []

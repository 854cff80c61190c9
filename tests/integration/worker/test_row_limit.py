"""`--limit N`: a run ends when N rows are done, not when they are claimed, and never before."""

from __future__ import annotations

import threading
import time
import uuid

import pytest

from tests.support.fake_authority import FakeAuthority
from tests.support.ledger_fixtures import LedgerFixtures, new_row, wait_until, worker_process
from tests.support.workflow_fixtures import BRANCHES, Shop, Spy
from worker.refunds import agent as agents
from worker.refunds.agent import RowLimit
from worker.refunds.ledger import Ledger, LedgerUnavailable
from worker.refunds.rows import LedgerRow
from worker.settlement import EffectResult

RETAIL = BRANCHES["retail/standard"]


class Slow(Spy):
    """A settlement system that takes until it is let."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.asked, self.goes_on = threading.Event(), threading.Event()

    def settle(self, row: LedgerRow, reference: uuid.UUID) -> EffectResult:
        self.asked.set()
        self.goes_on.wait(60)
        return super().settle(row, reference)


def test_a_loop_with_a_limit_sees_the_payment_under_way_through(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_FINISH_SECONDS", 0.0)
    slow = shop.spies["simulated_refund"] = Slow("simulated_refund")
    shop.enter(RETAIL)
    with shop.agent() as agent:
        loop = threading.Thread(target=agent.run_loop, args=(1,), daemon=True)
        loop.start()
        assert slow.asked.wait(60)
        loop.join(1.5)
        assert loop.is_alive(), "the row is claimed, and not done"
        slow.goes_on.set()
        loop.join(60)
        assert not loop.is_alive()
    assert shop.stands()[0] == "EXECUTED"


def test_a_loop_with_a_limit_waits_for_its_rows_and_does_no_more(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Ledger.claim

    def claim(self: Ledger, *args: int) -> list[LedgerRow]:
        time.sleep(0.1)  # several times as long as the loop takes to look whether it is at its end
        return real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "claim", claim)
    monkeypatch.setattr(agents, "_FINISH_SECONDS", 0.0)
    with ledger_fixtures.agent(authority.url, lanes=3, batch=2) as agent:
        loop = threading.Thread(target=agent.run_loop, args=(5,), daemon=True)
        loop.start()
        loop.join(1.0)
        assert loop.is_alive(), "nothing was due yet"
        ledger_fixtures.add(*(new_row(f"r{number}") for number in range(8)))
        loop.join(60)
        assert not loop.is_alive() and ledger_fixtures.executions() == 5


def test_a_batch_that_is_dropped_takes_nothing_off_the_limit(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = Ledger.claim, iter([True, True])

    def claim(self: Ledger, *args: object) -> list[LedgerRow]:
        if next(failures, False):
            raise LedgerUnavailable("away")
        return real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "claim", claim)
    ledger_fixtures.add(*(new_row(f"r{number}") for number in range(3)))
    with ledger_fixtures.agent(authority.url) as agent:
        loop = threading.Thread(target=agent.run_loop, args=(2,), daemon=True)
        loop.start()
        wait_until(lambda: ledger_fixtures.executions() == 2, 20)
        loop.join(60)
        assert not loop.is_alive() and ledger_fixtures.executions() == 2


def drop(limit: RowLimit) -> None:
    with limit.lend(4) as lent:
        assert (lent.rows, limit.is_spent) == (1, False)
        raise KeyError


def test_what_is_lent_is_neither_done_nor_lent_twice() -> None:
    limit = RowLimit(5)
    with limit.lend(4) as first, limit.lend(4) as second:
        assert (first.rows, second.rows, limit.is_spent) == (4, 1, False)
        first.done, second.done = 3, 1
    with pytest.raises(KeyError):
        drop(limit)
    with limit.lend(4) as last:
        assert (last.rows, limit.is_spent) == (1, False)
        last.done = 1
    assert limit.is_spent
    with limit.lend(4) as nothing:
        assert nothing.rows == 0
    with RowLimit(None).lend(7) as endless:
        assert endless.rows == 7


def test_a_limit_holds_where_nobody_reads_what_is_printed(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add(*(new_row(f"r{number}") for number in range(6)))
    settings = {"WORKER_BATCH": "1", "WORKER_LANES": "1", "WORKER_POLL_SECONDS": "0.05"}
    process = worker_process(
        ["--loop", "--limit", "2"], database_url=ledger_fixtures.url, authority_url=authority.url, **settings
    )
    assert process.stdout is not None
    process.stdout.close()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert ledger_fixtures.executions() == 2
    assert said.count("rows are processed and not printed: Broken pipe") == 1 and "Traceback" not in said

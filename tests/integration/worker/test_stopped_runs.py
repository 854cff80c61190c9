"""A single run that is told to end says so by its exit status where it leaves rows undone; a loop's end is its ordinary one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pytest

from sentinel.platform.resources import policies_dir
from tests.support.effects_server import EffectsServer
from tests.support.fake_authority import FakeAuthority
from tests.support.ledger_fixtures import LedgerFixtures, new_row, worker_process
from tests.support.scripted_server import Asked


class Slow(EffectsServer):
    """A platform that takes until it is let, and then does what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.was_asked, self.goes_on = threading.Event(), threading.Event()

    def act(self, asked: Asked) -> None:
        if asked.method == "POST":
            self.was_asked.set()
            self.goes_on.wait(60)
        super().act(asked)


@pytest.fixture
def platform() -> Iterator[Slow]:
    with Slow().running() as found:
        yield found
        found.goes_on.set()


@pytest.mark.parametrize(("mode", "status"), [("--once", 3), ("--loop", 0)])
def test_a_run_that_is_cut_off_in_a_payment_says_so_and_the_next_one_sees_it_through(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, platform: Slow, tmp_path: Path, mode: str, status: int
) -> None:
    policies = copytree(policies_dir(), tmp_path / "policies")
    routes = policies / "routes.yaml"
    routes.write_text(routes.read_text().replace("settles_to: simulated_refund", "settles_to: platform_backend", 1))
    ledger_fixtures.add_with_orders(new_row("r"))
    process = worker_process(
        [mode], database_url=ledger_fixtures.url, authority_url=authority.url, SENTINEL_POLICIES_DIR=str(policies),
        WORKER_PLATFORM_URL=platform.url, WORKER_PLATFORM_KEY="k", WORKER_SETTLEMENT_TIMEOUT_SECONDS="30",
    )  # fmt: skip
    assert platform.was_asked.wait(60)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == status, said
    assert ("error: cut off before its rows were done" in said) is (status == 3)
    assert ledger_fixtures.state("r") == "ALLOWED" and ledger_fixtures.executions() == 0
    platform.goes_on.set()
    ledger_fixtures.admin.execute("update refunds.effects set tried_at = tried_at - interval '1 hour'")
    ledger_fixtures.make_due()
    over = {
        "policies_dir": policies,
        "platform_url": platform.url,
        "platform_key": "k",
        "settlement_timeout_seconds": 30.0,
    }
    with ledger_fixtures.agent(authority.url, **over) as agent:
        agent.run_once()
    assert ledger_fixtures.state("r") == "EXECUTED" and list(platform.done.values()) == [1]


def test_a_single_run_that_ends_in_time_with_rows_left_says_so_too(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add(*(new_row(f"r{number}") for number in range(4)))
    with ledger_fixtures.agent(authority.url, batch=1) as agent:
        agent._on_row = lambda row: agent._stopping.set()
        outcome = agent.run_once()
    assert ledger_fixtures.executions() == 1 and outcome.trouble == "stopped before it was done"
    assert outcome.why_outside is not None and not outcome.row_failed

"""The workflow against the real authority: its policies, its approvals, its switches, its halts decide; the worker only asks."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from werkzeug.serving import make_server

from sentinel.policy.switches import SwitchFile
from sentinel.resources import policies_dir
from sentinel.services.flip_switch import turn_switch_on
from sentinel.services.record_gate_report import record_gate_report
from sentinel.store.gate_reports import GateReport
from tests.harness import actor
from tests.ledger_world import LedgerWorld
from tests.workflow_world import Shop
from tests.world import World

BOOK = SwitchFile(policies_dir()).book
MASTER = "small_refund.enabled"


def switch_on(world: World, name: str, percent: int = 100) -> None:
    """As an administrator does it, with a passing launch-gate report where one is wanted."""
    declared = BOOK.switches[name]
    if declared.gate is not None:
        digest = world.one("select policy_digest from sentinel.policies_in_force where policy_id = %s", declared.policy)
        report = GateReport(
            switch=name, scenario=declared.gate, policy_digest=digest, passed=True, cases=200, correct=199,
            lower_bound_ppm=964_300, wrong_executions=0, not_covered=0, report={"by": "a test"},
        )  # fmt: skip
        record_gate_report(world.console_pool, actor(world, "approver"), BOOK, report)
    admin = actor(world, "admin")
    turn_switch_on(world.console_pool, admin, BOOK, name, canary_percent=percent, reason="ready")


@pytest.fixture
def shop(world: World) -> Iterator[Shop]:
    """A shop whose authority is the real one, in this process, with every switch on."""
    for name in (MASTER, *(name for name in BOOK.switches if name.startswith("small_refund.") and name != MASTER)):
        switch_on(world, name)
    server = make_server("127.0.0.1", 0, world.app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    ledger = LedgerWorld(world.url, world.tenant_id)
    yield Shop(ledger, f"http://127.0.0.1:{server.server_port}", world.key)
    server.shutdown()
    thread.join(5)
    server.server_close()
    ledger.close()

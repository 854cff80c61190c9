"""Switches over a real database: reports, flips, what agents are told of them, and the evidence of it."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

from sentinel.authority.gate_reports import GateReport, record_gate_report
from sentinel.authority.switches import Flipped, turn_switch_off, turn_switch_on
from sentinel.core.proof import pack_hash
from sentinel.platform.resources import policies_dir
from sentinel.policy.switches import SwitchBook, SwitchFile
from tests.support.harness import actor
from tests.support.world import World

FEE, MASTER, STANDARD = "small_refund.refund_fee", "small_refund.enabled", "retail.standard"
BOOK = SwitchFile(policies_dir()).book


def passing_report(policy_digest: str, switch: str = FEE, scenario: str = "fee") -> GateReport:
    """What a passed launch gate leaves behind."""
    return GateReport(
        switch=switch, scenario=scenario, policy_digest=policy_digest, passed=True, cases=200, correct=198,
        lower_bound_ppm=964_300, wrong_executions=0, not_covered=1, report={"by": "a test"},
    )  # fmt: skip


def in_force(world: World) -> str:
    """The digest of the policy that covers small refunds."""
    return str(world.one("select policy_digest from sentinel.policies_in_force where policy_id = 'small-refund'"))


def record(world: World, **over: Any) -> uuid.UUID:
    """A report of the fee gate, passing and about the policy in force unless `over` says otherwise."""
    report = replace(passing_report(in_force(world)), **over)
    return record_gate_report(world.console_pool, actor(world, "approver"), BOOK, report)


def on(world: World, name: str = FEE, percent: int = 5, *, role: str = "admin", book: SwitchBook = BOOK) -> Flipped:
    """An operator's flip."""
    return turn_switch_on(world.console_pool, actor(world, role), book, name, canary_percent=percent, reason="ready")


def off(world: World, name: str = FEE, *, role: str = "approver", book: SwitchBook = BOOK) -> Flipped:
    """An operator's flip."""
    return turn_switch_off(world.console_pool, actor(world, role), book, name, reason="not sure")


def seen(world: World, name: str = FEE) -> dict[str, Any]:
    """What an agent is told about a switch."""
    response = world.get("switches")
    assert response.status_code == 200, response.text
    return dict(response.get_json()["switches"][name])


def flips(world: World) -> list[dict[str, Any]]:
    """Bodies of the events of flips, oldest first; each one's hash is recomputed on the way."""
    found = world.admin.execute(
        "select body, hash from sentinel.events where kind in ('switch_on', 'switch_off') order by occurred_at, event_id"
    ).fetchall()
    bodies = [json.loads(body) for body, _ in found]
    assert [pack_hash(body) for body in bodies] == [recorded for _, recorded in found]
    return bodies

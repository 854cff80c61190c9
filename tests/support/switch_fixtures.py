"""Switches over a real database: reports, flips, what agents are told of them, and the evidence of it."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

from sentinel.authority.gate_reports import GateReport, record_gate_report
from sentinel.authority.switches import SwitchChange, turn_switch_off, turn_switch_on
from sentinel.core.proof import pack_hash
from sentinel.platform.resources import policies_dir
from sentinel.policy.switches import DeclaredSwitches, SwitchFile
from tests.support.fixtures import Fixtures
from tests.support.harness import actor

FEE, MASTER, STANDARD = "small_refund.refund_fee", "small_refund.enabled", "retail.standard"
BOOK = SwitchFile(policies_dir()).declared


def passing_report(policy_digest: str, switch: str = FEE, scenario: str = "fee") -> GateReport:
    """What a passed launch gate leaves behind that tried a sandbox of each system."""
    return GateReport(
        switch=switch, scenario=scenario, policy_digest=policy_digest, passed=True, cases=200, correct=198,
        lower_bound_ppm=964_300, wrong_executions=0, not_covered=1,
        report={"by": "a test", "sandbox": ["platform", "price_difference", "ticket"], "unproven": ["stripe"]},
    )  # fmt: skip


def in_force(fixtures: Fixtures) -> str:
    """The digest of the policy that covers small refunds."""
    return str(fixtures.one("select policy_digest from sentinel.policies_in_force where policy_id = 'small-refund'"))


def record(fixtures: Fixtures, **over: Any) -> uuid.UUID:
    """A report of the fee gate, passing and about the policy in force unless `over` says otherwise."""
    report = replace(passing_report(in_force(fixtures)), **over)
    return record_gate_report(fixtures.console_pool, actor(fixtures, "approver"), BOOK, report)


def on(
    fixtures: Fixtures,
    name: str = FEE,
    percent: int = 5,
    *,
    role: str = "admin",
    declared_switches: DeclaredSwitches = BOOK,
) -> SwitchChange:
    """An operator's flip."""
    return turn_switch_on(
        fixtures.console_pool, actor(fixtures, role), declared_switches, name, canary_percent=percent, reason="ready"
    )


def off(
    fixtures: Fixtures, name: str = FEE, *, role: str = "approver", declared_switches: DeclaredSwitches = BOOK
) -> SwitchChange:
    """An operator's flip."""
    return turn_switch_off(fixtures.console_pool, actor(fixtures, role), declared_switches, name, reason="not sure")


def seen(fixtures: Fixtures, name: str = FEE) -> dict[str, Any]:
    """What an agent is told about a switch."""
    response = fixtures.get("switches")
    assert response.status_code == 200, response.text
    return dict(response.get_json()["switches"][name])


def flips(fixtures: Fixtures) -> list[dict[str, Any]]:
    """Bodies of the events of flips, oldest first; each one's hash is recomputed on the way."""
    found = fixtures.admin.execute(
        "select body, hash from sentinel.events where kind in ('switch_on', 'switch_off') order by occurred_at, event_id"
    ).fetchall()
    bodies = [json.loads(body) for body, _ in found]
    assert [pack_hash(body) for body in bodies] == [recorded for _, recorded in found]
    return bodies

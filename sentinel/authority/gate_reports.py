"""Launch-gate reports: recording a run of the labelled cases, and whether the newest one opens the gate."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from sentinel.authority.actor import Actor
from sentinel.core.errors import InvalidInput
from sentinel.policy.switches import DeclaredSwitches, known_switch
from sentinel.store.database import Pool
from sentinel.store.ids import new_id
from sentinel.store.queries import all_rows, scalar

MAX_AGE_DAYS = 7
"""How old a passing report may be, for texts. The SQL function `sentinel.gate_report_max_age()` decides; a test compares them."""

REFUSALS = {
    "policy_not_in_force": "no running authority has loaded the policy that covers it",
    "no_report": "there is no launch-gate report",
    "report_failed": "the newest launch-gate report did not pass",
    "report_stale": "the newest launch-gate report tested another text of the policy than the one in force",
    "report_disproved": "the newest launch-gate report is older than the last time an agent turned the switch off because something went wrong (event switch_off)",
    "report_old": f"the newest launch-gate report is older than {MAX_AGE_DAYS} days",
}
"""Why a gated switch cannot be turned on, in words."""


@dataclass(frozen=True, slots=True)
class GateFigures:
    """Figures of a run: how many of the `cases` were `correct`, and how many were `not_covered` (not tested).

    `lower_bound_ppm` is the lower end of the 95 % interval of the correct rate, in parts per million.
    """

    switch: str
    scenario: str
    policy_digest: str
    passed: bool
    cases: int
    correct: int
    lower_bound_ppm: int
    wrong_executions: int
    not_covered: int


@dataclass(frozen=True, slots=True)
class GateReport(GateFigures):
    """One run, with its evidence."""

    report: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GateState:
    """Whether a gated switch may be turned on: `refusal` is "" or a key of `REFUSALS`.

    `digest_in_force` is the digest of its policy in force, if any. The other fields are the newest report's, None
    without a report.
    """

    switch: str
    refusal: str
    digest_in_force: str | None
    report_id: uuid.UUID | None
    passed: bool | None
    policy_digest: str | None
    cases: int | None
    correct: int | None
    lower_bound_ppm: int | None
    wrong_executions: int | None
    not_covered: int | None
    created_at: datetime | None
    age_seconds: int | None
    recorded_by: str | None


@dataclass(frozen=True, slots=True)
class ReportRow(GateFigures):
    """One stored report; `about_in_force` says whether it is about a policy text that is in force."""

    created_at: datetime
    recorded_by: str
    about_in_force: bool


RECORD = """
select sentinel.record_gate_report(%(tenant_id)s, %(report_id)s, %(scenario)s, %(switch)s, %(policy_digest)s, %(passed)s,
  %(cases)s, %(correct)s, %(lower_bound_ppm)s, %(wrong_executions)s, %(not_covered)s, %(report)s, %(who)s, %(event_id)s)
"""
STATES = """
select asked.switch, sentinel.gate_refusal(%(tenant_id)s, asked.switch, asked.gate, asked.policy) as refusal,
       f.policy_digest as digest_in_force, r.report_id, r.passed, r.policy_digest, r.cases, r.correct, r.lower_bound_ppm,
       r.wrong_executions, r.not_covered, r.created_at, r.recorded_by,
       extract(epoch from clock_timestamp() - r.created_at)::bigint as age_seconds
from unnest(%(switches)s::text[], %(gates)s::text[], %(policies)s::text[]) as asked (switch, gate, policy)
left join sentinel.policies_in_force f on f.policy_id = asked.policy
left join lateral (
  select g.* from sentinel.gate_reports g
  where g.tenant_id = %(tenant_id)s and g.switch = asked.switch and g.scenario = asked.gate
  order by g.created_at desc, g.report_id desc limit 1) as r on true
"""

REPORTS = """
select switch, scenario, policy_digest, passed, cases, correct, lower_bound_ppm, wrong_executions, not_covered, created_at,
       recorded_by, exists (select from sentinel.policies_in_force f where f.policy_digest = g.policy_digest) as about_in_force
from sentinel.gate_reports g where tenant_id = %(tenant_id)s and switch = %(switch)s
order by created_at desc, report_id desc limit %(limit)s
"""


def gate_states(pool: Pool, tenant_id: uuid.UUID, gated: Sequence[tuple[str, str, str]]) -> dict[str, GateState]:
    """Return the gate state of each (switch, gate, policy id), by switch."""
    switches, gates, policies = ([one[place] for one in gated] for place in range(3))
    fields = {"tenant_id": tenant_id, "switches": switches, "gates": gates, "policies": policies}
    return {state.switch: state for state in all_rows(pool, GateState, STATES, fields)}


def list_reports(pool: Pool, tenant_id: uuid.UUID, switch: str) -> list[ReportRow]:
    """Return the newest 50 reports of a switch, newest first."""
    return all_rows(pool, ReportRow, REPORTS, {"tenant_id": tenant_id, "switch": switch, "limit": 50})


LEAST_LOWER_BOUND_PPM = 950_000
"""The lowest value of `lower_bound_ppm` with which a report may pass."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


def record_gate_report(pool: Pool, actor: Actor, declared_switches: DeclaredSwitches, report: GateReport) -> uuid.UUID:
    """Record a report and return its id. Needs the role approver.

    Reports never change; the newest one counts, even if it failed. Raises `Forbidden`, `NotFound` (no such switch), or
    `InvalidInput` (another scenario than the switch's gate, or numbers that contradict each other or the verdict).
    """
    actor.must_be("approver")
    declared = known_switch(declared_switches, report.switch)
    if report.scenario != declared.gate:
        gate = f"its gate is {declared.gate}" if declared.gate else "it has no gate"
        raise InvalidInput.of("scenario", f"{report.scenario} is not the launch gate of {report.switch}: {gate}")
    _consistent(report)
    report_id = new_id()
    scalar(pool, RECORD, {
        "tenant_id": actor.tenant_id, "report_id": report_id, "scenario": report.scenario, "switch": report.switch,
        "policy_digest": report.policy_digest, "passed": report.passed, "cases": report.cases, "correct": report.correct,
        "lower_bound_ppm": report.lower_bound_ppm, "wrong_executions": report.wrong_executions,
        "not_covered": report.not_covered, "report": Jsonb(dict(report.report)), "who": actor.name, "event_id": new_id(),
    })  # fmt: skip
    return report_id


def _consistent(report: GateReport) -> None:
    # The table has the same constraints (store/schema/authority/switches.sql); checked here too for a readable error.
    counts = (report.correct, report.not_covered, report.wrong_executions)
    if min(counts) < 0 or not 0 < report.cases <= 1_000_000 or report.correct + report.not_covered > report.cases:
        raise InvalidInput.of(
            "cases", "must be 1 to 1000000 and not less than correct + not_covered; no count may be negative"
        )
    if not 0 <= report.lower_bound_ppm <= 1_000_000:
        raise InvalidInput.of("lower_bound_ppm", "must be between 0 and 1000000")
    if not _DIGEST.fullmatch(report.policy_digest):
        raise InvalidInput.of("policy_digest", "must be sha256: and 64 hex digits")
    proven = report.wrong_executions == 0 and report.correct > 0 and report.lower_bound_ppm >= LEAST_LOWER_BOUND_PPM
    if report.passed and not proven:
        raise InvalidInput.of(
            "passed",
            f"must be false, unless nothing was executed wrongly, some cases are correct and lower_bound_ppm is at least {LEAST_LOWER_BOUND_PPM}",
        )

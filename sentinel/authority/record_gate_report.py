"""Keep what a run of a switch's labelled cases found: the paper that turning the switch on asks for."""

from __future__ import annotations

import re
import uuid

from sentinel.authority import gate_reports
from sentinel.authority.actor import Actor
from sentinel.authority.flip_switch import known_switch
from sentinel.authority.gate_reports import GateReport
from sentinel.core.errors import InvalidInput
from sentinel.policy.switches import SwitchBook
from sentinel.store.database import Pool
from sentinel.store.ids import new_id

LEAST_LOWER_BOUND_PPM = 950_000
"""The bar: the lower end of the 95 % interval of the correct rate."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


def record_gate_report(pool: Pool, actor: Actor, book: SwitchBook, report: GateReport) -> uuid.UUID:
    """The report's id. Approvers may record; reports are never changed, the newest one counts, also a failed one.

    Raises `Forbidden`, `NotFound` (no such switch), `InvalidInput` (another scenario than the switch's gate, or numbers
    that contradict each other or the verdict).
    """
    actor.must_be("approver")
    declared = known_switch(book, report.switch)
    if report.scenario != declared.gate:
        gate = f"its gate is {declared.gate}" if declared.gate else "it has no gate"
        raise InvalidInput.of("scenario", f"{report.scenario} proves nothing about {report.switch}: {gate}")
    _consistent(report)
    report_id = new_id()
    gate_reports.record_gate_report(
        pool, tenant_id=actor.tenant_id, report_id=report_id, report=report, who=actor.name, event_id=new_id()
    )
    return report_id


def _consistent(report: GateReport) -> None:
    # The table holds the same (0002_switches.sql); asked here too, so that the refusal has words.
    counts = (report.correct, report.not_covered, report.wrong_executions)
    if min(counts) < 0 or not 0 < report.cases <= 1_000_000 or report.correct + report.not_covered > report.cases:
        raise InvalidInput.of("cases", "and the other counts do not add up")
    if not 0 <= report.lower_bound_ppm <= 1_000_000:
        raise InvalidInput.of("lower_bound_ppm", "must be between 0 and 1000000")
    if not _DIGEST.fullmatch(report.policy_digest):
        raise InvalidInput.of("policy_digest", "must be sha256: and 64 hex digits")
    proven = report.wrong_executions == 0 and report.correct > 0 and report.lower_bound_ppm >= LEAST_LOWER_BOUND_PPM
    if report.passed and not proven:
        raise InvalidInput.of("passed", "is more than these numbers prove")

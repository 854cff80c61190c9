"""The result of a launch gate run and its report, as pure functions: which cases are correct, which count, and whether the gate passes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sentinel.core.wording import counted
from sentinel.platform.outside_systems import NEVER_TRIED, OUTSIDE_SYSTEMS
from worker.gates.boundaries import Boundary, of_case, wanted
from worker.gates.cases import Case, CaseFile
from worker.gates.fixtures import names_of
from worker.gates.run_request import RunRequest
from worker.gates.simulated_systems import NAMES
from worker.gates.wrong_executions import Executed, WrongExecution
from worker.settlement.registry import reached_by

LEAST_LOWER_BOUND = 0.95
NOT_WIRED = ("system_not_ready", "recogniser_unavailable", "order_directory_unavailable", "critic_error")
"""Escalations because an outside service was not available, which prove nothing about a case."""
_Z = 1.959963984540054
"""The normal quantile of a two-sided 95 % interval."""


class GateCaseResult(StrEnum):
    """The result of one case."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    NOT_COVERED = "not_covered"


@dataclass(frozen=True, slots=True)
class ReplayedRow:
    """The state of a case's row after the replay. `status` None: there is no row."""

    status: str | None
    waiting_for: str | None = None
    reason_code: str | None = None
    last_error: str | None = None

    @property
    def end(self) -> str:
        """The end that the row came to: one of `cases.ENDS`, or "unfinished"."""
        if self.status == "APPROVAL_REQUIRED":
            return "waiting" if self.waiting_for == "customer" else "person"
        return {"EXECUTED": "execute", "DENIED": "deny", "ERROR": "error"}.get(self.status or "", "unfinished")

    def __str__(self) -> str:
        why = self.last_error if self.end in ("error", "unfinished") else self.reason_code
        return f"{self.end} ({why})" if why else self.end


@dataclass(frozen=True, slots=True)
class GateResult:
    """The outcome of a run. `results` and `seen` are by case id; `open` are the boundaries that no correct case tested;
    `lower` and `upper` bound the rate of correct cases; `tried` are the outside systems that a correct case was executed
    in."""

    results: Mapping[str, GateCaseResult]
    seen: Mapping[str, ReplayedRow]
    wrong: tuple[WrongExecution, ...]
    covered: frozenset[Boundary]
    open: tuple[Boundary, ...]
    lower: float
    upper: float
    problems: tuple[str, ...]
    tried: frozenset[str] = frozenset()

    @property
    def passed(self) -> bool:
        """Whether the gate passed, so that the switch may be turned on."""
        return not self.problems

    def count(self, result: GateCaseResult) -> int:
        """The number of cases with this result."""
        return sum(found is result for found in self.results.values())


def judge(
    job: RunRequest,
    file: CaseFile,
    seen: Mapping[str, ReplayedRow],
    wrong: Sequence[WrongExecution],
    *,
    executed: Sequence[Executed] = (),
    day_changed: bool = False,
) -> GateResult:
    """Judge a run; `seen` has the rows by case id, `executed` the execution rows. Only correct and incorrect cases count, and a wrong execution is incorrect."""
    mistaken = {one.case for one in wrong}
    results = {case.id: _result(case, seen.get(case.id, ReplayedRow(None)), case.id in mistaken) for case in file.cases}
    proven = [case for case in file.cases if results[case.id] is GateCaseResult.CORRECT]
    covered = frozenset(side for case in proven for side in of_case(case, job))
    left = tuple(sorted(wanted(job) - covered))
    correct = len(proven)
    number = correct + sum(result is GateCaseResult.INCORRECT for result in results.values())
    lower, upper = wilson(correct, number)
    problems = _problems(wrong, left, lower, any(case.want.end == "execute" for case in proven), day_changed)
    entries = {names_of(case).entry for case in proven}
    settled_in = {row.system for row in executed if row.ledger_entry_id in entries}
    tried = frozenset(system for name in settled_in for system in reached_by(name))
    return GateResult(results, seen, tuple(wrong), covered, left, lower, upper, tuple(problems), tried)


def wilson(right: int, number: int) -> tuple[float, float]:
    """The Wilson 95 % interval of the rate `right` / `number`; (0, 1) for no cases."""
    if number == 0:
        return 0.0, 1.0
    rate, weight = right / number, _Z * _Z / number
    middle, half = rate + weight / 2, _Z * math.sqrt(rate * (1 - rate) / number + weight / number / 4)
    return max((middle - half) / (1 + weight), 0.0), min((middle + half) / (1 + weight), 1.0)


def _result(case: Case, seen: ReplayedRow, mistaken: bool) -> GateCaseResult:
    if mistaken:
        return GateCaseResult.INCORRECT
    if seen.end == "person" and seen.reason_code in NOT_WIRED:
        return GateCaseResult.NOT_COVERED
    is_right = seen.end == case.want.end and case.want.reason in (None, seen.reason_code)
    return GateCaseResult.CORRECT if is_right else GateCaseResult.INCORRECT


def _problems(
    wrong: Sequence[WrongExecution], left: Sequence[Boundary], lower: float, has_executed: bool, day_changed: bool
) -> list[str]:
    found = [counted(len(wrong), "wrong execution")] if wrong else []
    if lower < LEAST_LOWER_BOUND:
        found.append(f"the lower bound of the correct rate is {lower:.4f}, and must be at least {LEAST_LOWER_BOUND}")
    if left:
        found.append(f"{counted(len(left), 'boundary is', 'boundaries are')} not covered: " + ", ".join(map(str, left)))
    if not has_executed:
        found.append("no case was executed, so executions were not tested")
    if day_changed:
        found.append("a day of the policy began during the run: run it again")
    return found


def report_of(job: RunRequest, file: CaseFile, found: GateResult) -> dict[str, Any]:
    """Make the report, without the policy's digest, which only the authority knows."""
    correct, incorrect = found.count(GateCaseResult.CORRECT), found.count(GateCaseResult.INCORRECT)
    left = set(found.open)
    return {
        "scenario": job.scenario, "switch": job.switch, "passed": found.passed, "problems": list(found.problems),
        "cases": len(file.cases), "covered": correct + incorrect, "correct": correct, "incorrect": incorrect,
        "not_covered": found.count(GateCaseResult.NOT_COVERED), "lower_bound": found.lower, "upper_bound": found.upper,
        "wrong_executions": [one.as_json() for one in found.wrong],
        "boundaries": [
            {"limit": side.name, "currency": side.currency, "side": side.side, "covered": side not in left}
            for side in sorted(found.covered | left)
        ],
        "simulated": list(NAMES) if job.simulate_systems else [],
        "unproven": [
            *(system.name for system in OUTSIDE_SYSTEMS if system.url_field not in job.sandbox or system.name not in found.tried),
            *NEVER_TRIED,
        ],
        "sandbox": sorted(name.removesuffix("_url") for name in job.sandbox if name.endswith("_url")),
        "cases_file": file.name, "cases_digest": file.digest,
        "results": [
            {"case": case.id, "where": case.where, "result": found.results[case.id], "wanted": str(case.want),
             "came_to": str(found.seen[case.id]) if case.id in found.seen else "nothing"}
            for case in file.cases
        ],
    }  # fmt: skip

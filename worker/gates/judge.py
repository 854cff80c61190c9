"""Results → verdict. Pure: what a case came to, whether it counts, and whether all of it is enough to turn a switch on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from worker.gates.boundaries import Boundary, of_case, wanted
from worker.gates.cases import Case, CaseFile
from worker.gates.job import Job
from worker.gates.reconcile import Wrong

LEAST_LOWER_BOUND = 0.95
NOT_WIRED = ("system_not_ready", "recogniser_unavailable", "order_directory_unavailable", "critic_error")
"""A person was asked because something outside was not there: that proves nothing about the case, whatever it wants."""
_Z = 1.959963984540054
"""Two-sided 95 %."""


class Result(StrEnum):
    """What a case proved."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    NOT_COVERED = "not_covered"


@dataclass(frozen=True, slots=True)
class Seen:
    """Where a row stands after the replay. `status` None: it is not there."""

    status: str | None
    waiting_for: str | None = None
    reason_code: str | None = None
    last_error: str | None = None

    @property
    def end(self) -> str:
        """One of `cases.ENDS`, or "unfinished"."""
        if self.status == "APPROVAL_REQUIRED":
            return "waiting" if self.waiting_for == "customer" else "person"
        return {"EXECUTED": "execute", "DENIED": "deny", "ERROR": "error"}.get(self.status or "", "unfinished")

    def __str__(self) -> str:
        why = self.last_error if self.end in ("error", "unfinished") else self.reason_code
        return f"{self.end} ({why})" if why else self.end


@dataclass(frozen=True, slots=True)
class Judgement:
    """Everything a report says. `results` by case id; `open` are boundaries that no covered, correct case stands on."""

    results: Mapping[str, Result]
    seen: Mapping[str, Seen]
    wrong: tuple[Wrong, ...]
    covered: frozenset[Boundary]
    open: tuple[Boundary, ...]
    lower: float
    upper: float
    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against turning the switch on."""
        return not self.problems

    def count(self, result: Result) -> int:
        """How many cases came to this."""
        return sum(found is result for found in self.results.values())


def judge(
    job: Job, file: CaseFile, seen: Mapping[str, Seen], wrong: Sequence[Wrong], *, day_changed: bool = False
) -> Judgement:
    """`seen` by case id. Only correct and incorrect cases count; a wrong execution is never correct."""
    mistaken = {one.case for one in wrong}
    results = {case.id: _result(case, seen.get(case.id, Seen(None)), case.id in mistaken) for case in file.cases}
    proven = [case for case in file.cases if results[case.id] is Result.CORRECT]
    covered = frozenset(side for case in proven for side in of_case(case, job))
    left = tuple(sorted(wanted(job) - covered))
    correct = len(proven)
    number = correct + sum(result is Result.INCORRECT for result in results.values())
    lower, upper = wilson(correct, number)
    problems = _problems(wrong, left, lower, any(case.want.end == "execute" for case in proven), day_changed)
    return Judgement(results, seen, tuple(wrong), covered, left, lower, upper, tuple(problems))


def wilson(right: int, number: int) -> tuple[float, float]:
    """The 95 % interval of a rate; (0, 1) when nothing was tried."""
    if number == 0:
        return 0.0, 1.0
    rate, weight = right / number, _Z * _Z / number
    middle, half = rate + weight / 2, _Z * math.sqrt(rate * (1 - rate) / number + weight / number / 4)
    return max((middle - half) / (1 + weight), 0.0), min((middle + half) / (1 + weight), 1.0)


def _result(case: Case, seen: Seen, mistaken: bool) -> Result:
    if mistaken:
        return Result.INCORRECT
    if seen.end == "person" and seen.reason_code in NOT_WIRED:
        return Result.NOT_COVERED
    is_right = seen.end == case.want.end and case.want.reason in (None, seen.reason_code)
    return Result.CORRECT if is_right else Result.INCORRECT


def _problems(
    wrong: Sequence[Wrong], left: Sequence[Boundary], lower: float, has_executed: bool, day_changed: bool
) -> list[str]:
    found = [f"{len(wrong)} wrong executions"] if wrong else []
    if lower < LEAST_LOWER_BOUND:
        found.append(f"the correct rate is only known to be over {lower:.4f}, and must be over {LEAST_LOWER_BOUND}")
    if left:
        found.append(f"{len(left)} boundaries are not covered: " + ", ".join(map(str, left)))
    if not has_executed:
        found.append("nothing was executed, so nothing is known about executions")
    if day_changed:
        found.append("a day of the policy began during the run: run it again")
    return found

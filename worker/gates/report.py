"""A judgement as a report: JSON for the record, and the same for people to read."""

from __future__ import annotations

from typing import Any

from worker.gates.cases import CaseFile
from worker.gates.job import Job
from worker.gates.judge import Judgement, Result
from worker.gates.stand_ins import NAMES


def report_of(job: Job, file: CaseFile, found: Judgement) -> dict[str, Any]:
    """The report, without what only the authority knows (the policy's digest)."""
    correct, incorrect = found.count(Result.CORRECT), found.count(Result.INCORRECT)
    left = set(found.open)
    return {
        "scenario": job.scenario, "switch": job.switch, "passed": found.passed, "problems": list(found.problems),
        "cases": len(file.cases), "covered": correct + incorrect, "correct": correct, "incorrect": incorrect,
        "not_covered": found.count(Result.NOT_COVERED), "lower_bound": found.lower, "upper_bound": found.upper,
        "wrong_executions": [one.as_json() for one in found.wrong],
        "boundaries": [
            {"limit": side.name, "currency": side.currency, "side": side.side, "covered": side not in left}
            for side in sorted(found.covered | left)
        ],
        "simulated": list(NAMES) if job.simulate_systems else [],
        "sandbox": sorted(name.removesuffix("_url") for name in job.sandbox if name.endswith("_url")),
        "cases_file": file.name, "cases_digest": file.digest,
        "results": [
            {"case": case.id, "where": case.where, "result": found.results[case.id], "wanted": str(case.want),
             "came_to": str(found.seen[case.id]) if case.id in found.seen else "nothing"}
            for case in file.cases
        ],
    }  # fmt: skip

"""`python -m worker.gates`: one launch gate run. The request is JSON on standard input, the report goes to standard output.

Exit status: 0 with a report, whether the gate passed or not; 2 without one, with one line on standard error.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import orjson
import structlog

from sentinel.core.errors import SentinelError
from sentinel.platform.command_line import InvalidUsage
from sentinel.platform.outside_systems import NEVER_TRIED
from sentinel.policy.errors import PolicyError
from worker.gates.account_history import AccountHistoryFailed
from worker.gates.cases import read_cases
from worker.gates.judge import judge, report_of
from worker.gates.replay import replay
from worker.gates.run_request import RunRequest, read_request
from worker.gates.wrong_executions import wrong_executions
from worker.refunds.ledger import LedgerUnavailable
from worker.refunds.workflow.routes import FILE_NAME, Routes
from worker.settlement.registry import system_names


def main() -> int:
    """Run the request on standard input; return the exit status."""
    # Logs go to standard error: standard output has only the report.
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    data = sys.stdin.buffer.read()
    if not data:
        return 2  # the parent process ended or gave up before it sent a request
    job = read_request(data)
    try:
        _refuse_untried(job)
        file = read_cases(job.cases)
        if file.scenario != job.scenario:
            raise PolicyError(f"is about {file.scenario}, not {job.scenario}", file=str(job.cases))
        with tempfile.TemporaryDirectory(prefix="sentinel-gate-") as folder:
            found = replay(job, file, Path(folder))
    except (SentinelError, AccountHistoryFailed, LedgerUnavailable) as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    wrong = wrong_executions(file, found.executed, found.moved)
    judgement = judge(job, file, found.seen, wrong, executed=found.executed, day_changed=found.day_changed)
    sys.stdout.buffer.write(orjson.dumps(report_of(job, file, judgement)))
    return 0


def _refuse_untried(job: RunRequest) -> None:
    """Raise `InvalidUsage` if every branch of the switch settles in systems that a gate cannot try."""
    routes = Routes.load(job.policies_dir / FILE_NAME, switches=None, systems=system_names()).all
    settled = {route.settles_to for route in routes if route.switch == job.switch and route.to_person is None}
    if settled and settled <= set(NEVER_TRIED):
        raise InvalidUsage(f"{job.switch} settles in {', '.join(sorted(settled))}, which a launch gate cannot test")


if __name__ == "__main__":
    sys.exit(main())

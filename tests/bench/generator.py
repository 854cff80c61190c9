"""Generators of load over HTTP: wrk where it is installed, else our own in Python; one run takes the same for all."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.load import run_load
from tests.bench.templates import ACCOUNTS, Template

SCRIPT = Path(__file__).parent / "wrk.lua"
HOW_TO_GET = (
    "wrk is not installed (on Debian: apt-get install wrk); our own generator in Python asks instead, for all alike"
)


@dataclass(frozen=True)
class Measured:
    """What a closed loop over a fixed number of connections saw; `cpu_seconds` are the generator's own, `apart` when it is a program of its own."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    cpu_seconds: float
    apart: bool = True

    @property
    def per_second(self) -> float:
        """Answered requests a second."""
        return self.requests / self.seconds

    def each(self, spent: float) -> float:
        """What was spent, by request. Raises `WrongAnswers` where nothing was answered."""
        if not self.requests:
            raise WrongAnswers(f"nothing was answered within {self.seconds:.0f} s")
        return spent / self.requests


class WrongAnswers(SystemExit):
    """Something was not answered with 200."""


def has_wrk() -> bool:
    """Whether wrk can be used here."""
    return shutil.which("wrk") is not None


def generate(port: int, template: Template, *, connections: int, seconds: int) -> Measured:
    """Ask for so many seconds on keep-alive connections to this machine. Raises `WrongAnswers`."""
    return (_by_wrk if has_wrk() else _by_python)(port, template, connections, seconds)


def _by_wrk(port: int, template: Template, connections: int, seconds: int) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        for place, text in enumerate(template.requests):
            (Path(folder) / f"{place}.http").write_bytes(text.encode())
        before = children_cpu_seconds()
        ran = subprocess.run(
            ["wrk", "-t", "1", "-c", str(connections), "-d", f"{seconds}s", "--timeout", "10s", "-s", str(SCRIPT),
             f"http://127.0.0.1:{port}", "--", folder, str(ACCOUNTS), str(template.wrap)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        cpu_seconds = children_cpu_seconds() - before
    told = re.search(r"^measured (\d+) (\d+) (\d+) (\d+) (\d+)$", ran.stdout, re.MULTILINE)
    if ran.returncode or told is None:
        raise SystemExit(f"wrk failed: {ran.stderr.strip() or ran.stdout.strip()}")
    requests, micros, p50, p99, wrong = map(int, told.groups())
    if wrong:
        raise WrongAnswers(f"{wrong} of {requests} requests were not answered with 200")
    return Measured(requests, micros / 1e6, p50 / 1000, p99 / 1000, cpu_seconds)


def children_cpu_seconds() -> float:
    """CPU seconds of the programs that this one started and that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _by_python(port: int, template: Template, connections: int, seconds: int) -> Measured:
    before = time.process_time()
    result = run_load(("127.0.0.1", port), template.filled(), connections=connections, seconds=seconds, warm_seconds=0)
    cpu_seconds = time.process_time() - before
    if wrong := {status: n for status, n in result.statuses.items() if status != 200}:
        raise WrongAnswers(f"answers other than 200: {wrong}")
    return Measured(
        len(result.latencies),
        result.seconds,
        result.percentile(0.50),
        result.percentile(0.99),
        cpu_seconds,
        apart=False,
    )


def ask_each(port: int, template: Template) -> None:
    """Ask each request before `wrap` once, so that from then on all are repeats. Raises `WrongAnswers`."""
    all_of_them = iter([template.at(number) for number in range(template.wrap)])
    result = run_load(("127.0.0.1", port), all_of_them, connections=8, seconds=60, warm_seconds=0)
    if result.statuses != {200: template.wrap}:
        raise WrongAnswers(f"answers other than {template.wrap} times 200: {result.statuses}")

"""Programs that begin with everything imported end with the test process that started them, however that ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.served_programs import eventually
from tests.support.warm_process import ROOT

STARTS_ONE = """
import os, subprocess, sys, time
from tests.support.warm_process import WarmProcess
nothing = subprocess.DEVNULL
program = [sys.executable, "-c", "import time; time.sleep(600)"]
started = WarmProcess(program, env=dict(os.environ), stdin=nothing, stdout=nothing, stderr=nothing, imported=("json",))
print(started.pid, flush=True)
time.sleep(600)
"""


def test_a_program_does_not_outlive_the_test_process_that_started_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_ONE],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as test_process:
        assert test_process.stdout is not None
        place = Path("/proc") / test_process.stdout.readline().strip()
        assert place.exists()
        test_process.kill()
    assert eventually(lambda: not place.exists(), within=10)

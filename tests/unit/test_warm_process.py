"""Programs that begin with everything imported end as any other does, and with the test process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.served_programs import eventually
from tests.support.warm_process import ROOT, run_warm_line, warm_line

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


ENDS = {
    "by itself": "print('done', end='')",
    "with a number": "raise SystemExit(7)",
    "with a number below zero": "raise SystemExit(-1)",
    "with a word": "raise SystemExit('refused')",
    "by Ctrl-C": "raise KeyboardInterrupt",
    "by a fault": "raise ValueError('wrong')",
    "by a signal": "import os; os.kill(os.getpid(), 15)",
    "after a thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
    "after what it does at its exit": "import atexit; atexit.register(print, 'bye')",
    "without standard output": "import sys; sys.stdout = None; sys.exit(2)",
    "with output that takes no more": "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); print('lost')",
}


def run_plain(line: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS)
def test_a_program_ends_as_if_it_had_begun_with_nothing(program: str) -> None:
    line = [sys.executable, "-c", program]
    plain = run_plain(line)
    by_command = run_plain(warm_line(line, imported=("json",), env=os.environ))
    for warm in (run_warm_line(line, env=os.environ, timeout=60, imported=("json",)), by_command):
        assert (warm.returncode, warm.stdout) == (plain.returncode, plain.stdout)
        # Of a traceback, which shows by whom it was begun, the last line.
        assert warm.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]


SAYS_HOW_IT_IS_TOLD_TO_END = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(len(sys.stdin.read())))
print(os.environ["NAMED"], os.getpid(), flush=True)
time.sleep(600)
"""


def test_a_command_hands_its_environment_its_streams_and_its_signals_on() -> None:
    line = warm_line([sys.executable, "-c", SAYS_HOW_IT_IS_TOLD_TO_END], imported=("json",), env=os.environ)
    pipe, env = subprocess.PIPE, {**os.environ, "NAMED": "by its starter"}
    for number, wanted in ((signal.SIGTERM, len("read")), (signal.SIGKILL, -signal.SIGKILL)):
        with subprocess.Popen(line, env=env, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdin is not None and process.stdout is not None
            *said, pid = process.stdout.readline().split()
            assert " ".join(said) == "by its starter"
            process.stdin.write("read")
            process.stdin.close()
            process.send_signal(number)
            assert process.wait(60) == wanted
            assert eventually(lambda pid=pid: not Path(f"/proc/{pid}").exists(), within=10)

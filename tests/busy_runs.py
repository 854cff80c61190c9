"""The whole suite, several times in a row on a machine that has other things to do: `make test-busy RUNS=10`.

Beside it each processor has one more process that only computes. A line a run: what it came to, how long it took, and how many in
a row have passed. What a run printed is in `build/busy/`. Ends with 1 when a run failed, after the others.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOGS = Path("build/busy")


@contextmanager
def busy_processors() -> Iterator[None]:
    """A process that only computes for each processor."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_once(command: list[str], log: Path) -> tuple[bool, str]:
    """(whether everything passed, pytest's last line)."""
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as suite:
        try:
            passed = suite.wait() == 0
        except BaseException:
            suite.send_signal(signal.SIGINT)  # it ends what it started; leaving the block waits for that
            raise
    told = re.findall(r"^=* *(.*(?:passed|failed|error).* in .*?) *=*$", log.read_text(errors="replace"), re.MULTILINE)
    return passed, told[-1] if told else "it did not come to an end"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="make test-busy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("pytest", nargs="*", help="pytest's arguments, after --")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    # Begun in the background by a shell this is ignored, and the suite, which is ended by it, would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    LOGS.mkdir(parents=True, exist_ok=True)
    in_a_row, failed = 0, 0
    with busy_processors():
        for number in range(1, options.runs + 1):
            began, log = time.monotonic(), LOGS / f"run-{number}.log"
            passed, told = run_once([sys.executable, "-m", "pytest", *options.pytest], log)
            in_a_row = in_a_row + 1 if passed else 0
            failed += not passed
            minutes, seconds = divmod(round(time.monotonic() - began), 60)
            print(
                f"run {number}: {told}; {minutes}:{seconds:02} in all; {in_a_row} in a row, {failed} failed; {log}",
                flush=True,
            )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

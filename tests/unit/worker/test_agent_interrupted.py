"""Ctrl-C while the refund agent is still being imported ends it without a traceback, as when the demo is stopped early."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

INTERRUPTED = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "worker.refunds.build":
            os.kill(os.getpid(), signal.SIGINT)
        return None

# Whatever this process was begun with: a shell begins what runs in the background with the signal ignored.
signal.signal(signal.SIGINT, signal.SIG_IGN if sys.argv[1] == "ignored" else signal.default_int_handler)
sys.meta_path.insert(0, Interrupt())
sys.argv[1:] = ["--help"]
runpy.run_module("worker.retail_refund_agent", run_name="__main__")
"""


@pytest.mark.parametrize(("how", "status", "helps"), [("heard", -signal.SIGINT, False), ("ignored", 0, True)])
def test_ctrl_c_during_the_imports_says_nothing(how: str, status: int, helps: bool) -> None:
    ran = subprocess.run([sys.executable, "-c", INTERRUPTED, how], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (status, "")
    assert ("--once" in ran.stdout) is helps

"""Ctrl-C while the refund agent is still being imported ends it without a traceback, as when the demo is stopped early."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.support.warm_process import run_warm_line

pytestmark = pytest.mark.slow

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


def run_begun(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end that begins with the agent imported: what is tried comes after the imports."""
    return run_warm_line([sys.executable, "-c", program, *arguments], env=os.environ, timeout=120)


HELD = """
import os, signal, sys, threading, time
from worker.retail_refund_agent import _ends_on_signal

class Agent:
    def __init__(self):
        self.stopping = threading.Event()

    def request_stop(self):
        self.stopping.set()

agent = Agent()
with _ends_on_signal(agent, unfinished=3):
    # As where the signal comes while this thread is about to wait for it.
    with agent.stopping._cond:
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        time.sleep(60)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_that_comes_while_the_run_holds_a_lock_of_its_stop_ends_it_all_the_same(name: str) -> None:
    ran = run_begun(HELD, name)
    assert (ran.returncode, ran.stderr) == (
        3,
        "error: cut off before its rows were done; their leases bring them back\n",
    )


STOPPED = """
import os, signal, threading
from worker.retail_refund_agent import _ends_on_signal

class Agent:
    def __init__(self):
        self.stopping = threading.Event()

    def request_stop(self):
        self.stopping.set()

before = signal.getsignal(signal.SIGTERM)
agent = Agent()
with _ends_on_signal(agent, unfinished=3):
    os.kill(os.getpid(), signal.SIGTERM)
    assert agent.stopping.wait(30)
assert signal.getsignal(signal.SIGTERM) is before
assert signal.set_wakeup_fd(-1) == -1
"""


def test_a_run_that_stops_in_time_ends_as_it_would() -> None:
    ran = run_begun(STOPPED)
    assert (ran.returncode, ran.stderr) == (0, "")


BETWEEN = """
import signal, sys, threading
from worker import retail_refund_agent

set_handler, number = signal.signal, getattr(signal, sys.argv[1])

def signal_at_once(which, handler):
    before = set_handler(which, handler)
    if which == number and handler is retail_refund_agent._do_nothing:
        signal.raise_signal(number)
    return before

class Agent:
    def __init__(self):
        self.stopping = threading.Event()

    def request_stop(self):
        self.stopping.set()

agent, signal.signal = Agent(), signal_at_once
with retail_refund_agent._ends_on_signal(agent, unfinished=3):
    assert agent.stopping.wait(60), "nobody heard of it"
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_that_comes_as_soon_as_it_has_its_handler_ends_the_run(name: str) -> None:
    ran = run_begun(BETWEEN, name)
    assert (ran.returncode, ran.stderr) == (0, "")


AFTERWARDS = """
import signal, sys, threading
from worker.retail_refund_agent import _ends_on_signal

set_fd, number = signal.set_wakeup_fd, getattr(signal, sys.argv[1])
heard = []

def signal_at_once(fd, **how):
    before = set_fd(fd, **how)
    if fd == -1:
        signal.raise_signal(number)
    return before

class Agent:
    def request_stop(self):
        pass

signal.signal(number, lambda *_: heard.append(number))
signal.set_wakeup_fd = signal_at_once
with _ends_on_signal(Agent(), unfinished=3):
    pass
assert heard == [number], "it was swallowed"
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_that_comes_when_the_run_is_over_is_whoevers_it_was_before(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", AFTERWARDS, name], capture_output=True, text=True, check=False, timeout=120
    )
    assert (ran.returncode, ran.stderr) == (0, "")

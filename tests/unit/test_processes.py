"""The demo's children: none is begun after the word to stop, and those that run are ended, also the passing one."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.demo.processes import DemoStopped, Processes
from sentinel.platform import log_files
from tests.support.embedded_servers import eventually

# Says that it is there, and ends only when it is killed.
STUBBORN = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; print('here', flush=True); time.sleep(60)"


@pytest.fixture
def stop() -> threading.Event:
    """What a signal sets."""
    return threading.Event()


@pytest.fixture
def processes(tmp_path: Path, stop: threading.Event) -> Iterator[Processes]:
    """No children yet; all ended afterwards."""
    made = Processes(tmp_path, stop)
    yield made
    made.stop()


def python(line: str) -> list[str]:
    return [sys.executable, "-c", line]


def began(log: Path, text: str = "here") -> bool:
    return log.exists() and text in log.read_text()


def test_a_passing_child_reads_what_it_is_given_and_its_exit_code_is_told(processes: Processes, tmp_path: Path) -> None:
    line = "import sys; print(len(sys.stdin.read())); sys.exit(3)"
    assert processes.run("one", python(line), os.environ, stdin=b"x" * 300_000) == 3
    assert (tmp_path / "one.log").read_text() == "300000\n"


def attempts(processes: Processes) -> list[str]:
    """Which ways of starting something still start it."""
    ways = {
        "start": lambda: processes.start("child", python("print('here')"), os.environ),
        "run": lambda: processes.run("passing", python("print('here')"), os.environ),
    }
    found = []
    for name, way in ways.items():
        try:
            way()
        except DemoStopped:
            continue
        found.append(name)
    return found


def test_nothing_is_begun_once_told_to_stop(processes: Processes, stop: threading.Event, tmp_path: Path) -> None:
    stop.set()
    assert (attempts(processes), list(tmp_path.glob("*.log"))) == ([], [])


def test_nothing_is_begun_once_all_were_ended(processes: Processes) -> None:
    processes.stop()
    assert attempts(processes) == []


def test_mutant_that_is_not_told_begins_both(processes: Processes) -> None:
    assert attempts(processes) == ["start", "run"]


def test_all_are_asked_at_once_and_the_stubborn_are_killed(
    processes: Processes, stop: threading.Event, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        processes.start(name, python(STUBBORN), os.environ)
    children = [child.process for child in processes._children]
    ended: list[type[BaseException]] = []

    def pass_by() -> None:
        try:
            processes.run("passing", python(STUBBORN), os.environ)
        except DemoStopped:
            ended.append(DemoStopped)

    thread = threading.Thread(target=pass_by)
    thread.start()
    while not all(began(tmp_path / f"{name}.log") for name in ("a", "b", "passing")):
        stop.wait(0.01)
    stop.set()
    processes.stop()
    thread.join()
    assert ended == [DemoStopped]
    assert all(child.returncode == -9 for child in children)


ENDLESS = "import sys, time; [(print('x' * 99 + '\\n' * 20, flush=True), time.sleep(0.01)) for _ in iter(int, 1)]"


def test_the_log_of_a_child_that_runs_for_long_stays_short(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "LOG_LIMIT_BYTES", 1000)
    log, earlier = tmp_path / "child.log", tmp_path / "child.log.1"
    processes.start("child", python(ENDLESS), os.environ)
    for _ in range(2):
        assert eventually(lambda: log.stat().st_size > 1000)
        processes.bound_logs()
        assert earlier.read_text().startswith("xxx") and earlier.stat().st_mode & 0o137 == 0
        assert eventually(lambda: began(log, "xxx"))
        assert "\0" not in log.read_text(), "it goes on at the beginning"
        earlier.unlink()

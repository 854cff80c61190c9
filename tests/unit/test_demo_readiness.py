"""A program of the demo that does not come up: its own refusal is passed on."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path

import psycopg
import pytest

from sentinel.core.errors import EngineUnavailable
from sentinel.demo.command import _no_failure_once_stopped
from sentinel.demo.processes import DemoFailed, wait_ready
from tests.support.scripted_server import ScriptedServer


class Ended:
    """Stands for the child processes: the console has ended."""

    def ended(self) -> str:
        return "console"


class Running:
    """Stands for the child processes: all of them run."""

    def ended(self) -> None:
        return None


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("starting\nError: port 7861 is already in use\n\n", ", which ends: Error: port 7861 is already in use"),
        ("", ""),
        (None, ""),
    ],
)
def test_the_last_line_of_its_log_is_told(tmp_path: Path, log: str | None, told: str) -> None:
    file = tmp_path / "console.log"
    if log is not None:
        file.write_text(log)
    with pytest.raises(DemoFailed) as caught:
        wait_ready(Ended(), {"console": ["http://127.0.0.1:1/readyz"]}, tmp_path, threading.Event())  # type: ignore[arg-type]
    assert str(caught.value) == f"console ended at once; see {file}{told}"


def test_a_program_of_this_machine_is_asked_past_the_proxy_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedServer().running() as server, ScriptedServer().running() as proxy:
        server.script = lambda asked: asked.answer(200, b"{}")
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.setattr("sentinel.demo.processes.READY_SECONDS", 10.0)
        wait_ready(Running(), {"authority": [f"{server.url}/readyz"]}, tmp_path, threading.Event())  # type: ignore[arg-type]
        assert {asked.path for asked in server.asked} == {"/readyz"} and proxy.asked == []


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_database_that_fails_during_the_start_is_told_in_one_line(is_stopped: bool, tmp_path: Path) -> None:
    """The finding: a server that did not let the demo's own logins in ended it in Python's words."""
    stop = threading.Event()
    if is_stopped:
        stop.set()
    told = pytest.raises(EngineUnavailable, match="^cannot use the demo's database: no entry for this login$")
    with nullcontext() if is_stopped else told, _no_failure_once_stopped(stop, tmp_path):
        raise psycopg.OperationalError("no entry for this login\nin its rules")

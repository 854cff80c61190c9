"""What `sentinel demo` prints when it is ready is there to be copied: nothing of it is cut, however narrow the terminal is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.demo.orders import DemoOrderSource
from sentinel.demo.summary import Ready, print_ready, reloaded_text
from sentinel.platform.resources import policies_dir

SECRET, KEY, DATABASE = (
    "s" * 64,
    "snt_live_" + "k" * 40,
    "postgresql://login:" + "p" * 43 + "@/sentinel?host=" + "h" * 60,
)
NOWHERE = "postgresql://nobody@127.0.0.1:9/x"


def ready() -> Ready:
    base = "http://127.0.0.1:786"
    source = DemoOrderSource("demo", SECRET, f"{base}2/webhooks/demo/orders")
    return Ready(f"{base}0", f"{base}1", f"{base}2", f"{base}3", "t" * 36, KEY, [], source, DATABASE, {})


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of a demo that is ready."""
    print_ready(ready(), {}, as_json=False)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("as_json", [False, True])
def test_a_demo_whose_standard_output_is_closed_goes_on(as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding: it ended in Python's words as soon as all its programs were ready."""
    with monkeypatch.context() as closed:
        closed.setattr(sys, "stdout", None)
        print_ready(ready(), {}, as_json=as_json)


@pytest.mark.parametrize("columns", ["40", "80"])
def test_no_key_secret_or_address_is_cut(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = printed(capsys)
    for name, whole in (("Agent key", KEY), ("secret", SECRET), ("Database", DATABASE), ("Tenant", "t" * 36)):
        assert any(line.strip().startswith(name) and line.endswith(" " + whole) for line in lines), name


def test_it_says_how_another_terminal_finds_the_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "an environment"))
    assert "activate" not in "".join(printed(capsys)), "none is there"
    (tmp_path / "an environment" / "bin").mkdir(parents=True)
    (tmp_path / "an environment" / "bin" / "activate").touch()
    assert f". '{tmp_path}/an environment/bin/activate'" in printed(capsys)


def test_a_reload_says_what_it_came_to(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder)
    assert "agent-actions-policy-v1" in reloaded_text(folder, NOWHERE)
    path = folder / "agent_actions.yaml"
    path.write_text(path.read_text().replace("then: ALLOW", "then: ALOW", 1))
    said = reloaded_text(folder, NOWHERE)
    assert "agent_actions.yaml:" in said
    assert 'did you mean "ALLOW"?' in said
    assert said.endswith("The policies were not reloaded; the last valid ones stay in force.")


HUNG_UP = """
import os, signal, sys
from sentinel.demo import command

def hang_up(_ports):
    os.kill(os.getpid(), signal.SIGHUP)
    sys.exit(7)

command._require_ports = hang_up
command.command(["--data-dir", sys.argv[1], "--board-port", "65000"])
"""


def test_a_reload_while_the_demo_starts_does_not_end_it(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", HUNG_UP, str(tmp_path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 7, ran.stderr

"""A command whose standard input is closed, or whose output takes no more, says so on one line and never in Python's words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.served_programs import clean_env

ENQUEUE = ("worker.cli", "enqueue", "-", "--dry-run")
VERIFY = ("sentinel.cli.main", "proof", "verify", "-")
SHOW = ("sentinel.cli.main", "policy", "show", "agent-actions")


def run(redirected: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m WORDS` with a shell's redirection."""
    line = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-m", *words]
    return subprocess.run(line, env=clean_env(**env), text=True, capture_output=True, timeout=120, check=False)


def test_closed_standard_input_is_empty() -> None:
    done = run("<&-", *ENQUEUE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 rows would be entered, 0 refused.\n", "")
    done = run("<&-", *VERIFY)
    assert done.returncode == 2 and done.stderr.startswith("Error: body: is not JSON") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [SHOW, ENQUEUE])
def test_output_that_takes_no_more_is_one_line(words: tuple[str, ...]) -> None:
    done = run("< /dev/null > /dev/full", *words)
    assert (done.returncode, done.stderr) == (1, "Error: reading or writing failed: No space left on device\n")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (VERIFY, 2),
        (("sentinel.cli.main", "nothing"), 2),
        (("sentinel.cli.main", "policy", "show", "nothing"), 1),
        (SHOW, 0),
    ],
)
def test_standard_error_that_takes_no_line_changes_no_exit_code(words: tuple[str, ...], code: int) -> None:
    """The finding: each refusal ended with 1, also wrong use (2) and a database that cannot be reached (3)."""
    done = run("< /dev/null 2> /dev/full", *words)
    assert (done.returncode, bool(done.stdout)) == (code, code == 0)
    assert run("< /dev/null > /dev/full 2>&1", *words).returncode == (code or 1)


def test_a_file_that_cannot_be_read_or_written_is_one_line(tmp_path: Path) -> None:
    done = run("", "worker.cli", "enqueue", "/proc/self/mem", "--dry-run")
    assert (done.returncode, done.stderr) == (1, "Error: reading or writing failed: Input/output error\n")
    drawn = tmp_path / "ledger-states.md"
    drawn.mkdir()
    done = run("", "worker.cli", "states", "draw", "--folder", str(tmp_path))
    assert (done.returncode, done.stderr) == (1, f"Error: {drawn}: Is a directory\n")


def test_so_it_is_where_standard_output_is_closed(tmp_path: Path) -> None:
    drawn = tmp_path / "ledger-states.md"
    drawn.mkdir()
    done = run(">&-", "worker.cli", "states", "draw", "--folder", str(tmp_path))
    assert (done.returncode, done.stderr) == (1, f"Error: {drawn}: Is a directory\n")


SIDE_BY_SIDE = """
from sentinel.platform.serving.process_group import run_side_by_side

run_side_by_side([lambda: None, lambda: None])
"""


def test_servers_of_one_program_end_without_a_word_where_standard_output_is_closed() -> None:
    """The finding: each ended in Python's words, and with 1, although it had been told to stop."""
    line = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", SIDE_BY_SIDE]
    done = subprocess.run(line, env=clean_env(), text=True, capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (1, ""), "1: they ended by themselves"


@pytest.mark.parametrize(("encoding", "shown"), [("latin-1", "\\u2026 and 1 more."), ("utf-8:strict", "… and 1 more.")])
def test_a_character_that_the_terminal_does_not_have_is_escaped(tmp_path: Path, encoding: str, shown: str) -> None:
    rows = "".join(f"r{number},r{number},1,EUR\n" for number in range(11))
    (tmp_path / "rows.csv").write_text(f"ledger_entry_id,refund_id,amount,currency\n{rows}")
    words = ("worker.cli", "enqueue", str(tmp_path / "rows.csv"), "--dry-run")
    done = run("", *words, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert shown in done.stdout.splitlines()

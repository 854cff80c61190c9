"""A misspelt command is answered with the nearest one, also where commands are loaded only when they are called."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from sentinel.cli.main import main
from worker.cli import main as worker


@pytest.mark.parametrize(
    ("said", "meant"), [(("polcy", "check"), "policy"), (("approval",), "approvals"), (("policy", "chek"), "check")]
)
def test_the_nearest_command_is_named(said: tuple[str, ...], meant: str) -> None:
    done = CliRunner().invoke(main, said)
    assert done.exit_code == 2
    assert f"Did you mean '{meant}'?" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_command_near_none_is_refused_in_one_line() -> None:
    done = CliRunner().invoke(main, ["zzz"], prog_name="sentinel")
    assert (done.exit_code, done.stderr) == (2, "Error: No such command 'zzz' (see 'sentinel --help')\n")


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize(
    ("program", "words"),
    [
        (main, ("doctor", "--minutes")),
        (main, ("gates", "run", "fee", "--timeout")),
        (worker, ("order-review", "replay", "-", "--rate")),
    ],
)
def test_a_number_that_is_not_finite_is_refused_in_one_line(
    program: click.Command, words: tuple[str, ...], number: str
) -> None:
    done = CliRunner().invoke(program, [*words, number])
    assert done.exit_code == 2, done.output
    assert done.stderr.count("\n") == 1 and f"Invalid value for '{words[-1]}'" in done.stderr

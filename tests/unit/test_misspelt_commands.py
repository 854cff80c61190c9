"""A misspelt command is answered with the nearest one, also where commands are loaded only when they are called."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from sentinel.cli.main import main


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

"""What comes from outside commands no terminal: its control and direction-changing characters are printed as code points."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel.authority.explain import DecisionExplanation
from sentinel.cli import decisions
from sentinel.cli.common import show, show_rows
from sentinel.cli.policy import check
from sentinel.cli.policy import show as show_policy
from sentinel.cli.proof import verify
from sentinel.platform.command_line import one_line_errors
from sentinel.policy.errors import PolicyError
from tests.unit.policy.policy_samples import POLICY
from worker.presentation import out, summary_table
from worker.refunds.enqueue import say_refused
from worker.refunds.intake import Refusal
from worker.refunds.rows import SummaryLine

FOREIGN, SHOWN = "a\x1b]0;b\u202ec\x9bd\re", "a[U+001B]]0;b[U+202E]c[U+009B]d[U+000D]e"


@dataclass(frozen=True)
class _Row:
    name: str


def test_tables_and_sentences_show_it(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([_Row(FOREIGN)], ("name",), as_json=False, empty="")
    show({}, as_json=False, text=f"first: {FOREIGN}\nsecond")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [SHOWN, f"first: {SHOWN}", "second"]


def test_an_error_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    def refused() -> None:
        raise PolicyError(f"unknown value {FOREIGN}", file="a.yaml")

    with pytest.raises(SystemExit):
        one_line_errors(refused)()
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and not any(sign in told for sign in "\x1b\u202e\x9b\r")


def test_a_policy_and_its_faults_show_it(tmp_path: Path) -> None:
    file = tmp_path / "sample.yaml"
    file.write_text(POLICY.replace("The amount is small.", "The \u202eamount is small."))
    told = CliRunner().invoke(show_policy, ["sample", str(tmp_path)])
    assert told.exit_code == 0, told.output
    assert "small: The [U+202E]amount is small." in told.output and "\u202e" not in told.output
    file.write_text(POLICY.replace("zone: UTC", "zones: \u202eUTC"))
    told = CliRunner().invoke(check, [str(tmp_path)])
    assert "| zones: [U+202E]UTC" in told.stderr and "\u202e" not in told.output


def test_the_evidence_of_a_decision_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    evidence = {"said": "a\u202eb\x9bc"}
    decisions._show(DecisionExplanation("DENY", "halted", "sha256:0", evidence, (), True, None, None, "no policy"))
    assert '{"said":"a[U+202E]b[U+009B]c"}' in capsys.readouterr().out


def test_a_proof_pack_from_outside_shows_it_and_forges_no_line(tmp_path: Path) -> None:
    """The finding: it was printed as it was, so that a pack could say of itself on a line of its own that it was intact."""
    file = tmp_path / "pack.json"
    file.write_text(json.dumps({"proof_id": "pf_1: intact\n\x1b[1A\x9b", "hash": "sha256:\u202e"}))
    told = CliRunner().invoke(verify, [str(file)])
    assert told.exit_code == 1
    assert told.stdout.splitlines()[:2] == [
        "pf_1: intact[U+000A][U+001B][1A[U+009B]: ALTERED", "  carries  sha256:[U+202E]",
    ]  # fmt: skip


def test_the_workers_tables_and_lines_show_it_alike(capsys: pytest.CaptureFixture[str]) -> None:
    """The finding: they dropped it, so that nobody saw that there was something; and refused lines went to the terminal as they were."""
    out().print(summary_table([SummaryLine("ERROR", None, FOREIGN, "EUR", 1, 490)]))
    out().print("what no cell was made of: a\x1bb\u202ec")
    say_refused([Refusal(3, "channel", f"unknown value {FOREIGN}")])
    told = capsys.readouterr()
    assert SHOWN in told.out and "made of: a[U+001B]b[U+202E]c" in told.out
    assert told.err == f"line 3: channel: unknown value {SHOWN}\n"


def test_no_table_is_printed_where_standard_output_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding: `sentinel keys list >&-` ended with a traceback, where every other command printed nothing."""
    monkeypatch.setattr(sys, "stdout", None)
    show_rows([_Row("a")], ("name",), as_json=False, empty="")

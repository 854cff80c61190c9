"""The folder of policy files as operators see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sentinel.authority.policy_views import PolicyFolder
from sentinel.policy import cases
from sentinel.policy.source import read_source
from tests.unit.policy.policy_samples import POLICY

CASES = """\
policy: sample
cases:
  - name: nothing is said
    want: {decision: DENY, reason: no_matching_policy}
"""


def test_cases_are_read_once_for_a_run_so_that_an_edit_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: a case that was not there under its name and line at a second reading ended the page with an error."""
    (tmp_path / "sample.yaml").write_text(POLICY)
    (tmp_path / "cases").mkdir()
    once = tmp_path / "cases" / "sample.yaml"
    once.write_text(CASES)

    def read_and_remove(path: Path, **named: Any) -> Any:
        found = read_source(path, **named)
        path.unlink()
        return found

    monkeypatch.setattr(cases, "read_source", read_and_remove)
    run = PolicyFolder(tmp_path).run()
    assert run.fault is None
    assert [result.name for result in run.results["sample"]] == ["nothing is said"]

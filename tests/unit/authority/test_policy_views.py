"""The folder of policy files as operators see it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from sentinel.authority.policy_views import PolicyFolder
from tests.unit.policy.policy_samples import POLICY

CASES = """\
policy: sample
cases:
  - name: nothing is said
    want: {decision: DENY, reason: no_matching_policy}
"""


def test_cases_are_read_once_for_a_run_so_that_an_edit_meanwhile_is_no_error(tmp_path: Path) -> None:
    """The finding: a case that was not there under its name and line at a second reading ended the page with an error."""
    (tmp_path / "sample.yaml").write_text(POLICY)
    (tmp_path / "cases").mkdir()
    once = tmp_path / "cases" / "sample.yaml"
    os.mkfifo(once)  # gives what is written into it to one reader
    writer = threading.Thread(target=once.write_text, args=(CASES,), daemon=True)
    writer.start()
    run = PolicyFolder(tmp_path).run()
    writer.join(timeout=10)
    assert run.fault is None
    assert [result.name for result in run.results["sample"]] == ["nothing is said"]

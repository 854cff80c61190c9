"""A reload of policies that is refused declares nothing: newer texts may be in force by now."""

from __future__ import annotations

import shutil
from pathlib import Path

from sentinel.authority.serving import _reload_policies
from sentinel.platform.resources import policies_dir
from sentinel.policy.library import ReloadablePolicies


def test_only_a_reload_that_took_the_folder_says_so(tmp_path: Path) -> None:
    """The finding: after a refused one the old texts were declared again, over those of another authority."""
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder)
    policies = ReloadablePolicies(folder)
    assert _reload_policies(policies, lambda _: None) is True
    (folder / "retail_refund.yaml").write_text("policy: 1")
    assert _reload_policies(policies, lambda _: None) is False

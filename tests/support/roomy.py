"""The shipped policies with room in their totals and breakers, for tests and measurements of something else at full speed.

Everything but the numbers of who asks (tenant, agent, key) is as shipped; what those numbers do is tested where they stand
(`integration/authority/test_velocity.py`, `policies/cases`).
"""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import yaml

from sentinel.platform.resources import policies_dir
from sentinel.policy.library import NOT_POLICIES
from sentinel.policy.model import SUBJECTS

COUNT, AMOUNT = 1_000_000_000, "1000000000.00"


def roomy_policies(folder: Path, *, accounts: bool = False) -> Path:
    """A copy of the shipped folder in `folder`/policies, where no total and no breaker is met, nor with `accounts` any limit."""
    made = folder / "policies"
    shutil.copytree(policies_dir(), made)
    for path in made.glob("*.yaml"):
        if path.name not in NOT_POLICIES:
            path.write_text(_roomy_text(path.read_text(), accounts))
    return made


@functools.cache
def _roomy_text(text: str, accounts: bool) -> str:
    return yaml.safe_dump(_roomy(yaml.safe_load(text), accounts), sort_keys=False)


def _roomy(policy: dict[str, Any], accounts: bool) -> dict[str, Any]:
    for limit in policy.get("limits", ()):
        if accounts or set(limit["per"]) <= {*SUBJECTS, "currency"}:
            limit["cap"] = dict.fromkeys(limit["cap"], AMOUNT)
    for breaker in policy.get("breakers", ()):
        breaker |= {key: value for key, value in (("count", COUNT),) if key in breaker}
        breaker |= {"amount": dict.fromkeys(breaker["amount"], AMOUNT)} if "amount" in breaker else {}
    return policy

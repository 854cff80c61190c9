"""Checks a whole policy folder: policies, `switches.yaml` and `cases/`.

What only the worker reads (`routes.yaml`, `critic.yaml`, `order_sources.yaml`, `order_signals.yaml`, `gates/`) is checked by its own
`worker check`. A file that is not there is no fault: whoever needs it says so at its start.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from sentinel.policy.cases import read_cases
from sentinel.policy.errors import PolicyError, first_fault
from sentinel.policy.library import PolicyLibrary
from sentinel.policy.switches import FILE_NAME, read_switches


def check_folder(directory: Path) -> tuple[PolicyLibrary | None, list[PolicyError]]:
    """The policies, where each is good, and everything that is wrong: every fault of a policy, the first of any other file."""
    library, errors = PolicyLibrary.try_load(directory)
    # The names in a case cannot be checked against policies that do not compile.
    limits = None if library is None else _limits_by_policy(library)
    switches = directory / FILE_NAME
    if switches.exists():
        errors += first_fault(partial(read_switches, switches))
    cases = (path for path in (directory / "cases").glob("*") if path.suffix.lower() in (".yaml", ".yml"))
    for path in sorted(cases):
        errors += first_fault(partial(_read_cases, path, limits))
    return library, errors


def _limits_by_policy(library: PolicyLibrary) -> dict[str, tuple[str, ...]]:
    found = (one.policy for one in library.policies)
    return {policy.policy_id: tuple(limit.limit_id for limit in policy.limits) for policy in found}


def _read_cases(path: Path, limits: dict[str, tuple[str, ...]] | None) -> object:
    if path.suffix != ".yaml":
        raise PolicyError("is not read under this name", file=str(path), hint="rename it to .yaml")
    return read_cases(path, limits=limits)

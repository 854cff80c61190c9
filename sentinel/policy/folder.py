"""Checks a whole policy folder: policies, `switches.yaml` and `cases/`.

What only the worker reads (`routes.yaml`, `critic.yaml`, `order_sources.yaml`, `order_signals.yaml`, `gates/`) is checked by its own
`worker check`. A file that is not there is no fault: whoever needs it says so at its start.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from sentinel.policy.cases import read_cases
from sentinel.policy.errors import PolicyError, first_fault
from sentinel.policy.library import PolicyLibrary, check_directory
from sentinel.policy.switches import FILE_NAME, read_switches


def check_folder(directory: Path) -> list[PolicyError]:
    """Everything that is wrong, file by file: every fault of a policy, the first of any other file."""
    errors = check_directory(directory)
    # The names in a case cannot be checked against policies that do not compile.
    limits = None if errors else _limits_by_policy(directory)
    switches = directory / FILE_NAME
    if switches.exists():
        errors += first_fault(partial(read_switches, switches))
    cases = (path for path in (directory / "cases").glob("*") if path.suffix.lower() in (".yaml", ".yml"))
    for path in sorted(cases):
        errors += first_fault(partial(_read_cases, path, limits))
    return errors


def _limits_by_policy(directory: Path) -> dict[str, tuple[str, ...]]:
    found = (one.policy for one in PolicyLibrary.load(directory).policies)
    return {policy.policy_id: tuple(limit.limit_id for limit in policy.limits) for policy in found}


def _read_cases(path: Path, limits: dict[str, tuple[str, ...]] | None) -> object:
    if path.suffix != ".yaml":
        raise PolicyError("is not read under this name", file=str(path), hint="rename it to .yaml")
    return read_cases(path, limits=limits)

"""Checks a whole policy folder: policies, `switches.yaml` and `cases/`.

Files that only the worker reads (`routes.yaml`, `critic.yaml`, `order_sources.yaml`, `order_signals.yaml`, `gates/`)
are checked by `worker check`. A missing file is no fault here: the program that needs it reports it at its start.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from sentinel.policy.cases import read_cases
from sentinel.policy.errors import PolicyError, first_fault
from sentinel.policy.library import PolicyLibrary
from sentinel.policy.switches import FILE_NAME, read_switches


def check_folder(directory: Path) -> tuple[PolicyLibrary | None, list[PolicyError]]:
    """Return the policies, None unless all are valid, and the errors: every one of a policy, the first of any other file."""
    library, errors = PolicyLibrary.try_load(directory)
    # Without policies that compile, the names in cases cannot be checked.
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

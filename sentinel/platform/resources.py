"""Paths of files shipped with the program: inside the package in a wheel, else in the checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def policies_dir() -> Path:
    """The folder of policy files, with `cases/` in it."""
    return _shipped("_policies", "policies")


def roles_sql() -> Path:
    """The file of database roles and grants."""
    return _shipped("_deploy", "deploy") / "roles.sql"


def invariants_sql() -> Path:
    """The file of invariants: named queries that must return no rows."""
    return _shipped("_deploy", "deploy") / "invariants.sql"


def drawing(name: str) -> Path:
    """A drawing that was made from the code: "refund-workflow.svg" or "order-lanes.svg"."""
    return _shipped("_deploy", "deploy") / name


def _shipped(packaged: str, in_checkout: str) -> Path:
    inside = _PACKAGE / packaged
    return inside if inside.is_dir() else _PACKAGE.parent / in_checkout

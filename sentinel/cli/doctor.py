"""`sentinel doctor`: check settings, policies, database safety, invariants and checkpoints."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import psycopg

from sentinel.authority.checkpointer import compare_checkpoints
from sentinel.authority.checkpoints import CheckpointBroken
from sentinel.authority.settings import CHECKPOINTS, load_settings
from sentinel.cli.common import json_option
from sentinel.core.errors import EngineUnavailable, SentinelError
from sentinel.core.wording import counted
from sentinel.platform.command_line import FiniteRange, terminal_text
from sentinel.platform.resources import invariants_sql, policies_dir
from sentinel.policy.cases import run_cases
from sentinel.policy.folder import check_folder
from sentinel.policy.library import PolicyLibrary
from sentinel.store.address import data_dir, database_url
from sentinel.store.database import AUTHORITY, CONSOLE, ORDERS, WORKER, describe, first_line, open_connection, with_role
from sentinel.store.invariants import (
    MINUTES,
    RAN_OUT,
    SHOWN,
    InvariantResult,
    limit_statements,
    read_invariants,
    run_invariants,
)
from sentinel.store.migrate import SchemaNotReady, current_revision, require_head
from sentinel.store.safety import MissingGrant, safety_faults
from sentinel.tools.check import check_tools


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; `damaged` are the first ids of violations. With `checked` false it neither passed nor
    failed; then `ok` is false too if the check ran out of time."""

    name: str
    ok: bool
    detail: str
    damaged: tuple[str, ...] = ()
    checked: bool = True


LONGER = "; allow more with --minutes"
NO_CHECKPOINTS = (
    "not checked, without a checkpoint file nobody can tell whether the newest events were deleted with their positions,"
    " or an event's body and hash were both rewritten: set SENTINEL_CHECKPOINT_FILE or give --checkpoint"
)

LOCKS_OF_ANYBODY = "select has_function_privilege('public', 'pg_catalog.pg_advisory_lock(bigint)', 'execute')"
LOCKS_FREE = (
    "every login may take the authority's advisory locks, so that a stolen login could block all decisions: run"
    " `sentinel migrate` as a superuser, because only a superuser can revoke this right"
)


@click.command()
@click.option(
    "--checkpoint",
    "checkpoints",
    type=click.Path(path_type=Path),
    envvar="SENTINEL_CHECKPOINT_FILE",
    default=None,
    help="Checkpoint file to compare the event log with.  [SENTINEL_CHECKPOINT_FILE]",
)
@click.option(
    "--minutes",
    type=FiniteRange(min=0, min_open=True, max=10_000),
    default=MINUTES,
    show_default=True,
    help="Minutes that one check of the database may take.",
)
@json_option
def command(as_json: bool, checkpoints: Path | None, minutes: float) -> None:
    """Check settings, policies, the database's safety, every invariant and the evidence against its checkpoints.

    Read-only. Damaged records are named by their ids. Works with the login of the authority, the console, the worker or
    the intake; what that login may not read is reported as not checked, and the console's may read all of it. Exit 1
    when something is wrong, or took longer than --minutes.
    """
    kept = data_dir() / CHECKPOINTS
    if checkpoints is None and not os.environ.get("SENTINEL_DATABASE_URL") and kept.exists():
        checkpoints = kept
    with database_url() as url:
        try:
            checks = list(_examine(url, checkpoints, minutes))
        except psycopg.OperationalError as error:
            if f'role "{AUTHORITY}" does not exist' in str(error):
                raise SchemaNotReady("the database is empty: run `sentinel migrate` first") from None
            raise EngineUnavailable(f"cannot use the database at {describe(url)}: {first_line(error)}") from None
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks]))
    else:
        _print(checks)
    sys.exit(0 if all(check.ok for check in checks) else 1)


def _print(checks: list[Check]) -> None:
    for check in checks:
        mark = "BAD " if not check.ok else "ok  " if check.checked else "–   "
        click.echo(terminal_text(f"{mark} {check.name}: {check.detail}"), err=not check.ok)
    bad, unchecked = sum(not check.ok for check in checks), sum(not check.checked for check in checks)
    click.echo(
        f"{counted(len(checks), 'check')}, {f'{bad} bad' if bad else 'all well'}"
        + (f", {unchecked} not checked" if unchecked else "")
    )


def _examine(url: str, checkpoints: Path | None, minutes: float) -> Iterator[Check]:
    yield _attempt(
        "settings",
        lambda: load_settings(database_url=url, secret_keys=("unused-by-the-doctor-0123456789abcdef",)),
        "readable",
    )
    folder = Path(os.environ.get("SENTINEL_POLICIES_DIR") or policies_dir())
    library, faults = check_folder(folder)
    faults += check_tools(folder, library)
    yield Check("policies", not faults, "; ".join(fault.detail for fault in faults) or f"all compile, from {folder}")
    yield _cases(folder, library)
    with _connected(url, AUTHORITY, CONSOLE, WORKER, ORDERS) as connection:
        if current_revision(connection) is None:
            raise SchemaNotReady("the database is empty: run `sentinel migrate` first")
        schema = _attempt("schema", lambda: require_head(connection), "at this program's revision")
        yield schema
        if not schema.ok:
            yield from _of_another_schema()
            return
        unsafe = safety_faults(connection)
        yield Check(
            "database safety", not unsafe, "; ".join(unsafe) or "durable, own role, append-only triggers in place"
        )
        free = connection.execute(LOCKS_OF_ANYBODY).fetchone() != (False,)
        yield Check("locks", not free, LOCKS_FREE if free else "only the authority may take its locks")
    with _connected(url, CONSOLE, AUTHORITY, WORKER, ORDERS) as connection:
        with connection.transaction():
            limit_statements(connection, minutes)
            compared = _compared(connection, checkpoints)
        yield compared
        for verdict in run_invariants(connection, invariants_sql(), minutes=minutes):
            yield _of_invariant(verdict)


def _of_invariant(found: InvariantResult) -> Check:
    ok, more = not found.violations and not found.ran_out, LONGER if found.ran_out else ""
    return Check(found.name, ok, found.summary + more, found.damaged, checked=not found.unchecked)


def _of_another_schema() -> Iterator[Check]:
    """Yield "not checked" for each check that needs this program's schema."""
    for name in ("database safety", "locks", "checkpoints", *(one.name for one in read_invariants(invariants_sql()))):
        yield Check(name, True, "not checked, the database's schema is not the one of this program", checked=False)


def _connected(url: str, *roles: str) -> psycopg.Connection[Any]:
    """Open a connection in the first of the roles that this login may take. Raises `MissingGrant` where it may take none."""
    for number, role in enumerate(roles, 1):
        try:
            return open_connection(with_role(url, role))
        except psycopg.OperationalError as error:
            if f'permission denied to set role "{role}"' not in str(error):
                raise
            if number == len(roles):
                raise MissingGrant(
                    f"cannot use the database at {describe(url)}: its login may act as none of {', '.join(roles)}: use the login"
                    f" of the authority, the console, the worker or the intake, or `grant {CONSOLE} to <login>` as an administrator"
                ) from None
    raise AssertionError("no role was asked for")


def _compared(connection: psycopg.Connection[Any], checkpoints: Path | None) -> Check:
    """Compare the event log with the checkpoint file."""
    if checkpoints is None:
        return Check("checkpoints", True, NO_CHECKPOINTS, checked=False)
    try:
        found = compare_checkpoints(connection, checkpoints)
    except CheckpointBroken as error:
        return Check("checkpoints", False, error.detail)
    except psycopg.errors.InsufficientPrivilege as error:
        return Check("checkpoints", True, f"not checked, {first_line(error)}", checked=False)
    except psycopg.errors.QueryCanceled:
        return Check("checkpoints", False, f"not checked, {RAN_OUT}{LONGER}", checked=False)
    if not found.covered and not found.differences:
        return Check("checkpoints", True, f"not checked, {checkpoints} has no checkpoint yet", checked=False)
    if not found.differences:
        return Check("checkpoints", True, f"{checkpoints} matches the first {counted(found.covered, 'event')}")
    shown = found.differences[:SHOWN]
    more = f" and {found.found - len(shown)} more" if found.found > len(shown) else ""
    return Check("checkpoints", False, f"the evidence was changed: {', '.join(shown)}{more}", shown)


def _cases(folder: Path, library: PolicyLibrary | None) -> Check:
    try:
        report = run_cases(folder, library=library)
        if not report.results:
            return Check("policy cases", True, f"not checked, there are none in {folder / 'cases'}", checked=False)
        return Check("policy cases", report.passed, "see `sentinel policy test`")
    except SentinelError as error:
        return Check("policy cases", False, error.detail)


def _attempt(name: str, look: Callable[[], object], well: str) -> Check:
    try:
        look()
        return Check(name, True, well)
    except SentinelError as error:
        return Check(name, False, error.detail.replace("\n", "; "))

"""`sentinel doctor`: is this installation safe, and does everything hold that must?"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import click
import psycopg

from sentinel.cli.common import database_url, json_option
from sentinel.core.errors import EngineUnavailable, SentinelError
from sentinel.policy.cases import run_cases
from sentinel.policy.folder import check_folder
from sentinel.resources import invariants_sql, policies_dir
from sentinel.settings import load_settings
from sentinel.store.database import AUTHORITY, CONSOLE, describe, first_line, with_role
from sentinel.store.invariants import run_invariants
from sentinel.store.migrate import SchemaNotReady, require_head
from sentinel.store.safety import faults_of


@dataclass(frozen=True, slots=True)
class Check:
    """One thing the doctor looked at; `damaged` are the first ids of what is wrong. Not `checked` is neither well nor bad."""

    name: str
    ok: bool
    detail: str
    damaged: tuple[str, ...] = ()
    checked: bool = True


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Check settings, policies, the database's safety and every invariant. Read-only. Exit 1 when something is wrong."""
    with database_url() as url:
        try:
            checks = list(_examine(url))
        except psycopg.OperationalError as error:
            if f'role "{AUTHORITY}"' in str(error):
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
        click.echo(f"{mark} {check.name}: {check.detail}", err=not check.ok)
    bad, unchecked = sum(not check.ok for check in checks), sum(not check.checked for check in checks)
    click.echo(
        f"{len(checks)} checks, {f'{bad} bad' if bad else 'all well'}"
        + (f", {unchecked} not checked" if unchecked else "")
    )


def _examine(url: str) -> Iterator[Check]:
    yield _attempt(
        "settings",
        lambda: load_settings(database_url=url, secret_keys=("unused-by-the-doctor-0123456789abcdef",)),
        "readable",
    )
    faults = check_folder(policies_dir())
    yield Check("policies", not faults, "; ".join(fault.detail for fault in faults) or "compile")
    yield Check("policy cases", run_cases(policies_dir()).passed, "see `sentinel policy test`")
    with psycopg.connect(with_role(url, AUTHORITY), autocommit=True) as connection:
        yield _attempt("schema", lambda: require_head(connection), "at this program's revision")
        unsafe = faults_of(connection)
        yield Check(
            "database safety", not unsafe, "; ".join(unsafe) or "durable, own role, append-only triggers in place"
        )
    with psycopg.connect(with_role(url, CONSOLE), autocommit=True) as connection:
        connection.execute("set statement_timeout = '5min'")
        for verdict in run_invariants(connection, invariants_sql()):
            yield Check(
                verdict.name, not verdict.violations, verdict.told, verdict.damaged, checked=not verdict.unchecked
            )


def _attempt(name: str, look: Callable[[], object], well: str) -> Check:
    try:
        look()
        return Check(name, True, well)
    except SentinelError as error:
        return Check(name, False, error.detail.replace("\n", "; "))

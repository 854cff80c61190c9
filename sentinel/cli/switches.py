"""`sentinel switches`: list scenario switches, turn them on for a percentage of accounts, turn them off."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from sentinel.authority.gate_reports import REFUSALS, GateState
from sentinel.authority.switches import SwitchView, list_switches, turn_switch_off, turn_switch_on
from sentinel.cli.common import (
    acting_as,
    as_option,
    json_option,
    open_pool,
    print_json,
    reason_option,
    show,
    show_rows,
    tenant_of,
    tenant_option,
)  # fmt: skip
from sentinel.core.wording import counted
from sentinel.platform.command_line import InvalidUsage, OneLineErrors, terminal_text
from sentinel.platform.resources import policies_dir
from sentinel.policy.switches import DeclaredSwitches, known_switch, load_declared_switches

COLUMNS = ("switch", "on", "canary", "launch_gate", "changed")
"""Columns for people; `--json` has everything."""


@dataclass(frozen=True, slots=True)
class _TableRow:
    """A switch as a person reads it."""

    switch: str
    on: bool
    canary: str
    launch_gate: str
    changed: str


def _table_row(view: SwitchView) -> _TableRow:
    changed = (
        "–" if view.changed_at is None else f"{view.changed_at:%Y-%m-%d %H:%M}Z by {view.changed_by}: {view.reason}"
    )
    gate = "none needed" if view.gate_state is None else _gate(view.gate_state)
    return _TableRow(view.name, view.is_on, f"{view.canary_percent} %" if view.is_on else "–", gate, changed)


def _gate(state: GateState) -> str:
    """Return in words: open, or closed and why; the newest report's age and figures, and whether it is about the policy in force."""
    verdict = f"closed: {REFUSALS[state.refusal]}" if state.refusal else "open"
    if state.report_id is None:
        return verdict
    same = "made with the" if state.policy_digest == state.digest_in_force else "not made with the"
    return (
        f"{verdict}; report of {_age(state.age_seconds or 0)} ago, {state.correct} of {state.cases} right,"
        f" {counted(state.wrong_executions or 0, 'wrong execution')}, {same} policy in force"
    )


def _age(seconds: int) -> str:
    days, hours, minutes = seconds // 86400, seconds // 3600, seconds // 60
    return counted(days, "day") if days >= 2 else counted(hours, "hour") if hours >= 2 else counted(minutes, "minute")


def _declared_switches(directory: Path | None) -> DeclaredSwitches:
    return load_declared_switches(directory or policies_dir())


DIRECTORY = click.option(
    "--policies", "directory", type=click.Path(path_type=Path), envvar="SENTINEL_POLICIES_DIR",
    help="Folder with switches.yaml, the same as the authority's.",
)  # fmt: skip


@click.group(cls=OneLineErrors)
def group() -> None:
    """List scenario switches, and turn them on or off."""


@group.command("list")
@DIRECTORY
@tenant_option
@json_option
def list_(directory: Path | None, tenant: str | None, as_json: bool) -> None:
    """List every switch, and whether its launch gate lets it be turned on."""
    declared_switches = _declared_switches(directory)
    with open_pool() as pool:
        rows = list_switches(pool, tenant_of(pool, tenant), declared_switches)
    if as_json:
        print_json({"switches": rows, "fault": declared_switches.fault})
        return
    if declared_switches.fault:
        told = f"Warning: every switch is off, because the file of switches cannot be used: {declared_switches.fault}"
        click.echo(terminal_text(told), err=True)
    show_rows([_table_row(row) for row in rows], COLUMNS, as_json=False, empty="There is no switch.")


@group.command()
@click.argument("name")
@click.option(
    "--canary",
    type=click.IntRange(0, 100),
    metavar="PERCENT",
    help="Percentage of the accounts; required if the switch has a launch gate, else 100 by default.",
)
@reason_option("Reason; recorded as evidence.")
@as_option("E-mail of the administrator who turns it on.", required=True)
@DIRECTORY
@tenant_option
@json_option
def on(
    name: str, canary: int | None, reason: str, email: str, directory: Path | None, tenant: str | None, as_json: bool
) -> None:
    """Turn a switch on, or move its canary. A gated one needs a fresh passing report: `sentinel gates run --record`."""
    declared_switches = _declared_switches(directory)
    if canary is None:
        if declared_switches.fault is None and known_switch(declared_switches, name).gate is not None:
            raise InvalidUsage(f"{name} has a launch gate: give the percentage of accounts, e.g. --canary 5")
        canary = 100
    with open_pool() as pool:
        actor = acting_as(pool, tenant_of(pool, tenant), email)
        done = turn_switch_on(pool, actor, declared_switches, name, canary_percent=canary, reason=reason)
    show(done, as_json, f"{name} {'was already' if done.already else 'is'} on for {canary} % of the accounts.")


@group.command()
@click.argument("name")
@reason_option("Reason; recorded as evidence.")
@as_option("E-mail of the operator; without it, recorded as local administrator.")
@DIRECTORY
@tenant_option
@json_option
def off(name: str, reason: str, email: str | None, directory: Path | None, tenant: str | None, as_json: bool) -> None:
    """Turn a switch off, for everybody and at once."""
    with open_pool() as pool:
        actor = acting_as(pool, tenant_of(pool, tenant), email)
        done = turn_switch_off(pool, actor, _declared_switches(directory), name, reason=reason)
    show(done, as_json, f"{name} {'was already' if done.already else 'is'} off.")

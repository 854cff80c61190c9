"""Checks every file of a policies folder that the worker and the order intake read, before they start.

`routes.yaml`, `critic.yaml`, `order_sources.yaml`, `order_signals.yaml`, `gates/`, and the switches and caps that routes need. Policies
themselves are compiled by `sentinel policy check`, which runs this too. A missing file is not a fault.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

import click

from sentinel.core.errors import InvalidInput
from sentinel.platform.command_line import REFUSED, WRONG_USE, terminal_text
from sentinel.platform.resources import policies_dir
from sentinel.policy.errors import PolicyError, first_fault, nearest
from sentinel.policy.switches import FILE_NAME as SWITCHES
from sentinel.policy.switches import load_declared_switches, read_switches
from worker.critic.bounds import FILE_NAME as CRITIC
from worker.critic.bounds import Bounds
from worker.gates.cases import read_cases
from worker.orders.rule_settings import FILE_NAME as SIGNALS
from worker.orders.rule_settings import RuleSettings
from worker.orders.sources import FILE_NAME as SOURCES
from worker.orders.sources import Sources
from worker.refunds.reconcile import CAP, caps_in, is_small_refund
from worker.refunds.workflow.routes import FILE_NAME as ROUTES
from worker.refunds.workflow.routes import SCENARIOS, Routes
from worker.settlement.registry import system_names

_READERS: tuple[tuple[str, Callable[[Path], object]], ...] = (
    (SWITCHES, lambda path: read_switches(path, gates=SCENARIOS)),
    (ROUTES, lambda path: _read_routes(path)),
    (SOURCES, Sources.load),
    (SIGNALS, RuleSettings.load),
    (CRITIC, Bounds.load),
)


def check_folder(directory: Path) -> Iterator[tuple[str, list[PolicyError]]]:
    """Yield (name within the folder, a list with its first fault or an empty list) for every file that exists."""
    for name, read in _READERS:
        path = directory / name
        if path.exists():
            yield name, first_fault(partial(read, path))
    for path in sorted((directory / "gates").glob("*")):
        if path.suffix in (".yaml", ".yml", ".jsonl", ".json"):
            yield f"gates/{path.name}", first_fault(partial(_read_gate, path))


def _switches(directory: Path) -> Collection[str] | None:
    """The names of the declared switches; None where the file cannot be read, which is reported as that file's own fault."""
    return load_declared_switches(directory).switches or None


def _read_routes(path: Path) -> Routes:
    routes = Routes.load(path, switches=_switches(path.parent), systems=system_names())
    _require_caps(path, routes)
    return routes


def _require_caps(path: Path, routes: Routes) -> None:
    """Raise `PolicyError` if a policy lacks the cap of small refunds that a route pays: reconciliation would take each of them for wrong."""
    try:
        known = {scenario for file in path.parent.glob("*.yaml") for scenario, _ in caps_in(file)}
    except (PolicyError, InvalidInput):
        return  # the file's own fault, which `sentinel policy check` reports
    for route in routes.all:
        if is_small_refund(route) and route.to_person is None and route.scenario not in known:
            cap = f"{CAP}{route.scenario}"
            message = f'no policy has the number "{cap}": every refund of {route.name} would be a wrong execution'
            raise PolicyError(message, file=str(path), hint=nearest(cap, (f"{CAP}{scenario}" for scenario in known)))


def _read_gate(path: Path) -> object:
    if path.suffix not in (".yaml", ".jsonl"):
        raise PolicyError("is not read under this name", file=str(path), hint="rename it to .yaml or .jsonl")
    return read_cases(path, regular=True)


@click.command()
@click.argument(
    "directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=False,
    envvar="SENTINEL_POLICIES_DIR",
)
@click.option("--json", "as_json", is_flag=True, help="Print the faults as a JSON list.")
def check(directory: Path | None, as_json: bool) -> None:
    """Check the files of DIRECTORY that the worker and the order intake read. Exit 1 if a file has a fault, 2 if there is none of these files.

    Routes, order sources, order signals, gates, and the scenarios of the switches. DIRECTORY defaults to
    SENTINEL_POLICIES_DIR, else to the shipped policies. `sentinel policy check` does this and compiles the policies too.
    """
    folder = directory or policies_dir()
    found = list(check_folder(folder))
    if not found:
        names = ", ".join(name for name, _ in _READERS)
        if as_json:
            click.echo("[]")
        click.echo(
            f"error: nothing in {folder} is read by the worker or the order intake: no {names}, no gates/", err=True
        )
        sys.exit(WRONG_USE)
    faults = [fault for _, wrong in found for fault in wrong]
    if as_json:
        click.echo(json.dumps([fault.as_json() for fault in faults]))
    else:
        for name, wrong in found:
            for fault in wrong:
                click.echo(terminal_text(fault.explain()) + "\n", err=True)
            if not wrong:
                click.echo(f"ok  {name}")
    sys.exit(REFUSED if faults else 0)

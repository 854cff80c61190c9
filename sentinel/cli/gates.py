"""`sentinel gates`: run a scenario's launch gate on labelled cases before its switch is turned on.

The replay is a program of the worker's (`python -m worker.gates`), started as a process, because the authority never
loads the worker. It gets a scratch environment, which is removed afterwards, and reports the result of every case.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import orjson

from sentinel.authority.gate_reports import GateReport, record_gate_report
from sentinel.cli.common import (
    acting_as,
    as_option,
    import_paths,
    json_option,
    open_pool,
    print_json,
    tenant_of,
    tenant_option,
)  # fmt: skip
from sentinel.cli.gate_report_output import print_report
from sentinel.cli.scratch import ScratchEnvironment, scratch_environment
from sentinel.platform.command_line import WRONG_USE, FiniteRange, InvalidUsage, OneLineErrors
from sentinel.platform.logs import configure_logs
from sentinel.platform.outside_systems import OUTSIDE_SYSTEMS
from sentinel.platform.private_files import open_private, write_private
from sentinel.platform.resources import policies_dir
from sentinel.policy.compile import CompiledPolicy
from sentinel.policy.library import ReloadablePolicies
from sentinel.policy.model import FactType, variable_name
from sentinel.policy.switches import DeclaredSwitch, DeclaredSwitches, load_declared_switches
from sentinel.store.address import database_url

_ACTION = "refund.small."
_CAP = "cap_"


@click.group(cls=OneLineErrors)
def group() -> None:
    """Run a scenario's launch gate before its switch is turned on."""


@group.command()
@click.argument("scenario")
@click.option(
    "--cases", type=click.Path(path_type=Path, dir_okay=False), help="Labelled cases; default: the shipped ones."
)
@click.option(
    "--report",
    "report_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the report to this file.",
)
@click.option(
    "--record/--no-record",
    default=False,
    help="Record the report in the database: `sentinel switches on` needs a recorded one.",
)
@click.option(
    "--simulate-systems",
    is_flag=True,
    help="Simulate outside systems and the model critic; without it, cases that need them are not covered.",
)
@click.option(
    "--sandbox",
    is_flag=True,
    help="Use the outside systems that the worker's settings name in this environment. They must be sandboxes: every case sends real requests.",
)
@click.option(
    "--timeout",
    type=FiniteRange(min=0.1, max=86_400),
    default=300.0,
    show_default=True,
    help="Seconds that the replay may take.",
)
@as_option("E-mail of the approver who records the report; required with --record.")
@click.option("--policies", "directory", type=click.Path(path_type=Path), envvar="SENTINEL_POLICIES_DIR",
              help="Folder with the policies, routes and switches to test.")  # fmt: skip
@tenant_option
@json_option
def run(
    scenario: str, cases: Path | None, report_file: Path | None, record: bool, simulate_systems: bool, sandbox: bool, timeout: float,
    email: str | None, directory: Path | None, tenant: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Replay SCENARIO's labelled cases through the real workflow on a scratch database. Exit 1 unless the gate passes."""
    if report_file is not None:
        _refuse_unwritable(report_file)
    if record and email is None:
        raise InvalidUsage("--record needs --as EMAIL, the approver who records the report")
    if simulate_systems and sandbox:
        raise InvalidUsage(
            "--simulate-systems and --sandbox do not go together: a system is either simulated or a sandbox"
        )
    systems = {"simulate_systems": simulate_systems, "sandbox": _sandbox() if sandbox else {}}
    folder = directory or policies_dir()
    switch = _switch_of(load_declared_switches(folder), scenario)
    # A replay asks as one agent for hundreds of customers within seconds, which would exceed total limits and breakers.
    policies = ReloadablePolicies(folder, totals=False)
    policy = _policy_of(policies, switch)
    chosen = cases or _shipped_cases(folder, scenario)
    with _ended_by_signals() as raise_if_ended, contextlib.ExitStack() as stack:
        # The server that the report is recorded on is used for the scratch database as well.
        given = stack.enter_context(database_url()) if record else os.environ.get("SENTINEL_DATABASE_URL") or None
        began = time.monotonic()
        report = _replayed(given, policies, policy, switch, scenario, chosen, systems, timeout)
        raise_if_ended()
        report |= {
            "policy_id": policy.policy.policy_id, "policy_digest": policy.digest,
            "ran_at": datetime.now(UTC).isoformat(timespec="seconds"), "seconds": round(time.monotonic() - began, 2),
        }  # fmt: skip
        try:
            if record and email is not None:
                report["report_id"] = _recorded(report, folder, tenant, email)
        finally:
            # The report took minutes to make: it is shown and written even if it could not be recorded.
            print_json(report) if as_json else print_report(report)
            written = report_file is None or _is_written(report_file, report)
    if not written:
        sys.exit(WRONG_USE)
    sys.exit(0 if report["passed"] else 1)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[Callable[[], None]]:
    """Have SIGTERM and SIGHUP end the block as Ctrl-C does: the scratch database and the replay's process go with it.

    Yields a function that raises `KeyboardInterrupt` if one of them has come: Python drops what a signal's handler raises
    while a finalizer or the callback of a weak reference runs.
    """
    is_told = False

    def end(*_: object) -> None:
        nonlocal is_told
        is_told = True
        for number in taken:  # once: a second one must not interrupt the removal
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    def raise_if_ended() -> None:
        if is_told:
            raise KeyboardInterrupt

    # nohup's SIGHUP stays ignored; outside of the main thread nothing can be set.
    is_main = threading.current_thread() is threading.main_thread()
    taken = [one for one in (signal.SIGTERM, signal.SIGHUP) if is_main and signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in taken}
    try:
        yield raise_if_ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _refuse_unwritable(file: Path) -> None:
    """Raise `InvalidUsage` where the report could not be written, before anything is replayed."""
    was_there = file.exists()
    if was_there and not file.is_file():
        return  # a terminal or a pipe: opening it here would have an effect on it
    try:
        open_private(file, append=True).close()
    except OSError as error:
        raise InvalidUsage(f"--report {file}: {error.strerror}") from error
    if not was_there:
        file.unlink()


def _is_written(file: Path, report: dict[str, Any]) -> bool:
    """Write the report; False, with a line on standard error, where the file cannot be."""
    try:
        write_private(file, orjson.dumps(report, option=orjson.OPT_INDENT_2))
    except OSError as error:
        click.echo(f"Error: --report {file}: {error.strerror}", err=True)
        return False
    return True


def _switch_of(declared_switches: DeclaredSwitches, scenario: str) -> DeclaredSwitch:
    if declared_switches.fault is not None:
        raise InvalidUsage(f"the file of switches cannot be used: {declared_switches.fault}")
    gated = {one.gate: one for one in declared_switches.switches.values() if one.gate is not None}
    if scenario not in gated:
        raise InvalidUsage(f"no switch has the gate {scenario[:64]}; the gates are: {', '.join(gated)}")
    return gated[scenario]


def _policy_of(policies: ReloadablePolicies, switch: DeclaredSwitch) -> CompiledPolicy:
    found = [one for one in policies.library.policies if one.policy.policy_id == switch.policy]
    if not found:
        raise InvalidUsage(f"there is no policy {switch.policy}, which the switch {switch.name} needs")
    return found[0]


def _shipped_cases(folder: Path, scenario: str) -> Path:
    places = [folder / "gates" / f"{scenario}{suffix}" for suffix in (".yaml", ".jsonl")]
    for place in [*places, policies_dir() / "gates" / f"{scenario}.yaml"]:
        if place.is_file():
            return place
    raise InvalidUsage(f"there are no cases for {scenario} ({places[0]}): give them with --cases")


def _replayed(
    url: str | None, policies: ReloadablePolicies, policy: CompiledPolicy, switch: DeclaredSwitch, scenario: str, cases: Path,
    systems: dict[str, Any], timeout: float,
) -> dict[str, Any]:  # fmt: skip
    configure_logs("error")
    click.echo(f"replaying {cases.name} on a scratch database …", err=True)
    # The replay's process loads while the database is created.
    with _program() as program, scratch_environment(url, policies) as scratch:
        job = _job(scratch, policies.directory, policy, switch, scenario, cases) | systems
        try:
            output, _ = program.communicate(orjson.dumps(job), timeout=timeout)
        except subprocess.TimeoutExpired:
            raise InvalidUsage(
                f"the replay did not end within {timeout:g} s: allow more with --timeout, or use fewer cases"
            ) from None
        finally:
            _end(program)  # before its database is dropped, which it would report as errors
    if program.returncode != 0:
        raise InvalidUsage("the replay ended without a report")
    found: dict[str, Any] = orjson.loads(output)
    return found


@contextlib.contextmanager
def _program() -> Iterator[subprocess.Popen[bytes]]:
    """Start the replay's process; after the block it is killed and its temporary folder removed. Its standard error is ours."""
    with tempfile.TemporaryDirectory(prefix="sentinel-gate-") as folder, subprocess.Popen(
        [sys.executable, "-m", "worker.gates"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=_clean_environment() | {"TMPDIR": folder},
    ) as program:  # fmt: skip
        try:
            yield program
        finally:
            _end(program)


def _end(program: subprocess.Popen[bytes]) -> None:
    """Kill the replay unless it has ended, and wait for it."""
    program.kill()
    program.wait()


def _sandbox() -> dict[str, str]:
    """Return the settings of outside systems in this environment, by the worker's names. Raises `InvalidUsage` where there is none."""
    names = {system.url_field: system.url_variable for system in OUTSIDE_SYSTEMS}
    names |= {system.key_field: system.key_variable for system in OUTSIDE_SYSTEMS}
    names |= {
        "critic_url": "SENTINEL_CRITIC_URL",
        "critic_model": "SENTINEL_CRITIC_MODEL",
        "critic_api_key": "SENTINEL_CRITIC_API_KEY",
    }
    found = {field: os.environ[variable] for field, variable in names.items() if os.environ.get(variable)}
    if not any(field.endswith("_url") for field in found):
        needed = ", ".join(variable for field, variable in names.items() if field.endswith("_url"))
        raise InvalidUsage(f"--sandbox needs an outside system in this environment, one of {needed}")
    return found


def _clean_environment() -> dict[str, str]:
    """Return this environment without our settings, so that a replay calls none of the operator's systems."""
    ours = ("SENTINEL_", "WORKER_", "CONFIRM_", "HALTSTATE_", "SMTP_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"PYTHONPATH": import_paths()}


def _job(
    scratch: ScratchEnvironment,
    folder: Path,
    policy: CompiledPolicy,
    switch: DeclaredSwitch,
    scenario: str,
    cases: Path,
) -> dict[str, Any]:
    caps = dict(policy.policy.numbers.get(_CAP + scenario, {}))
    if not caps:
        raise InvalidUsage(
            f"policy {policy.policy.policy_id} has no {_CAP}{scenario}, so the highest amount of one refund is not known"
        )
    return {
        "scenario": scenario, "action": _ACTION + scenario, "switch": switch.name, "cases": str(cases.resolve()),
        "database_url": scratch.database_url, "tenant_id": str(scratch.tenant_id), "api_key": scratch.api_key,
        "authority_url": scratch.authority_url, "policies_dir": str(folder.resolve()), "zone": policy.policy.zone, "caps": caps,
        "windows": [window for currency in caps for window in windows_of(policy, scenario, currency)],
    }  # fmt: skip


def windows_of(policy: CompiledPolicy, scenario: str, currency: str) -> list[dict[str, Any]]:
    """Return the policy's limits that may count such a refund in the currency, each with the fields of a `Window`.

    A limit is left out only where its condition is false for every refund of this scenario; one that depends on other
    facts is unknown until a refund is tried. Raises `InvalidUsage` for a limit without a cap in the currency, because
    it denies every refund.
    """
    answers = policy.limit_conditions.answers(_known_of(policy, scenario, currency))
    found = []
    for one in policy.limits:
        if one.condition is not None and answers[one.condition] is False:
            continue
        limit = one.limit
        if currency not in limit.cap:
            raise InvalidUsage(
                f"limit {limit.limit_id} has no cap in {currency}, although {_CAP}{scenario} has one: every refund in {currency} is denied"
            )
        found.append({
            "id": limit.limit_id, "currency": currency, "kind": limit.window.value, "seconds": limit.window_seconds,
            "key_prefix": one.key_prefix, "cap_minor": limit.cap[currency],
        })  # fmt: skip
    return found


def _known_of(policy: CompiledPolicy, scenario: str, currency: str) -> dict[str, Any]:
    """Return the condition variables whose value is the same for every refund of this scenario and currency."""
    said = {("action",): _ACTION + scenario, ("params", "scenario"): scenario}
    known: dict[str, Any] = {"currency": currency, "currency_covered": currency in policy.covered}
    known |= policy.numbers.get(currency, {})
    for fact in policy.facts:
        value = said.get(fact.paths[0])
        if value is not None and fact.type is FactType.STRING:
            known |= {variable_name(fact): value, f"present.{fact.name}": True}
    return known


def _recorded(report: dict[str, Any], folder: Path, tenant: str | None, email: str) -> str:
    with open_pool() as pool:
        actor = acting_as(pool, tenant_of(pool, tenant), email)
        kept = GateReport(
            switch=report["switch"], scenario=report["scenario"], policy_digest=report["policy_digest"],
            passed=report["passed"], cases=report["cases"], correct=report["correct"],
            lower_bound_ppm=int(report["lower_bound"] * 1_000_000), wrong_executions=len(report["wrong_executions"]),
            not_covered=report["not_covered"], report=report,
        )  # fmt: skip
        return str(record_gate_report(pool, actor, load_declared_switches(folder), kept))

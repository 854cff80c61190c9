"""`sentinel policy`: check, show and test policy files. Needs no database.

Files of the folder that only the worker reads are checked by a program of the worker's, started as a process, because
the authority never loads the worker.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from sentinel.cli.common import import_paths, json_option
from sentinel.core.errors import NotFound
from sentinel.platform.command_line import terminal_text
from sentinel.platform.resources import policies_dir
from sentinel.policy.cases import CaseResult, run_cases
from sentinel.policy.compile import CompiledPolicy
from sentinel.policy.describe import describe, lint_policy
from sentinel.policy.errors import PolicyError
from sentinel.policy.folder import check_folder
from sentinel.policy.library import NOT_POLICIES, PolicyLibrary
from sentinel.tools.cases import ToolCaseResult, run_tool_cases
from sentinel.tools.check import check_tools

DIRECTORY = click.argument(
    "directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=False,
    envvar="SENTINEL_POLICIES_DIR",
)


@click.group()
def group() -> None:
    """Check, show and test policy files. DIRECTORY defaults to SENTINEL_POLICIES_DIR, else to the shipped policies."""


@group.command()
@DIRECTORY
@json_option
def check(directory: Path | None, as_json: bool) -> None:
    """Check the whole folder: compile every policy, read switches, tools and cases, and have `worker check` read the rest.

    The rest is routes.yaml, critic.yaml, order_sources.yaml, order_signals.yaml and gates/. Each fault is explained with file, line and
    rule, and with the nearest known name. Exit 1 when there is a fault.
    """
    folder = directory or policies_dir()
    library, faults = check_folder(folder)
    faults += check_tools(folder, library)
    known = {str(fault) for fault in faults}
    faults += [fault for fault in _faults_of_the_worker(folder) if str(fault) not in known]
    if as_json:
        click.echo(json.dumps([fault.as_json() for fault in faults]))
    else:
        for fault in faults:
            click.echo(terminal_text(fault.explain()) + "\n", err=True)
        if library is not None and not faults:
            _print_good(folder, library)
    sys.exit(1 if faults else 0)


def _faults_of_the_worker(folder: Path) -> list[PolicyError]:
    done = subprocess.run(
        [sys.executable, "-m", "worker.cli", "check", str(folder), "--json"], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": import_paths()},
    )  # fmt: skip
    # 2 with output: the folder has none of the worker's files, and a folder for agents alone needs none.
    if done.returncode not in (0, 1, 2) or not done.stdout:
        said = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise click.ClickException(f"the worker's files could not be checked: {said}")
    return [PolicyError.from_json(found) for found in json.loads(done.stdout)]


def _print_good(folder: Path, library: PolicyLibrary) -> None:
    for policy in library.policies:
        click.echo(f"ok  {policy.policy.version}  {policy.digest}")
        for remark in lint_policy(policy):
            click.echo(f"    note: {terminal_text(remark)}")
    others = [folder / name for name in sorted(NOT_POLICIES)]
    others += sorted(path for part in ("cases", "gates") for path in (folder / part).glob("*.*") if path.is_file())
    for path in others:
        if path.suffix in (".yaml", ".jsonl") and path.exists():
            click.echo(f"ok  {path.relative_to(folder)}")


@group.command()
@click.argument("policy_id", required=False)
@DIRECTORY
@json_option
def show(policy_id: str | None, directory: Path | None, as_json: bool) -> None:
    """Show a policy in words: facts, numbers, rules, limits, breakers and approval terms. Without POLICY_ID, every policy."""
    library = PolicyLibrary.load(directory or policies_dir())
    chosen = [one for one in library.policies if policy_id in (None, one.policy.policy_id)]
    if not chosen:
        known = ", ".join(one.policy.policy_id for one in library.policies)
        is_folder = os.path.isdir(policy_id or "")  # noqa: PTH112 - unlike a `Path`, it takes any text, however long
        hint = "; a folder is named after the policy's id" if is_folder else ""
        raise NotFound(f"there is no policy {policy_id}; there are: {known}{hint}")
    if as_json:
        click.echo(json.dumps([describe(one) for one in chosen], default=str))
        return
    for one in chosen:
        _print_policy(one)


def _print_policy(compiled: CompiledPolicy) -> None:
    """Print a policy as lines: the columns of a table would break ids, conditions and amounts over lines."""
    shown = describe(compiled)
    click.secho(terminal_text(f"{shown['label']} ({shown['policy']})"), bold=True)
    click.echo(f"version   {shown['version']}  {compiled.digest}")
    click.echo(f"actions   {', '.join(shown['actions'])}")
    click.echo(f"zone      {shown['zone']}")
    _print_part("facts", [(fact["name"], None, _fact_in_words(fact)) for fact in shown["facts"]])
    _print_part("numbers", [(name, None, _amounts_in_words(values)) for name, values in shown["numbers"].items()])
    for part in ("rules", "limits", "breakers"):
        _print_part(part, [(one["id"], one.get("says"), one["words"]) for one in shown[part]])
    if shown["once_per"]:
        click.echo(f"once      each {shown['once_per']['thing']}, by {shown['once_per']['from']}")
    click.echo(f"approval  {shown['approval']['words']}\n")


def _print_part(title: str, entries: Sequence[tuple[str, str | None, str]]) -> None:
    if entries:
        click.secho(title, bold=True)
    for name, says, words in entries:
        click.echo(terminal_text(f"  {name}: {says or words}" + (f"\n    {words}" if says else "")))


def _fact_in_words(fact: Mapping[str, Any]) -> str:
    among = f", {fact['among']}" if fact["among"] else ""
    return f"{fact['type']} from {' or '.join(fact['from'])}{among}; vouched by {fact['vouched_by']}"


def _amounts_in_words(values: Mapping[str, str]) -> str:
    return ", ".join(f"{text} {currency}" for currency, text in values.items())


@group.command()
@DIRECTORY
@json_option
def test(directory: Path | None, as_json: bool) -> None:
    """Run the cases of `cases/*.yaml` and `tool_cases.yaml`, which name the wanted operation, decision and reasons.

    Also lists what no case reaches. Exit 1 on a failure. A folder may lack either or both; where there is no case at
    all, standard error says so.
    """
    folder = directory or policies_dir()
    library = PolicyLibrary.load(folder)
    report, tools = run_cases(folder, library=library), run_tool_cases(folder, library)
    results: list[CaseResult | ToolCaseResult] = [*report.results, *tools.results]
    passed = not any(result.problem for result in results)
    if not results:
        click.echo(f"no policy case in {folder / 'cases'} and no tool case: nothing was tested", err=True)
    if as_json:
        click.echo(json.dumps({
            "passed": passed, "never_matched": list(report.never_matched),
            "cases": [{"name": r.name, "where": r.where, "decision": r.decision, "reason_code": r.reason_code, "problem": r.problem} for r in report.results],
            "tool_cases": [{"name": r.name, "where": r.where, "problem": r.problem} for r in tools.results],
        }))  # fmt: skip
    else:
        failed = [result for result in results if result.problem]
        for result in failed:
            click.echo(terminal_text(f"FAILED  {result.where}  {result.name}: {result.problem}"), err=True)
        click.echo(f"{len(results) - len(failed)} passed, {len(failed)} failed")
        effects = sum(len(rules) for rules in report.coverage.values())
        reached = effects - len(report.never_matched)
        click.echo(
            f"rule coverage: {reached} of {effects}"
            + (f"; never matched: {', '.join(report.never_matched)}" if report.never_matched else "")
        )
        if tools.unreached:
            click.echo(f"tools without a case: {', '.join(tools.unreached)}")
    sys.exit(0 if passed else 1)

"""`sentinel decisions`: explain a recorded decision and re-evaluate it from its stored facts."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import click
import orjson

from sentinel.authority.explain import DecisionExplanation, explain_decision
from sentinel.authority.policy_inspector import PolicyInspector
from sentinel.authority.reasons import reason_text
from sentinel.cli.common import as_uuid, json_option, open_pool, policies_option, tenant_of, tenant_option
from sentinel.platform.command_line import REFUSED, OneLineErrors, terminal_text
from sentinel.platform.resources import policies_dir
from sentinel.policy.explain import RuleAnswer


@click.group(cls=OneLineErrors)
def group() -> None:
    """Explain recorded decisions."""


@group.command("explain")
@click.argument("operation_id", metavar="OPERATION")
@policies_option
@tenant_option
@json_option
def explain_(operation_id: str, policies: Path | None, tenant: str | None, as_json: bool) -> None:
    """Re-evaluate a recorded operation from its stored facts under the policy that decided it.

    What the database found then (full limits, a halt, a once-key) is taken as recorded. Exit 1 where another verdict comes
    out, where it cannot be decided again, or where the stored facts are not what the decision's proof commits to.
    """
    inspector = PolicyInspector(policies or policies_dir())
    with open_pool() as pool:
        explanation = explain_decision(pool, inspector, tenant_of(pool, tenant), as_uuid(operation_id, "OPERATION"))
    if as_json:
        click.echo(orjson.dumps({**dataclasses.asdict(explanation), "agrees": explanation.agrees}).decode())
    else:
        _show(explanation)
    sys.exit(0 if explanation.agrees else REFUSED)


def _show(explanation: DecisionExplanation) -> None:
    click.echo(f"recorded   {explanation.verdict} {explanation.reason_code}: {reason_text(explanation.reason_code)}")
    click.echo(
        f"again      {f'{explanation.again.verdict} {explanation.again.reason_code}' if explanation.again else f'- ({explanation.hindrance})'}"
    )
    click.echo(
        f"committed  {'yes' if explanation.committed else 'NO: the stored facts are not what the proof commits to'}"
    )
    click.echo(f"policy     {explanation.policy_digest}")
    if explanation.evidence is not None:
        click.echo(terminal_text(f"evidence   {orjson.dumps(explanation.evidence).decode()}"))
    if explanation.tightened:
        click.echo(f"tightened  {', '.join(explanation.tightened)}")
    for rule in explanation.rules or ():
        if rule.said is not RuleAnswer.DOES_NOT_HOLD:
            told = (
                f"rule       {rule.rule_id}: {rule.said}, {rule.verdict} {rule.reason_code}: {rule.says or rule.when}"
            )
            click.echo(terminal_text(told))

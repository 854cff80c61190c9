"""`sentinel decisions`: what a recorded decision rested on, and whether the same is decided again from what is kept."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import click
import orjson

from sentinel.authority.explain import Explained, explain_decision
from sentinel.authority.policy_inspector import PolicyBook
from sentinel.cli.common import OneLineErrors, as_uuid, json_option, open_pool, tenant_of, tenant_option
from sentinel.core.decision import reason_text
from sentinel.platform.command_line import REFUSED
from sentinel.platform.resources import policies_dir
from sentinel.policy.explain import Said


@click.group(cls=OneLineErrors)
def group() -> None:
    """What recorded decisions rested on."""


@group.command("explain")
@click.argument("operation_id", metavar="OPERATION")
@click.option("--policies", type=click.Path(path_type=Path, exists=True, file_okay=False), envvar="SENTINEL_POLICIES_DIR",
              help="Where a policy's file is looked for that no authority has declared yet.")  # fmt: skip
@tenant_option
@json_option
def explain_(operation_id: str, policies: Path | None, tenant: str | None, as_json: bool) -> None:
    """Decide a recorded operation again, from its kept facts under the policy that decided it.

    What the database found then (full limits, a halt, a once-key) is taken as recorded. Exit 1 where another verdict comes
    out, where it cannot be decided again, or where what is kept is not what the decision's proof commits to.
    """
    book = PolicyBook(policies or policies_dir())
    with open_pool() as pool:
        told = explain_decision(pool, book, tenant_of(pool, tenant), as_uuid(operation_id, "OPERATION"))
    if as_json:
        click.echo(orjson.dumps({**dataclasses.asdict(told), "agrees": told.agrees}).decode())
    else:
        _show(told)
    sys.exit(0 if told.agrees else REFUSED)


def _show(told: Explained) -> None:
    click.echo(f"recorded   {told.verdict} {told.reason_code}: {reason_text(told.reason_code)}")
    click.echo(
        f"again      {f'{told.again.verdict} {told.again.reason_code}' if told.again else f'- ({told.hindrance})'}"
    )
    click.echo(f"committed  {'yes' if told.committed else 'NO: what is kept is not what the proof commits to'}")
    click.echo(f"policy     {told.policy_digest}")
    if told.evidence is not None:
        click.echo(f"evidence   {orjson.dumps(told.evidence).decode()}")
    if told.tightened:
        click.echo(f"tightened  {', '.join(told.tightened)}")
    for rule in told.rules or ():
        if rule.said is not Said.DOES_NOT_HOLD:
            click.echo(f"rule       {rule.rule_id}: {rule.said}, {rule.verdict} {rule.reason_code}")

"""`sentinel in-doubt`: list operations in doubt (started, outcome unknown) and resolve them."""

from __future__ import annotations

import click

from sentinel.authority.in_doubt import list_in_doubt, resolve_in_doubt
from sentinel.cli.common import (
    acting_as,
    as_option,
    as_uuid,
    json_option,
    open_pool,
    reason_option,
    show,
    show_rows,
    tenant_of,
    tenant_option,
)  # fmt: skip
from sentinel.core.moments import moment_of
from sentinel.platform.command_line import OneLineErrors

COLUMNS = (
    "operation_id", "agent_id", "action", "resource", "amount_minor", "currency", "in_doubt_reason", "started_at",
    "in_doubt_since", "act_until",
)  # fmt: skip
MOST = 10_000
"""The most operations that one list has."""


@click.group(cls=OneLineErrors)
def group() -> None:
    """List and resolve operations in doubt (started, outcome unknown)."""


@group.command("list")
@click.option("--limit", type=click.IntRange(1, MOST), default=200, show_default=True)
@tenant_option
@json_option
def list_(limit: int, tenant: str | None, as_json: bool) -> None:
    """List operations in doubt, those in doubt longest first; amounts are in minor units and stay held.

    Until `act_until` somebody may still act, and "not executed" is refused. The reason `contradiction` means that a
    success was reported after a person had said "not executed": that action of that agent is halted, and `resolve
    --not-executed` needs `--since`.
    """
    with open_pool() as pool:
        rows = list_in_doubt(pool, tenant_of(pool, tenant), limit=limit + 1)
    show_rows(rows, COLUMNS, as_json=as_json, empty="Nothing is in doubt.", limit=limit, most=MOST)


@group.command()
@click.argument("operation_id", metavar="OPERATION")
@click.option("--executed", is_flag=True, help="It was executed: captures its budget.")
@click.option("--not-executed", is_flag=True, help="It was not executed, which is final: releases its budget.")
@reason_option("How you know; recorded as evidence.", "--evidence")
@as_option("E-mail of the administrator who resolves it.", required=True)
@click.option(
    "--since",
    metavar="MOMENT",
    help="The operation's `in_doubt_since` when you looked at it (`list --json`); refused if it has been put in doubt again since.",
)
@tenant_option
@json_option
def resolve(
    operation_id: str,
    executed: bool,
    not_executed: bool,
    evidence: str,
    email: str,
    since: str | None,
    tenant: str | None,
    as_json: bool,
) -> None:
    """Resolve a started operation as executed or not executed.

    "Not executed" is final, and is refused while somebody may still act on the start; the refusal says until when.
    Where the reason is `contradiction`, "not executed" needs `--since`.
    """
    # Two flags and no pair of which the last counts: with both given nobody knows which is meant.
    if executed == not_executed:
        raise click.UsageError(
            f"give {'only one of ' if executed else ''}--executed {'and' if executed else 'or'} --not-executed"
        )
    looked_at = None if since is None else moment_of(since, "since")
    with open_pool() as pool:
        actor = acting_as(pool, tenant_of(pool, tenant), email)
        resolve_in_doubt(
            pool,
            actor,
            as_uuid(operation_id, "OPERATION"),
            executed=executed,
            evidence=evidence,
            in_doubt_since=looked_at,
        )
    message = f"Recorded as {'executed' if executed else 'not executed'} by {actor.name}."
    show({"operation_id": operation_id, "executed": executed}, as_json, message)

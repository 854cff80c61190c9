"""`sentinel halts`: list, set and lift halts (kill switches)."""

from __future__ import annotations

import click

from sentinel.authority.halts import (
    GLOBAL_HALT_OWNER,
    LEVELS,
    MOST_LIFTED,
    SCOPES,
    lift_halt,
    list_halts,
    list_lifted_too,
    set_halt,
)
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
from sentinel.platform.command_line import OneLineErrors

COLUMNS = ("halt_id", "scope", "target", "level", "reason", "set_by", "set_at", "lifted_by", "lifted_at")
_person_option = as_option(
    "E-mail of the operator; without it, recorded as local administrator. Not for a global halt."
)


@click.group(cls=OneLineErrors)
def group() -> None:
    """List, set and lift halts (kill switches)."""


@group.command("list")
@click.option("--all", "lifted_too", is_flag=True, help=f"Also list lifted halts, the newest {MOST_LIFTED}.")
@tenant_option
@json_option
def list_(lifted_too: bool, tenant: str | None, as_json: bool) -> None:
    """List the halts in force."""
    with open_pool() as pool:
        owner, left_out = tenant_of(pool, tenant), False
        if lifted_too:
            rows, left_out = list_lifted_too(pool, owner)
        else:
            rows = list_halts(pool, owner)
    if left_out:
        more = f"There are more lifted halts than these {MOST_LIFTED}; the events halt_set and halt_lifted record all of them."
        click.echo(more, err=True)
    show_rows(rows, COLUMNS, as_json=as_json, empty="Nothing is halted.")


@group.command("set")
@click.option("--scope", type=click.Choice(SCOPES), required=True, help="What to stop; global stops every tenant.")
@click.option(
    "--target", default="", help='The agent, action (or "refund.*") or scenario; for agent_action "AGENT ACTION".'
)
@click.option(
    "--level", type=click.Choice(LEVELS), default="kill", show_default=True, help="What agents see in their heartbeat."
)
@reason_option("Reason; recorded with the halt.")
@_person_option
@tenant_option
@json_option
def set_(
    scope: str, target: str, level: str, reason: str, email: str | None, tenant: str | None, as_json: bool
) -> None:
    """Put a halt in force; nothing that it covers is allowed or started until it is lifted."""
    with open_pool() as pool:
        # A global halt belongs to no tenant, so that in an emergency nobody has to name one.
        owner = GLOBAL_HALT_OWNER if scope == "global" and email is None else tenant_of(pool, tenant)
        actor = acting_as(pool, owner, email)
        done = set_halt(pool, actor, scope=scope, target=target, level=level, reason=reason)
    show(done, as_json, f"{'Already in force' if done.already else 'In force'}: {done.halt_id}")


@group.command()
@click.argument("halt_id", metavar="ID")
@reason_option("Reason; recorded as evidence.")
@_person_option
@tenant_option
@json_option
def lift(halt_id: str, reason: str, email: str | None, tenant: str | None, as_json: bool) -> None:
    """Lift a halt."""
    named = as_uuid(halt_id, "ID")
    with open_pool() as pool:
        is_global = email is None and any(one.halt_id == named for one in list_halts(pool, GLOBAL_HALT_OWNER))
        actor = acting_as(pool, GLOBAL_HALT_OWNER if is_global else tenant_of(pool, tenant), email)
        lift_halt(pool, actor, named, reason=reason)
    show({"halt_id": halt_id, "lifted": True}, as_json, "Lifted.")

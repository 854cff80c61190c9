"""`sentinel approvals`: list pending approvals, approve or reject them in an operator's name."""

from __future__ import annotations

import sys
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime

import click

from ops_console.accounts.collect_change import collect_change
from sentinel.authority.actor import ON_THE_MACHINE, Actor
from sentinel.authority.approval_queue import Cursor, list_approvals, pending_page
from sentinel.authority.approvals import (
    APPROVE,
    HANDLED,
    REJECT,
    ApprovalRow,
    earlier_votes,
    known_approval,
    resolve_approval,
    votes,
)
from sentinel.authority.keys import find_key_by_id
from sentinel.authority.protected_changes import approved_text, change_text, outcome_text
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
from sentinel.core.errors import Conflict, Forbidden, NotFound
from sentinel.core.money import Money
from sentinel.platform.command_line import InvalidUsage, OneLineErrors
from sentinel.store.database import Pool

COLUMNS = ("approval_id", "status", "action", "resource", "amount", "reasons", "people", "offers", "expires_at")
"""Columns for people; `--json` has everything."""
MOST = 500
"""The most approvals that one list has."""
_decider_option = as_option("E-mail of the operator who decides.", required=True)
_digest_option = click.option(
    "--digest", help="The approval's digest when you looked at it (`list --json`); refused if it is another one now."
)


@dataclass(frozen=True, slots=True)
class _TableRow:
    """An approval as a person reads it."""

    approval_id: uuid.UUID
    status: str
    action: str
    resource: str
    amount: str
    reasons: list[str]
    people: str
    offers: list[str]
    expires_at: datetime


def _table_row(row: ApprovalRow) -> _TableRow:
    amount = "–" if row.amount_minor is None or row.currency is None else str(Money(row.amount_minor, row.currency))
    people = f"{row.approvals_given} of {row.required_people} ({row.required_role})"
    return _TableRow(
        row.approval_id,
        row.shown_status,
        row.action,
        row.resource,
        amount,
        row.reasons,
        people,
        row.offers,
        row.expires_at,
    )


@click.group(cls=OneLineErrors)
def group() -> None:
    """List approvals, approve or reject them."""


@group.command("list")
@click.option(
    "--status",
    type=click.Choice(["pending", "approved", "rejected", "handled", "expired"]),
    help="Only approvals with this status.",
)
@click.option("--agent", metavar="NAME", help="Only approvals that this agent asked for.")
@click.option("--limit", type=click.IntRange(1, MOST), default=50, show_default=True)
@tenant_option
@json_option
def list_(status: str | None, agent: str | None, limit: int, tenant: str | None, as_json: bool) -> None:
    """List approvals, newest first. With --json amounts are in minor units."""
    with open_pool() as pool:
        # An approval that a person handled is stored as rejected, because its agent gets a DENY, and shown as handled.
        handled = {"handled": True, "rejected": False}.get(status or "")
        kept = "rejected" if handled else status
        rows = list_approvals(
            pool, tenant_of(pool, tenant), status=kept, handled=handled, agent_id=agent, limit=limit + 1
        )
    show_rows(
        rows if as_json else [_table_row(row) for row in rows], COLUMNS, as_json=as_json, empty="Nothing to show.", limit=limit, most=MOST
    )  # fmt: skip


@group.command("show")
@click.argument("approval_id", metavar="ID")
@tenant_option
@json_option
def show_(approval_id: str, tenant: str | None, as_json: bool) -> None:
    """Show one approval with its votes, also those on earlier approvals of the same operation."""
    with open_pool() as pool:
        tenant_id, wanted = tenant_of(pool, tenant), as_uuid(approval_id, "ID")
        row = known_approval(pool, tenant_id, wanted)
        said, before = votes(pool, tenant_id, wanted), earlier_votes(pool, tenant_id, wanted)
    lines = [f"{name}: {_text(value)}" for name, value in asdict(_table_row(row)).items()]
    if row.change:
        lines = [change_text(row.change), f"requested by: {row.requested_by or ON_THE_MACHINE}", *lines, row.change]
    if row.outcome:
        lines.append(f"result: {outcome_text(row.outcome)}")
    lines += [
        f"{vote.operator}: {vote.verdict}, {vote.reason}{'' if vote.counts else '; no longer counts'}" for vote in said
    ]
    lines += [
        f"{vote.operator}, on an earlier approval ({vote.required_people} with the role {vote.required_role} needed): {vote.verdict},"
        f" {vote.reason}; {'counts' if vote.counts else 'does not count'} here"
        for vote in before
    ]
    as_data = {
        **asdict(row),
        "votes": [asdict(vote) for vote in said],
        "earlier_votes": [asdict(vote) for vote in before],
    }
    show(as_data, as_json, "\n".join(lines))


def _text(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def _decide(
    verdict: str,
    approval_id: str,
    email: str,
    reason: str,
    digest: str | None,
    tenant: str | None,
    as_json: bool,
    reference: str | None = None,
) -> None:
    with open_pool() as pool:
        actor = acting_as(pool, tenant_of(pool, tenant), email)
        wanted = as_uuid(approval_id, "ID")
        row = known_approval(pool, actor.tenant_id, wanted)
        # Without --digest the vote is bound to the digest that is printed afterwards.
        bound = digest or row.digest
        done = resolve_approval(pool, actor, wanted, verdict=verdict, reason=reason, digest=bound, reference=reference)
    message = f"{done.result.capitalize()} as {actor.name}."
    if row.change and done.result == "approved":
        message += f" {approved_text(done.outcome)}"
    if done.result == "recorded":
        message = f"Recorded as {actor.name}: {done.approvals_given} of {done.people_required} people have approved."
    show({**asdict(done), "digest": bound}, as_json, f"{message}\nDigest: {bound}")


@group.command()
@click.argument("approval_id", metavar="ID")
@_decider_option
@reason_option("Reason; recorded with the approval.")
@_digest_option
@tenant_option
@json_option
def approve(approval_id: str, email: str, reason: str, digest: str | None, tenant: str | None, as_json: bool) -> None:
    """Approve, as a local administrator for the named operator; recorded as such."""
    _decide(APPROVE, approval_id, email, reason, digest, tenant, as_json)


@dataclass(frozen=True, slots=True)
class _Rejections:
    """The result of rejecting one agent's or key's pending approvals: how many were rejected, and reason → how many were not."""

    rejected: int
    left: dict[str, int]


_STEP = 200
"""How many approvals are looked up at a time; each is decided in a transaction of its own."""


def _reject_each(
    pool: Pool, actor: Actor, *, agent_id: str | None, principal_id: uuid.UUID | None, reason: str, notify: Callable[[int], None]
) -> _Rejections:  # fmt: skip
    """Reject what an agent or a principal asked for and is pending, one by one; changes of people and keys are skipped.

    `notify` is called with how many were rejected so far. Approvals that are asked for meanwhile may stay pending.
    Raises `Forbidden` where the actor may not decide approvals.
    """
    actor.must_be("approver")
    rejected, left = 0, Counter[str]()
    after: Cursor | None = None
    while rows := pending_page(
        pool, actor.tenant_id, actor.operator_id, kind=None, after=after, limit=_STEP, agent_id=agent_id, principal_id=principal_id
    ):  # fmt: skip
        for row in rows:
            if row.kind == "change":
                continue
            try:
                resolve_approval(pool, actor, row.approval_id, verdict=REJECT, reason=reason, digest=row.digest)
                rejected += 1
            except (Conflict, Forbidden, NotFound) as error:
                left[error.detail] += 1
        after = rows[-1].risk_rank, rows[-1].expires_at, rows[-1].approval_id
        notify(rejected)
    return _Rejections(rejected, dict(left))


def _reject_pending(
    agent: str | None, key_id: str | None, email: str, reason: str, tenant: str | None, as_json: bool
) -> None:
    with open_pool() as pool:
        actor = acting_as(pool, tenant_of(pool, tenant), email)
        principal_id = None
        if key_id is not None:
            key = find_key_by_id(pool, actor.tenant_id, as_uuid(key_id, "--key"))
            if key is None:
                raise NotFound("there is no key with this id")
            principal_id = key.principal_id
        done = _reject_each(
            pool, actor, agent_id=agent, principal_id=principal_id, reason=reason,
            notify=lambda rejected: click.echo(f"{rejected:,} rejected …", err=True),
        )  # fmt: skip
    told = [f"{done.rejected:,} rejected as {actor.name}."]
    told += [f"{number:,} not rejected: {why}" for why, number in done.left.items()]
    show(done, as_json, "\n".join(told))
    sys.exit(1 if done.left else 0)


@group.command()
@click.argument("approval_id", metavar="[ID]", required=False)
@click.option("--agent", metavar="NAME", help="Instead of ID: every pending approval that this agent asked for.")
@click.option(
    "--key", "key_id", metavar="KEY_ID", help="Instead of ID: every pending approval that this key asked for, also before a rotation."
)  # fmt: skip
@_decider_option
@reason_option("Reason; recorded with the approval and sent to the agent.")
@_digest_option
@tenant_option
@json_option
def reject(
    approval_id: str | None, agent: str | None, key_id: str | None, email: str, reason: str, digest: str | None,
    tenant: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Reject, as a local administrator for the named operator; recorded as such.

    With --agent or --key each pending approval is rejected separately; exit 1 if some were not. Revoke the key first:
    approvals that are asked for meanwhile may stay pending.
    """
    if [approval_id, agent, key_id].count(None) != 2:
        raise InvalidUsage("give exactly one of ID, --agent and --key")
    if approval_id is not None:
        return _decide(REJECT, approval_id, email, reason, digest, tenant, as_json)
    if digest is not None:
        raise InvalidUsage("--digest can only be used with ID")
    return _reject_pending(agent, key_id, email, reason, tenant, as_json)


@group.command()
@click.argument("approval_id", metavar="ID")
@_decider_option
@reason_option("Reason; recorded with the approval and sent to the agent.")
@reason_option("Where it was handled, e.g. a ticket or a payment; 1 to 200 characters.", "--reference", most=200)
@_digest_option
@tenant_option
@json_option
def handled(
    approval_id: str, email: str, reason: str, reference: str, digest: str | None, tenant: str | None, as_json: bool
) -> None:
    """Record that a person handled the operation elsewhere, as a local administrator for the named operator; the agent gets a DENY."""
    _decide(HANDLED, approval_id, email, reason, digest, tenant, as_json, reference)


@group.command()
@click.argument("approval_id", metavar="ID")
@as_option("E-mail of the operator who requested it; without it, what was requested on this machine.")
@tenant_option
@json_option
def collect(approval_id: str, email: str | None, tenant: str | None, as_json: bool) -> None:
    """Create the password or key that a second administrator approved, and print it; it is shown only once."""
    with open_pool() as pool:
        actor = acting_as(pool, tenant_of(pool, tenant), email)
        made = collect_change(pool, actor, as_uuid(approval_id, "ID"))
    for_whom = f"one-time password of {made.email}, to set their own with" if made.email else f"key {made.key_id}"
    show(made, as_json, f"{made.secret}\n\nShown only once: {for_whom}.")

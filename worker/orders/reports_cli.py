"""`worker order-review reports`: outcomes of orders that the authority refused for good; a person has them sent again or puts them away."""

from __future__ import annotations

import contextlib
import json
import sys
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from sentinel.core.wording import counted
from sentinel.platform.command_line import REFUSED, OneLineCommand, one_line_errors, terminal_text
from sentinel.store.sql_template import SqlTemplate
from worker.command_options import by_option, reason_option

if TYPE_CHECKING:
    from sentinel.store.database import Pool

FIND_PARKED_REPORTS = """
select r.source, r.order_id, f.state, f.report_tries as tries, f.report_error as last_error
from orders.effects f join orders.reviews r on r.tenant_id = f.tenant_id and r.review_id = f.review_id
where f.tenant_id = %(tenant_id)s and f.kind = 'fulfil' and f.reported_at is null and f.report_due_at = 'infinity'
order by r.source, r.order_id
"""
_REPORT_ACT = SqlTemplate("""
with acted as (
  update orders.effects f set {change},
    report_error = left(%(said)s || coalesce('; it was refused with: ' || f.report_error, ''), 500)
  from orders.reviews r
  where f.tenant_id = %(tenant_id)s and f.kind = 'fulfil' and f.reported_at is null and f.report_due_at = 'infinity'
    and r.tenant_id = f.tenant_id and r.review_id = f.review_id and r.source = %(source)s and r.order_id = %(order_id)s
  returning r.order_id)
select count(*)::integer as reports from acted
""")
# Both statements return one row: the number of reports that they changed.
RESEND_REPORT = _REPORT_ACT.fill(change="report_due_at = clock_timestamp()")
# A `reported_at` beside a `report_error` means that a person put the report away: the authority never acknowledged it.
DISCARD_REPORT = _REPORT_ACT.fill(change="reported_at = clock_timestamp()")


@dataclass(frozen=True, slots=True)
class ParkedOrderReport:
    """A row of `FIND_PARKED_REPORTS`."""

    source: str
    order_id: str
    state: str
    tries: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class _Acted:
    reports: int


@click.group()
def reports() -> None:
    """Reports about orders that the authority refused permanently; each waits for a person."""


@reports.command("list", cls=OneLineCommand)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@one_line_errors
def list_(as_json: bool) -> None:
    """List them with the authority's answers."""
    from sentinel.store.queries import all_rows

    with _intake() as (pool, tenant_id):
        found = all_rows(pool, ParkedOrderReport, FIND_PARKED_REPORTS, {"tenant_id": tenant_id})
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found]))
        return
    for one in found:
        why = one.last_error or "no reason given"
        told = f"{one.source} {one.order_id}  {one.state}, {counted(one.tries, 'try', 'tries')}: {why}"
        click.echo(terminal_text(told))
    if not found:
        click.echo("No refused report waits for a person.")


@reports.command(cls=OneLineCommand)
@click.argument("source")
@click.argument("order")
@reason_option("Reason; stored with the report.")
@by_option("Who does this")
@one_line_errors
def resend(source: str, order: str, reason: str, by: str) -> None:
    """Resend an order's report, once the cause of the refusal is fixed. Exit 1 if the order has no refused report.

    \b
    Example:
      worker order-review reports resend shop 1001 --reason "the authority's backup was replaced"
    """
    _act(RESEND_REPORT, "sent again", source, order, reason, by)


@reports.command("discard", cls=OneLineCommand)
@click.argument("source")
@click.argument("order")
@reason_option("Reason; stored with the report.")
@by_option("Who does this")
@one_line_errors
def discard(source: str, order: str, reason: str, by: str) -> None:
    """Discard an order's report, so that it is not sent any more. Exit 1 if the order has no refused report.

    Who discarded it and why is stored with it. The authority does not learn the outcome: if it has the operation in doubt,
    resolve it there (`sentinel in-doubt resolve`).

    \b
    Example:
      worker order-review reports discard shop 1001 --reason "resolved there by hand, CASE-7"
    """
    _act(DISCARD_REPORT, "discarded", source, order, reason, by)


def _act(statement: str, done: str, source: str, order: str, reason: str, by: str) -> None:
    from sentinel.store.queries import act_once

    said = f"{done} by {by}: {reason}"[:300]
    with _intake() as (pool, tenant_id):
        fields = {"tenant_id": tenant_id, "source": source, "order_id": order, "said": said}
        acted = act_once(pool, _Acted, statement, fields, is_taken=lambda row: row.reports > 0)
    if not acted.reports:
        click.echo(f"refused: no report of order {order} of {source} waits for a person", err=True)
        sys.exit(REFUSED)
    click.echo(f"The report of order {order} of {source} is {done}.")


@contextlib.contextmanager
def _intake() -> Iterator[tuple[Pool, uuid.UUID]]:
    """Open the intake's database, and find its tenant. Raises `UnsafeConfiguration`, and as `require_schema`."""
    from sentinel.store.address import database_url
    from sentinel.store.database import ORDERS, Pool, with_role
    from sentinel.store.safety import require_schema
    from worker.orders.key_check import required_default_tenant
    from worker.orders.settings import load_order_settings

    with database_url(ORDERS, own_variable="ORDERS_DATABASE_URL") as url:
        require_schema(url, ORDERS)
        settings = load_order_settings(needs_authority=False, database_url=url)
        with contextlib.closing(Pool(with_role(url, ORDERS, application_name="order-review"), size=1)) as pool:
            yield pool, settings.tenant_id or required_default_tenant(pool)

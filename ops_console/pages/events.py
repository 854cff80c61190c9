"""The page of events: the append-only log, newest first, filtered, and its export as CSV without live formulas.

Events that concern every tenant (policies, global halts) are in a separate log, which administrators may choose.
"""

from __future__ import annotations

import csv
import dataclasses
import re
import unicodedata
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from io import StringIO
from urllib.parse import urlencode

from flask import Blueprint, Response, request

from ops_console.context import ConsoleContext
from ops_console.identity import actor
from ops_console.pages import shell
from ops_console.read_models.events import KINDS, EventFilter, EventRow, EventsOfFile, events_page
from ops_console.slots import Slots
from ops_console.webhook_addresses import shown_to
from sentinel.authority.halts import GLOBAL_HALT_OWNER, known_targets
from sentinel.authority.public_ids import look_up_public_id
from sentinel.core.errors import InvalidInput, NotFound
from sentinel.core.moments import rfc3339
from sentinel.core.operation import check_identifier
from sentinel.core.public_ids import is_public_id
from sentinel.store.ids import event_of_proof, uuid_or_none

ADDRESS = "/ops/events"
PAGE_SIZE = 50
MOST_EXPORTED = 20_000
"""How many rows one CSV file has at most, so that no download occupies a thread of the console for long: that is some
tens of megabytes, held in memory until they are sent. A file that ends before the log does names the event after which
the next begins.
"""
MOST_AT_ONCE = 2
"""How many files a process makes at once: each takes up to some hundred megabytes meanwhile, and a thread."""
COLUMNS = (
    "position", "occurred_at", "kind", "agent_id", "operation_id", "amount_minor", "currency", "event_id", "hash", "body",
)  # fmt: skip
EVERY_TENANT = "every tenant"
"""The value of `concerns` that selects the log of events that concern every tenant."""
_FIELDS = ("concerns", "kind", "agent", "operation", "since", "until", "behind")
_slots = Slots("other files of events are being made; try again in a moment")
_KIND = re.compile(r"[a-z][a-z0-9_.]{0,63}", re.ASCII)


def routes(pages: Blueprint, context: ConsoleContext) -> None:
    """Add the page and its export."""

    @pages.get("/events")
    def events() -> Response:
        try:
            return _page(context, _wanted(context), owner=_owner())
        except InvalidInput as error:
            return _page(context, EventFilter(), shell.form_refusal(error), owner=actor().tenant_id)

    @pages.get("/events/export.csv")
    def events_export() -> Response:
        wanted = dataclasses.replace(_wanted(context), before=_id("behind"))
        rows = EventsOfFile(context.pool, _owner(), wanted, most=MOST_EXPORTED)
        with _slots.taken(MOST_AT_ONCE):
            # Encoded line by line: as one text, a single emoji would make each of its characters take four bytes.
            body = b"".join(line.encode() for line in csv_lines(COLUMNS, (_cells(_shown(row)) for row in rows)))
        # An attachment (`_continued`), so that a browser saves the file and never renders it in this origin.
        return Response(
            body, content_type="text/csv; charset=utf-8; header=present",
            headers={"Cache-Control": "no-store", **_continued(rows.before)},
        )  # fmt: skip


def _owner() -> uuid.UUID:
    """Return the owner of the requested log: the tenant, or the owner of the log of every tenant, which only
    administrators may read.

    Raises `InvalidInput` or `Forbidden`.
    """
    concerns = request.args.get("concerns")
    if not concerns:
        return actor().tenant_id
    if concerns != EVERY_TENANT:
        raise InvalidInput.of("concerns", f"must be {EVERY_TENANT}, or empty")
    actor().must_be("admin")
    return GLOBAL_HALT_OWNER


def _continued(before: uuid.UUID | None) -> dict[str, str]:
    """Headers with the file's name, which has the event after which the next file begins, and a Link to that file for programs."""
    behind = f"-continues-behind-{before}" if before else ""
    of_every_tenant = "every-tenant-" if request.args.get("concerns") else ""
    name = f"sentinel-events-{of_every_tenant}{datetime.now(UTC):%Y-%m-%d}{behind}.csv"
    following = urlencode({**_given(), "behind": before}) if before else ""
    link = {"Link": f'<{ADDRESS}/export.csv?{following}>; rel="next"'} if before else {}
    return {"Content-Disposition": f'attachment; filename="{name}"', **link}


def _given() -> dict[str, str]:
    """The filter's fields in the query string, without blank ones."""
    return {name: request.args[name] for name in _FIELDS if request.args.get(name)}


def _page(
    context: ConsoleContext, wanted: EventFilter, refusal: shell.FormRefusal | None = None, *, owner: uuid.UUID
) -> Response:
    found = None if refusal else events_page(context.pool, owner, wanted, limit=PAGE_SIZE)
    if found is not None:
        found = dataclasses.replace(found, events=[_shown(one) for one in found.events])
    query = _given()
    further = found.before if found is not None else None
    return shell.page(
        context, "events.html", title="Events", refusal=refusal, given={name: query.get(name, "") for name in _FIELDS},
        found=found, kinds=KINDS, every_tenant=EVERY_TENANT, most=MOST_EXPORTED, filtered=bool(query),
        agents=[one.target for one in known_targets(context.pool, actor().tenant_id) if one.scope == "agent"],
        export=f"{ADDRESS}/export.csv?{urlencode(query)}", newest=f"{ADDRESS}?{urlencode(query)}",
        is_first=not request.args.get("before"),
        older=f"{ADDRESS}?{urlencode({**query, 'before': further})}" if further else None,
    )  # fmt: skip


def _wanted(context: ConsoleContext) -> EventFilter:
    """Parse the filter in the query string. Raises `InvalidInput` naming the field."""
    kind, agent = request.args.get("kind") or None, request.args.get("agent") or None
    if kind is not None and not _KIND.fullmatch(kind):
        raise InvalidInput.of("kind", "is not a kind of event")
    if agent is not None:
        check_identifier(agent, "agent", 128)
    cursors = [one for one in (_id("before"), _id("behind")) if one is not None]
    wanted = EventFilter(
        kind=kind, agent_id=agent, since=_moment("since"), until=_moment("until"), before=min(cursors, default=None)
    )
    public_id = (request.args.get("operation") or "").strip()
    if is_public_id(public_id) or event_of_proof(public_id):
        return _behind(context, public_id, wanted)
    return dataclasses.replace(wanted, operation_id=_id("operation"))


def _behind(context: ConsoleContext, public_id: str, wanted: EventFilter) -> EventFilter:
    """Narrow the filter to the agent that a public id stands for, or else to the first operation that has the id."""
    try:
        found = look_up_public_id(context.pool, actor().tenant_id, context.public_ids(), public_id)
    except NotFound as error:
        raise InvalidInput.of("operation", error.detail) from None
    if found.kind == "agent":
        return dataclasses.replace(wanted, agent_id=found.value)
    return dataclasses.replace(wanted, operation_id=found.operation_id)


def _id(name: str) -> uuid.UUID | None:
    text = (request.args.get(name) or "").strip()
    if not text:
        return None
    found = uuid_or_none(text)
    if found is None:
        raise InvalidInput.of(name, "is not a valid id")
    return found


def _moment(name: str) -> datetime | None:
    """Parse a form's local time, taken as UTC, or a full RFC 3339 time; None if blank. Raises `InvalidInput`."""
    text = (request.args.get(name) or "").strip()
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput.of(name, "must be a time such as 2026-11-21T10:00") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if not 1970 < moment.year < 9999:
        raise InvalidInput.of(name, "must be a time between the years 1971 and 9998")
    return moment


def _shown(row: EventRow) -> EventRow:
    """The event as the person who asks may read it."""
    holds_address = row.kind.startswith("webhook_") or row.kind == "change_asked"
    return dataclasses.replace(row, body=shown_to(actor(), row.body)) if holds_address else row


def _cells(row: EventRow) -> tuple[Cell, ...]:
    at = rfc3339(row.occurred_at)
    operation = str(row.operation_id) if row.operation_id else None
    return (
        row.position, at, row.kind, row.agent_id, operation, row.amount_minor, row.currency, str(row.event_id), row.hash,
        inert_json(row.body),
    )  # fmt: skip


BEGINS_FORMULA = frozenset("=+-@\t\r\n|%\uff1d\uff0b\uff0d\uff20")
"""Characters that spreadsheets take for the beginning of a formula or command, full-width forms included."""

Cell = str | int | None


def inert(value: Cell) -> Cell:
    """Return the cell with a leading "'" if it begins like a formula, also after spaces or invisible characters.

    The same after each semicolon: where that is the list separator, a spreadsheet begins a new cell there, quoted or
    not.
    """
    if not isinstance(value, str):
        return value
    text = _separated(value, ";'")
    return f"'{text}" if value[:1] in BEGINS_FORMULA or _first_seen(value) in BEGINS_FORMULA else text


def inert_json(text: str) -> str:
    """Escape each semicolon before a formula in JSON as \\u003b. It is still the same JSON, with the same canonical form and hash."""
    return _separated(text, r"\u003b")


def _separated(text: str, instead: str) -> str:
    """Replace each semicolon after which a formula would begin by `instead`."""
    if ";" not in text:
        return text
    parts, following = [], ""
    for one in reversed(text):
        parts.append(instead if one == ";" and following in BEGINS_FORMULA else one)
        # A quote is not part of what a cell shows, so a formula may begin after it.
        following = one if one != '"' and _first_seen(one) else following
    return "".join(reversed(parts))


def csv_lines(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    """The table as CSV (RFC 4180), a line at a time; None is an empty cell."""
    yield _line(header)
    for cells in rows:
        yield _line([inert(cell) for cell in cells])


def _first_seen(text: str) -> str:
    """The first character that is neither a space nor invisible; "" where there is none."""
    return next((one for one in text if unicodedata.category(one) not in ("Zs", "Zl", "Zp", "Cc", "Cf")), "")


def _line(cells: Sequence[Cell]) -> str:
    out = StringIO()
    csv.writer(out, quoting=csv.QUOTE_NONNUMERIC).writerow(cells)
    return out.getvalue()

"""Receivers of events (endpoints), which administrators add, disable and rotate; and dead letters: undelivered events.

`sentinel/export` sends the events. Adding and enabling a webhook lets events leave this installation, so both wait for
a second administrator (`protected_changes.py`). The sender derives a webhook's signing secret from its own setting and
the row's `secret_number`; the database stores no secret.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sentinel.authority.actor import Actor
from sentinel.authority.protected_changes import (
    ADD_WEBHOOK,
    DISABLE_WEBHOOK,
    ENABLE_WEBHOOK,
    ROTATE_WEBHOOK,
    request_change,
)
from sentinel.core.errors import Conflict, InvalidInput, NotFound
from sentinel.store.database import Pool
from sentinel.store.ids import new_id
from sentinel.store.queries import act_once, all_rows, changed, one_row, scalar

EVENT_TYPES = (
    "decision", "approval.requested", "approval.decided", "start", "outcome", "in_doubt", "halt", "policy",
)  # fmt: skip
"""Event types that can be sent; a CloudEvent's type is `dev.sentinel.<type>.v1`."""
OVERLAP_SECONDS = 86400
MAX_URL = 2000
"""The longest address of a webhook in characters; the table has the same limit."""


@dataclass(frozen=True, slots=True)
class EventEndpoint:
    """A receiver and its progress. `behind` is how many events of the feeds, of any type, come after its cursor.

    `url` is None if the address is in the sender's settings; `failing_since` is when the next event after the cursor
    first failed.
    """

    endpoint_id: uuid.UUID
    kind: str
    url: str | None
    event_types: list[str]
    secret_number: int
    old_secret_until: datetime | None
    behind: int
    attempts: int
    failing_since: datetime | None
    next_attempt_at: datetime
    last_error: str | None
    delivered_at: datetime | None
    disabled_at: datetime | None
    disabled_reason: str | None
    dead_letters: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that its receiver did not accept in time. `resend_asked_at`: when a retry was requested that is not done yet."""

    endpoint_id: uuid.UUID
    kind: str
    url: str | None
    event_id: uuid.UUID
    event: str
    operation_id: uuid.UUID | None
    position: int
    attempts: int
    last_error: str
    died_at: datetime
    resend_asked_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Discarded:
    letters: int


_LIST = """
select e.endpoint_id, e.kind, e.url, e.event_types, e.secret_number, e.old_secret_until,
  -- A receiver that ended with its setting begins anew where the setting is back.
  case when e.disabled_reason = 'setting' then 0 else greatest(sentinel.feed_head(e.tenant_id) - e.position, 0)
    + greatest(sentinel.feed_head('00000000-0000-0000-0000-000000000000') - e.global_position, 0) end as behind,
  e.attempts, e.first_failed_at as failing_since, e.next_attempt_at, e.last_error, e.delivered_at, e.disabled_at, e.disabled_reason,
  (select count(*)::integer from sentinel.dead_letters d
   where d.tenant_id = e.tenant_id and d.endpoint_id = e.endpoint_id and d.delivered_at is null and d.discarded_at is null) as dead_letters, e.created_at
from sentinel.event_endpoints e where e.tenant_id = %(tenant_id)s
"""
LIST_ENDPOINTS = f"{_LIST} order by e.created_at, e.endpoint_id"
FIND_ENDPOINT = f"{_LIST} and e.endpoint_id = %(endpoint_id)s"
_DEAD_LETTERS = """
select d.endpoint_id, n.kind, n.url, d.event_id, coalesce(e.kind, '') as event, e.operation_id, d.position, d.attempts, d.last_error,
  d.died_at, d.resend_asked_at
from sentinel.dead_letters d join sentinel.event_endpoints n using (tenant_id, endpoint_id)
left join sentinel.events e on e.tenant_id = d.feed_tenant_id and e.event_id = d.event_id
where d.tenant_id = %(tenant_id)s and d.delivered_at is null and d.discarded_at is null
"""
_OLDEST = "order by d.died_at, d.event_id, d.endpoint_id limit %(limit)s"
LIST_DEAD_LETTERS = f"{_DEAD_LETTERS} {_OLDEST}"
LIST_LETTERS_BEHIND = f"{_DEAD_LETTERS} and (d.died_at, d.event_id, d.endpoint_id) > (%(died_at)s, %(event_id)s, %(endpoint_id)s) {_OLDEST}"
# Only letters without a pending retry, so that one request is one retry.
ASK_RESEND = """
update sentinel.dead_letters set resend_asked_at = clock_timestamp(), resend_asked_by = %(by)s
where tenant_id = %(tenant_id)s and endpoint_id = %(endpoint_id)s and (%(event_id)s::uuid is null or event_id = %(event_id)s)
  and delivered_at is null and discarded_at is null and resend_asked_at is null and exists (
    select from sentinel.event_endpoints e
    where e.tenant_id = dead_letters.tenant_id and e.endpoint_id = dead_letters.endpoint_id and e.disabled_at is null)
"""
DISCARD = "select sentinel.discard_dead_letters(%(tenant_id)s, %(endpoint_id)s, %(letter)s, %(by)s, %(reason)s, %(event_id)s) as letters"
IS_DISABLED = """
select exists (select from sentinel.event_endpoints where tenant_id = %(tenant_id)s and endpoint_id = %(endpoint_id)s and disabled_at is not null)
"""


def list_endpoints(pool: Pool, tenant_id: uuid.UUID) -> list[EventEndpoint]:
    """Return the tenant's receivers, oldest first."""
    return all_rows(pool, EventEndpoint, LIST_ENDPOINTS, {"tenant_id": tenant_id})


def find_endpoint(pool: Pool, tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> EventEndpoint:
    """Return the tenant's receiver with that id. Raises `NotFound`."""
    found = one_row(pool, EventEndpoint, FIND_ENDPOINT, {"tenant_id": tenant_id, "endpoint_id": endpoint_id})
    if found is None:
        raise NotFound("there is no webhook with this id")
    return found


def add_webhook(
    pool: Pool, actor: Actor, url: str, event_types: Sequence[str] = (), endpoint_id: uuid.UUID | None = None
) -> uuid.UUID:
    """Add a webhook that gets the events from now on, and return its id. No `event_types` means every type.

    The caller must have checked the address (`sentinel.platform.outbound.public_addresses`). Raises `InvalidInput`,
    `WaitsForAdministrator` (not added yet), and `Conflict` for an id that is taken.
    """
    if len(url) > MAX_URL:
        raise InvalidInput.of("URL", f"must have at most {MAX_URL} characters")
    unknown = sorted(set(event_types) - set(EVENT_TYPES))
    if unknown:
        raise InvalidInput.of("type", f"must be one or more of {', '.join(EVENT_TYPES)}")
    made = endpoint_id or new_id()
    asked = {"endpoint_id": made, "url": url, "event_types": sorted(set(event_types))}
    if request_change(pool, actor, ADD_WEBHOOK, f"webhook/{made}", asked) != "done":
        raise Conflict("a webhook with this id was already added")
    return made


def rotate_secret(pool: Pool, actor: Actor, endpoint_id: uuid.UUID, *, overlap_seconds: int = OVERLAP_SECONDS) -> int:
    """Rotate a webhook's signing secret and return the new one's number.

    Events are signed with both secrets until the overlap is over. Raises `InvalidInput`, `NotFound`, and `Conflict` if
    the secret was rotated meanwhile.
    """
    if not 0 <= overlap_seconds <= 90 * 86400:
        raise InvalidInput.of("overlap_seconds", "must be 0 seconds to 90 days")
    number = find_endpoint(pool, actor.tenant_id, endpoint_id).secret_number
    asked = {"endpoint_id": endpoint_id, "overlap_seconds": overlap_seconds, "secret_number": number}
    _change(pool, actor, ROTATE_WEBHOOK, asked, "the secret was rotated meanwhile; look at the webhook again")
    return number + 1


def disable_webhook(pool: Pool, actor: Actor, endpoint_id: uuid.UUID) -> None:
    """Stop sending events to a webhook; its cursor is kept. Raises `NotFound`, or `Conflict` if it was already disabled."""
    _change(pool, actor, DISABLE_WEBHOOK, {"endpoint_id": endpoint_id}, "the webhook was disabled before")


def enable_webhook(pool: Pool, actor: Actor, endpoint_id: uuid.UUID) -> None:
    """Continue sending to a disabled webhook from its cursor.

    Raises `NotFound`, `Conflict` if it is enabled, and `WaitsForAdministrator` (not enabled yet).
    """
    url = find_endpoint(pool, actor.tenant_id, endpoint_id).url
    asked = {"endpoint_id": endpoint_id, "url": url}
    _change(pool, actor, ENABLE_WEBHOOK, asked, "the webhook is already enabled")


def _change(pool: Pool, actor: Actor, action: str, asked: Mapping[str, object], conflict: str) -> None:
    said = request_change(pool, actor, action, f"webhook/{asked['endpoint_id']}", asked)
    if said == "unknown":
        raise NotFound("there is no webhook with this id")
    if said != "done":
        raise Conflict(conflict)


def list_dead_letters(
    pool: Pool, tenant_id: uuid.UUID, *, limit: int = 200, after: tuple[datetime, uuid.UUID, uuid.UUID] | None = None
) -> list[DeadLetter]:
    """Return dead letters that are neither delivered nor discarded, oldest first.

    `after` is a cursor: (died_at, event_id, endpoint_id) of the last one seen.
    """
    died_at, event_id, endpoint_id = after or (None, None, None)
    statement = LIST_DEAD_LETTERS if after is None else LIST_LETTERS_BEHIND
    return all_rows(pool, DeadLetter, statement, {
        "tenant_id": tenant_id, "limit": limit, "died_at": died_at, "event_id": event_id, "endpoint_id": endpoint_id,
    })  # fmt: skip


def resend(pool: Pool, actor: Actor, endpoint_id: uuid.UUID, event_id: uuid.UUID | None = None) -> int:
    """Request one more try for a dead letter, or for all of an endpoint's, and return their number.

    Raises `NotFound` if there is none, and `Conflict` if the receiver is disabled, because nothing is sent to it.
    """
    actor.must_be("admin")
    fields = {"tenant_id": actor.tenant_id, "endpoint_id": endpoint_id, "event_id": event_id, "by": actor.name}
    asked = changed(pool, ASK_RESEND, fields)
    if not asked and scalar(pool, IS_DISABLED, fields):
        raise Conflict(
            "the receiver is disabled; enable the webhook, or set the receiver's setting again, then send again; or discard its dead letters"
        )
    if not asked:
        raise NotFound("there is no dead letter with this id, or it is being sent again")
    return asked


def discard_dead_letters(
    pool: Pool, actor: Actor, endpoint_id: uuid.UUID, event_id: uuid.UUID | None = None, *, reason: str
) -> int:  # fmt: skip
    """Discard a dead letter, or all of an endpoint's, e.g. because its receiver is gone, and return their number.

    An event records who did it and why. `reason` has at most 500 characters. Raises `NotFound` if there is none, or
    `MayBeRecorded` if the connection was lost and they may be discarded.
    """
    actor.must_be("admin")
    fields = {"tenant_id": actor.tenant_id, "endpoint_id": endpoint_id, "letter": event_id, "by": actor.name, "reason": reason,
              "event_id": new_id()}  # fmt: skip
    discarded = act_once(pool, _Discarded, DISCARD, fields, is_taken=lambda row: row.letters > 0)
    if not discarded.letters:
        raise NotFound("there is no dead letter with this id")
    return discarded.letters

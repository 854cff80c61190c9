"""Receivers of events (endpoints): added, disabled, rotated by administrators; what could not be delivered (dead letters).

What is sent and how is `sentinel/export`. Adding and enabling give somebody power, for events leave this installation: they
wait for a second administrator (`protected_changes.py`). A webhook's signing secret is made by the sender from its own
setting and this row's `secret_number`; the database has none.
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
"""What can be sent; in a CloudEvent `dev.sentinel.<type>.v1`."""
OVERLAP_SECONDS = 86400
MAX_URL = 2000
"""Characters of a webhook's address, as the table has it."""


@dataclass(frozen=True, slots=True)
class EventEndpoint:
    """A receiver and how far it is. `behind`: events of the feeds behind its cursor, of whatever type.

    `url` is None where the sender's settings have the address; `failing_since` is when the event behind the cursor first failed.
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
    """An event that was not taken in time. `resend_asked_at`: somebody asked for another try, which is not made yet."""

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
# Only what nobody is sending just now, so that one asking is one try.
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
    """The tenant's receivers, oldest first."""
    return all_rows(pool, EventEndpoint, LIST_ENDPOINTS, {"tenant_id": tenant_id})


def find_endpoint(pool: Pool, tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> EventEndpoint:
    """One of them. Raises `NotFound`."""
    found = one_row(pool, EventEndpoint, FIND_ENDPOINT, {"tenant_id": tenant_id, "endpoint_id": endpoint_id})
    if found is None:
        raise NotFound("there is no webhook of that id")
    return found


def add_webhook(
    pool: Pool, actor: Actor, url: str, event_types: Sequence[str] = (), endpoint_id: uuid.UUID | None = None
) -> uuid.UUID:
    """A new webhook, which gets what comes from now on; its id. No types are every type.

    The address was judged by the caller (`sentinel.platform.outbound.public_addresses`). Raises `InvalidInput`,
    `WaitsForAdministrator` (not added yet), and `Conflict` for an id that is taken.
    """
    if len(url) > MAX_URL:
        raise InvalidInput.of("URL", f"must have at most {MAX_URL} characters")
    unknown = sorted(set(event_types) - set(EVENT_TYPES))
    if unknown:
        raise InvalidInput.of("type", f"must be some of {', '.join(EVENT_TYPES)}")
    made = endpoint_id or new_id()
    asked = {"endpoint_id": made, "url": url, "event_types": sorted(set(event_types))}
    if request_change(pool, actor, ADD_WEBHOOK, f"webhook/{made}", asked) != "done":
        raise Conflict("a webhook of that id was added before")
    return made


def rotate_secret(pool: Pool, actor: Actor, endpoint_id: uuid.UUID, *, overlap_seconds: int = OVERLAP_SECONDS) -> int:
    """Sign with another secret from now on, and with the old one too until the overlap is over; the new one's number.

    Raises `NotFound`, and `Conflict` when somebody else rotated it meanwhile.
    """
    if not 0 <= overlap_seconds <= 90 * 86400:
        raise InvalidInput.of("overlap_seconds", "must be 0 seconds to 90 days")
    number = find_endpoint(pool, actor.tenant_id, endpoint_id).secret_number
    asked = {"endpoint_id": endpoint_id, "overlap_seconds": overlap_seconds, "secret_number": number}
    _change(pool, actor, ROTATE_WEBHOOK, asked, "the secret was rotated meanwhile; look again")
    return number + 1


def disable_webhook(pool: Pool, actor: Actor, endpoint_id: uuid.UUID) -> None:
    """Send it nothing any more; its place in the feed stays. Raises `NotFound`, or `Conflict` when it was before."""
    _change(pool, actor, DISABLE_WEBHOOK, {"endpoint_id": endpoint_id}, "the webhook was disabled before")


def enable_webhook(pool: Pool, actor: Actor, endpoint_id: uuid.UUID) -> None:
    """Go on where it stopped. Raises `NotFound`, `Conflict` and `WaitsForAdministrator` (not enabled yet)."""
    url = find_endpoint(pool, actor.tenant_id, endpoint_id).url
    asked = {"endpoint_id": endpoint_id, "url": url}
    _change(pool, actor, ENABLE_WEBHOOK, asked, "the webhook is enabled")


def _change(pool: Pool, actor: Actor, action: str, asked: Mapping[str, object], conflict: str) -> None:
    said = request_change(pool, actor, action, f"webhook/{asked['endpoint_id']}", asked)
    if said == "unknown":
        raise NotFound("there is no webhook of that id")
    if said != "done":
        raise Conflict(conflict)


def list_dead_letters(
    pool: Pool, tenant_id: uuid.UUID, *, limit: int = 200, after: tuple[datetime, uuid.UUID, uuid.UUID] | None = None
) -> list[DeadLetter]:
    """Dead letters that are neither delivered nor discarded since, oldest first; from behind `after` = (died_at, event_id, endpoint_id)."""
    died_at, event_id, endpoint_id = after or (None, None, None)
    statement = LIST_DEAD_LETTERS if after is None else LIST_LETTERS_BEHIND
    return all_rows(pool, DeadLetter, statement, {
        "tenant_id": tenant_id, "limit": limit, "died_at": died_at, "event_id": event_id, "endpoint_id": endpoint_id,
    })  # fmt: skip


def resend(pool: Pool, actor: Actor, endpoint_id: uuid.UUID, event_id: uuid.UUID | None = None) -> int:
    """Have the sender try a dead letter once more, or all of an endpoint's; how many.

    Raises `NotFound` where there is none, `Conflict` where the receiver is disabled: it is sent nothing.
    """
    actor.must_be("admin")
    fields = {"tenant_id": actor.tenant_id, "endpoint_id": endpoint_id, "event_id": event_id, "by": actor.name}
    asked = changed(pool, ASK_RESEND, fields)
    if not asked and scalar(pool, IS_DISABLED, fields):
        raise Conflict(
            "the receiver is disabled; enable the webhook, or give a sender its setting again, then send again; or put its letters away"
        )
    if not asked:
        raise NotFound("there is no dead letter of that id, or it is being sent again")
    return asked


def discard_dead_letters(
    pool: Pool, actor: Actor, endpoint_id: uuid.UUID, event_id: uuid.UUID | None = None, *, reason: str
) -> int:  # fmt: skip
    """Have a dead letter delivered no more, or all of an endpoint's, as where its receiver is gone; how many. An event says who and why.

    `reason`: at most 500 characters. Raises `NotFound` where there is none, `MayBeRecorded` where the answer was lost.
    """
    actor.must_be("admin")
    fields = {"tenant_id": actor.tenant_id, "endpoint_id": endpoint_id, "letter": event_id, "by": actor.name, "reason": reason,
              "event_id": new_id()}  # fmt: skip
    put = act_once(pool, _Discarded, DISCARD, fields, is_taken=lambda row: row.letters > 0)
    if not put.letters:
        raise NotFound("there is no dead letter of that id")
    return put.letters

"""The sender's SQL: claim a receiver, read the feed after its cursor, and move the cursor. Times are the database's.

A claim is a lease with an epoch, like a worker's on a row. After the receiver has answered, the cursor is moved by one
UPDATE that names the epoch and the position it expects: after a crash before that the events are sent again, and a
sender whose lease was taken over moves nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, LiteralString

from sentinel.export.cloud_events import GLOBAL, FeedEvent
from sentinel.platform.backoff import Backoff
from sentinel.store.database import Pool
from sentinel.store.ids import new_id
from sentinel.store.queries import all_rows, changed, one_row, scalar
from sentinel.store.sql_template import SqlTemplate

BACKOFF = Backoff(5.0, 3600.0)


@dataclass(frozen=True, slots=True)
class Claim:
    """A receiver claimed by this sender until the lease expires. `old_secret_too`: the secret before the latest rotation still signs."""

    tenant_id: uuid.UUID
    endpoint_id: uuid.UUID
    kind: str
    url: str | None
    event_types: list[str]
    secret_number: int
    old_secret_too: bool
    position: int
    global_position: int
    epoch: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Resend:
    """A dead letter that a person asked to have sent again, with its receiver."""

    tenant_id: uuid.UUID
    endpoint_id: uuid.UUID
    event_id: uuid.UUID
    feed_tenant_id: uuid.UUID
    position: int
    kind: str
    url: str | None
    event_types: list[str]
    secret_number: int
    old_secret_too: bool


_RECEIVER = "e.kind, e.url, e.event_types, e.secret_number, coalesce(e.old_secret_until > clock_timestamp(), false) as old_secret_too"
# A webhook's address is in its row. The address of another kind is a sender's setting, for one tenant's events: no
# other sender can serve it.
_SERVED = "e.kind = any(%(kinds)s) and (e.kind = 'webhook' or e.tenant_id = %(served_tenant_id)s)"


def _is_over(moment: LiteralString, longest: LiteralString) -> LiteralString:
    """SQL for whether a pause or lease is over; one that ends later than the longest was made before the clock was set back."""
    return f"({moment} <= clock_timestamp() or {moment} > clock_timestamp() + interval '{longest}')"


# The due receiver whose pause or latest turn ended longest ago; a row that another sender has locked is skipped.
CLAIM = SqlTemplate("""
with due as materialized (
  select e.tenant_id, e.endpoint_id from sentinel.event_endpoints e
  where {served} and e.disabled_at is null and {is_due} and {is_free}
    and exists (select from sentinel.feed_heads h
                where h.tenant_id = e.tenant_id and h.position > e.position or h.tenant_id = {nil} and h.position > e.global_position)
  order by greatest(e.next_attempt_at, e.lease_until) limit 1 for no key update skip locked)
update sentinel.event_endpoints e set epoch = e.epoch + 1, lease_until = clock_timestamp() + make_interval(secs => %(lease_seconds)s),
  next_attempt_at = least(e.next_attempt_at, clock_timestamp())
from due where e.tenant_id = due.tenant_id and e.endpoint_id = due.endpoint_id
returning e.tenant_id, e.endpoint_id, {receiver}, e.position, e.global_position, e.epoch, e.attempts
""").fill(
    nil=f"'{GLOBAL}'",
    receiver=_RECEIVER,
    served=_SERVED,
    is_due=_is_over("e.next_attempt_at", "2 hours"),
    is_free=_is_over("e.lease_until", "10 minutes"),
)

_MINE = """tenant_id = %(tenant_id)s and endpoint_id = %(endpoint_id)s and epoch = %(epoch)s and disabled_at is null
  and position = %(from_position)s and global_position = %(from_global_position)s"""
# The global feed is sent first. Accepting one of its events does not reset the backoff of a failing event in the
# tenant's feed: that is reset once the receiver has accepted one of the tenant's events, or none is left to send.
ADVANCE = SqlTemplate("""
with heard as (
  select %(position)s::bigint > %(from_position)s::bigint or coalesce((select h.position from sentinel.feed_heads h
    where h.tenant_id = %(tenant_id)s), 0) <= %(position)s as is_well)
update sentinel.event_endpoints e set position = %(position)s, global_position = %(global_position)s,
  attempts = case when h.is_well then 0 else e.attempts end, first_failed_at = case when h.is_well then null else e.first_failed_at end,
  last_error = case when h.is_well then null else e.last_error end, delivered_at = case when %(delivered)s then clock_timestamp() else e.delivered_at end,
  lease_until = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
from heard as h where {mine}
returning e.attempts
""").fill(mine=_MINE)
POSTPONE = SqlTemplate("""
update sentinel.event_endpoints set attempts = attempts + 1, first_failed_at = coalesce(first_failed_at, clock_timestamp()),
  last_error = %(error)s, next_attempt_at = clock_timestamp() + make_interval(secs => %(pause_seconds)s), lease_until = clock_timestamp()
where {mine}
""").fill(mine=_MINE)
# Gives up events that are older than the time allowed, once the receiver has failed for that long: they become dead
# letters, the cursor passes them, and younger events after them are tried again. The events' own age is checked because
# the receiver may have failed for that long on the other feed only. An existing dead letter stays unchanged. Changes
# nothing while no event is old enough.
GIVE_UP = SqlTemplate("""
with failed as (
  select attempts + 1 as attempts, clock_timestamp() - make_interval(secs => %(give_up_seconds)s) as until from sentinel.event_endpoints
  where {mine} and first_failed_at <= clock_timestamp() - make_interval(secs => %(give_up_seconds)s)
  for no key update
), portion as materialized (
  select l.event_id, l.position, f.attempts, bool_and(l.occurred_at <= f.until) over (order by l.position) as is_old
  from failed f, unnest(%(event_ids)s::uuid[], %(positions)s::bigint[], %(occurred_ats)s::timestamptz[]) as l (event_id, position, occurred_at)
), letters as (
  insert into sentinel.dead_letters (tenant_id, endpoint_id, event_id, feed_tenant_id, position, attempts, last_error)
  select %(tenant_id)s, %(endpoint_id)s, p.event_id, %(feed_tenant_id)s, p.position, p.attempts, %(error)s
  from portion p where p.is_old
  on conflict do nothing)
update sentinel.event_endpoints e set
  position = case when %(feed_tenant_id)s = {nil} then e.position else d.given_up_to end,
  global_position = case when %(feed_tenant_id)s = {nil} then d.given_up_to else e.global_position end, attempts = 0, first_failed_at = null,
  last_error = %(error)s, next_attempt_at = clock_timestamp() + make_interval(secs => %(pause_seconds)s), lease_until = clock_timestamp()
from (select max(p.position) as given_up_to from portion p where p.is_old) as d
where {mine} and d.given_up_to is not null
""").fill(mine=_MINE, nil=f"'{GLOBAL}'")
RELEASE = "update sentinel.event_endpoints set lease_until = clock_timestamp() where tenant_id = %(tenant_id)s and endpoint_id = %(endpoint_id)s and epoch = %(epoch)s"
DISABLE_GONE = "select sentinel.disable_gone_endpoint(%(tenant_id)s, %(endpoint_id)s, %(event_id)s)"
# An approval is created at the time of its event. For a change of people or keys, the event's operation id is the
# approval's id.
_EVENTS = """
select f.tenant_id, f.position, e.event_id, e.kind, e.operation_id, case when e.kind = any(%(kinds)s) then e.body else '' end as body,
  e.hash, (select b.hash from sentinel.feed p join sentinel.events b using (tenant_id, event_id)
           where p.tenant_id = f.tenant_id and p.position = f.position - 1) as previous_hash,
  e.occurred_at, coalesce(s.not_executed_at <= e.occurred_at, false) as resolved_before,
  a.approval_id, coalesce(a.agent_id, e.agent_id) as agent_id, a.action, a.amount_minor, a.currency, a.reasons,
  a.required_role, a.required_people, a.expires_at, coalesce(a.decided_at is null and a.expires_at > clock_timestamp(), false) as waits,
  case when e.kind in ('decision', 'refused') then (select k.policy_id from sentinel.policies k where k.policy_digest = e.body::jsonb ->> 'policy_digest') end
    as policy_id,
  case when e.kind = 'decision' then (select r.trace from sentinel.event_rows r where r.tenant_id = e.tenant_id and r.event_id = e.event_id) end
    as trace
from sentinel.feed f join sentinel.events e using (tenant_id, event_id)
left join sentinel.operation_states s
  on e.kind = 'outcome' and s.tenant_id = e.tenant_id and s.operation_id = e.operation_id
left join sentinel.approvals a
  on e.kind in ('decision', 'asked_again', 'change_asked') and a.tenant_id = e.tenant_id and a.operation_id = e.operation_id
    and a.created_at = e.occurred_at
"""
EVENTS_AFTER = (
    _EVENTS + "where f.tenant_id = %(tenant_id)s and f.position > %(after)s order by f.position limit %(limit)s"
)
EVENT_AT = _EVENTS + "where f.tenant_id = %(tenant_id)s and f.position = %(position)s"
# Receivers take turns, by their ids: many letters of one that hangs must not delay those of another.
TAKE_RESEND = SqlTemplate("""
with asked as materialized (
  select d.tenant_id, d.endpoint_id, d.event_id from sentinel.dead_letters d join sentinel.event_endpoints e using (tenant_id, endpoint_id)
  where d.resend_asked_at is not null and d.delivered_at is null and {is_free} and {served}
    and e.disabled_at is null
  order by (d.endpoint_id > %(after)s) desc, d.endpoint_id, d.resend_asked_at limit 1 for no key update of d skip locked)
update sentinel.dead_letters d set lease_until = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
from asked join sentinel.event_endpoints e using (tenant_id, endpoint_id)
where d.tenant_id = asked.tenant_id and d.endpoint_id = asked.endpoint_id and d.event_id = asked.event_id
returning d.tenant_id, d.endpoint_id, d.event_id, d.feed_tenant_id, d.position, {receiver}
""").fill(receiver=_RECEIVER, served=_SERVED, is_free=_is_over("d.lease_until", "10 minutes"))
_LETTER = (
    "tenant_id = %(tenant_id)s and endpoint_id = %(endpoint_id)s and event_id = %(event_id)s and delivered_at is null"
    " and discarded_at is null"
)
MARK_DELIVERED = SqlTemplate("""
update sentinel.dead_letters set delivered_at = clock_timestamp(), resend_asked_at = null where {letter}
""").fill(letter=_LETTER)
MARK_FAILED = SqlTemplate("""
update sentinel.dead_letters set attempts = attempts + 1, last_error = %(error)s, resend_asked_at = null where {letter}
""").fill(letter=_LETTER)
OPEN_ENDPOINT = "select sentinel.open_endpoint(%(tenant_id)s, %(endpoint_id)s, %(kind)s, %(types)s)"
KEEP_SERVED = "select sentinel.keep_served(%(tenant_id)s, %(kinds)s, %(unserved_seconds)s)"
COUNTS = """
select (select count(*)::integer from sentinel.dead_letters where delivered_at is null and discarded_at is null) as dead_letters,
  coalesce(sum(greatest(coalesce(h.position, 0) - e.position, 0)), 0)::bigint as behind
from sentinel.event_endpoints e left join sentinel.feed_heads h using (tenant_id) where e.disabled_at is null
"""


@dataclass(frozen=True, slots=True)
class ExportCounts:
    """What is not delivered: dead letters, and events that the cursors of receivers in use have not passed."""

    dead_letters: int
    behind: int


class Deliveries:
    """One sender's operations on the database. Every method raises `EngineUnavailable` when the database does not answer."""

    def __init__(
        self, pool: Pool, kinds: Sequence[str], *, tenant_id: uuid.UUID | None = None, lease_seconds: float,
        give_up_seconds: float,
    ) -> None:  # fmt: skip
        """`tenant_id`: whose events go to the receivers that settings define; None where there are none."""
        self._pool, self._kinds, self._tenant_id = pool, list(kinds), tenant_id
        self._lease_seconds, self._give_up_seconds = lease_seconds, give_up_seconds
        self._serving = {"kinds": self._kinds, "served_tenant_id": tenant_id, "lease_seconds": lease_seconds}

    def claim(self) -> Claim | None:
        """Claim the receiver that has been due longest and has events to send; None where none is due or free."""
        return one_row(self._pool, Claim, CLAIM, self._serving)

    def events_after(self, feed: uuid.UUID, position: int, kinds: Sequence[str], limit: int) -> list[FeedEvent]:
        """Return the next events of a feed; events of kinds not in `kinds` have an empty body."""
        fields = {"tenant_id": feed, "after": position, "kinds": list(kinds), "limit": limit}
        return all_rows(self._pool, FeedEvent, EVENTS_AFTER, fields)

    def event_at(self, feed: uuid.UUID, position: int, kinds: Sequence[str]) -> FeedEvent | None:
        """Return the event at a position of a feed; None where there is none."""
        fields = {"tenant_id": feed, "position": position, "kinds": list(kinds)}
        return one_row(self._pool, FeedEvent, EVENT_AT, fields)

    def advance(self, claim: Claim, feed: uuid.UUID, position: int, *, delivered: bool) -> Claim | None:
        """Move the cursor to a position of a feed, and renew the lease; None when the claim was lost or the receiver disabled."""
        place = _place(claim, feed, position)
        fields = {**_mine(claim), **place, "delivered": delivered, "lease_seconds": self._lease_seconds}
        attempts = scalar(self._pool, ADVANCE, fields)
        if attempts is None:
            return None
        return replace(claim, attempts=attempts, position=place["position"], global_position=place["global_position"])

    def fail(self, claim: Claim, feed: uuid.UUID, events: Sequence[FeedEvent], error: str, spread: float) -> bool:
        """Postpone events that were not accepted, or, once the time allowed is over, make the old ones dead letters.

        Returns whether any became dead letters. The claim is released.
        """
        fields = {
            **_mine(claim), "error": error[:200],
            "pause_seconds": BACKOFF.pause_seconds(claim.attempts, spread), "give_up_seconds": self._give_up_seconds,
            "feed_tenant_id": feed, "event_ids": [one.event_id for one in events], "positions": [one.position for one in events],
            "occurred_ats": [one.occurred_at for one in events],
        }  # fmt: skip
        if changed(self._pool, GIVE_UP, fields):
            return True
        changed(self._pool, POSTPONE, fields)
        return False

    def release(self, claim: Claim) -> None:
        """Release the claim."""
        changed(self._pool, RELEASE, _mine(claim))

    def disable_gone(self, claim: Claim | Resend) -> None:
        """Disable a webhook that answered 410, gone for good, until an administrator enables it; an event records that."""
        fields = {"tenant_id": claim.tenant_id, "endpoint_id": claim.endpoint_id, "event_id": new_id()}
        changed(self._pool, DISABLE_GONE, fields)

    def take_resend(self, after: uuid.UUID) -> Resend | None:
        """Lease a dead letter that a person asked to have sent again, of the receiver whose turn is after `after`; None where there is none."""
        return one_row(self._pool, Resend, TAKE_RESEND, {**self._serving, "after": after})

    def mark(self, letter: Resend, error: str | None) -> None:
        """Record the result of sending a dead letter again; `error` None: it was accepted."""
        fields: dict[str, Any] = {
            "tenant_id": letter.tenant_id, "endpoint_id": letter.endpoint_id, "event_id": letter.event_id,
            "error": error and error[:200],
        }  # fmt: skip
        changed(self._pool, MARK_FAILED if error else MARK_DELIVERED, fields)

    def counts(self) -> ExportCounts:
        """Count what is not delivered."""
        found = one_row(self._pool, ExportCounts, COUNTS)
        assert found is not None
        return found

    def open_endpoint(self, endpoint_id: uuid.UUID, kind: str, types: Sequence[str]) -> None:
        """Create the receiver of a setting, or enable it again if it had ended: it gets events from now on. One in use is left as it is."""
        fields = {"tenant_id": self._tenant_id, "endpoint_id": endpoint_id, "kind": kind, "types": list(types)}
        changed(self._pool, OPEN_ENDPOINT, fields)

    def keep_served(self, unserved_seconds: int | None) -> int:
        """Record that the tenant's receivers by setting are served; end those unserved for `unserved_seconds`.

        With None, none are ended. Returns how many ended.
        """
        fields = {"tenant_id": self._tenant_id, "kinds": self._kinds, "unserved_seconds": unserved_seconds}
        ended: int = scalar(self._pool, KEEP_SERVED, fields)
        return ended


def _place(claim: Claim, feed: uuid.UUID, position: int) -> dict[str, int]:
    """Return the cursor's two positions after an event of a feed."""
    if feed == GLOBAL:
        return {"position": claim.position, "global_position": position}
    return {"position": position, "global_position": claim.global_position}


def _mine(claim: Claim) -> dict[str, Any]:
    return {
        "tenant_id": claim.tenant_id, "endpoint_id": claim.endpoint_id, "epoch": claim.epoch,
        "from_position": claim.position, "from_global_position": claim.global_position,
    }  # fmt: skip

"""Sign-in attempts of the last minutes, counted over all processes, so that guessing is slow however it is spread.

An attempt is written down as failed before the password is looked at and marked a success afterwards: guesses that
run at the same time all count, and a success of one's own never wipes out failures. A known device, a browser that came
in before as this person, has a counter of its own and no other: whoever hammers the account does not lock it out.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from psycopg.rows import class_row

from sentinel.store.database import Pool
from sentinel.store.failures import in_one_call
from sentinel.store.rows import changed

WINDOW_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Throttle:
    """How many failed attempts five minutes may hold: by account, which is also by known device, by address, over all."""

    account: int = 10
    address: int = 10
    overall: int = 1000


@dataclass(frozen=True, slots=True)
class Attempt:
    """Either `attempt_id` (go on) or `retry_after_seconds` (too many)."""

    attempt_id: int | None
    retry_after_seconds: int


_ONE_AT_A_TIME = "select sentinel.take_sign_in_lock()"
# For each limit that is full: when its oldest attempt leaves the window. One row; the wait is the longest of them.
BEGIN_ATTEMPT = """
with recent as (
  select account_hash, address, attempted_at from sentinel.sign_in_attempts
  where not succeeded and attempted_at > clock_timestamp() - make_interval(secs => %(window)s)
    and device_hash is not distinct from %(device_hash)s::bytea
), counted as (
  select count(*) filter (where account_hash = %(account_hash)s) >= %(account)s as account_full,
         %(device_hash)s::bytea is null and count(*) filter (where address = %(address)s) >= %(address_most)s as address_full,
         %(device_hash)s::bytea is null and count(*) >= %(overall)s as overall_full,
         min(attempted_at) filter (where account_hash = %(account_hash)s) as account_from,
         min(attempted_at) filter (where address = %(address)s) as address_from, min(attempted_at) as overall_from
  from recent
), inserted as (
  insert into sentinel.sign_in_attempts (account_hash, address, device_hash, succeeded)
  select %(account_hash)s, %(address)s, %(device_hash)s, false from counted
  where not (account_full or address_full or overall_full) returning attempt_id
)
select (select attempt_id from inserted) as attempt_id,
  ceil(greatest(1, extract(epoch from make_interval(secs => %(window)s) - (clock_timestamp() - greatest(
    case when account_full then account_from end, case when address_full then address_from end,
    case when overall_full then overall_from end)))))::integer as retry_after_seconds
from counted
"""
SUCCEEDED = "update sentinel.sign_in_attempts set succeeded = true where attempt_id = %(attempt_id)s"
SWEEP = "delete from sentinel.sign_in_attempts where attempted_at < clock_timestamp() - interval '1 day'"


def begin_attempt(
    pool: Pool, *, email: str, address: str, throttle: Throttle, device_hash: bytes | None = None
) -> Attempt:
    """Count this attempt, or say how long to wait. `email` is kept only as a hash; `device_hash` is a known device's."""
    fields = {
        "account_hash": hashlib.sha256(email.encode()).digest(), "address": address, "account": throttle.account,
        "device_hash": device_hash, "address_most": throttle.address, "overall": throttle.overall, "window": WINDOW_SECONDS,
    }  # fmt: skip

    def call(connection: Any) -> Attempt:
        with connection.transaction(), connection.cursor(row_factory=class_row(Attempt)) as cursor:
            # Lock in a statement of its own: the count must see what the lock waited for.
            cursor.execute(_ONE_AT_A_TIME)
            found: Attempt = cursor.execute(BEGIN_ATTEMPT, fields).fetchone()
            return found

    return in_one_call(pool, call)


def mark_success(pool: Pool, attempt_id: int) -> None:
    """This attempt was a right one: it no longer counts, the others do."""
    changed(pool, SUCCEEDED, {"attempt_id": attempt_id})


def sweep(pool: Pool) -> int:
    """Delete attempts older than a day; returns how many."""
    return changed(pool, SWEEP, {})

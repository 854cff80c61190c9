"""Sign-in attempts of the last minutes, counted over all processes, so that guessing is slow however it is spread.

An attempt is written down as failed before the password is looked at and marked a success afterwards: guesses that
run at the same time all count, and a success of one's own never wipes out failures.

Nobody can shut a person out from everywhere:

* a known device, a browser that came in before as this person, has a counter of its own and no other;
* over a limit, each account that failed from a network (an IPv4 address, the first 64 bits of an IPv6 address) still gets one
  attempt from there in `PACE_SECONDS`, and so does the first attempt of another account, however many failed elsewhere and
  of others: who guesses one account does not keep its colleagues out;
* and each account one more from each network with a code of its second factor, for which password and code must both be
  right (`Attempt.needs_code`).

Only who knows an account's password can spend its guesses of codes: after `CODES_PER_HOUR` of them only a known device
is looked at.
"""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import dataclass
from typing import Any

from psycopg.rows import class_row

from sentinel.store.database import Pool
from sentinel.store.queries import call_with_retry, changed

WINDOW_SECONDS = 300
PACE_SECONDS = 30
CODES_PER_HOUR = 30


@dataclass(frozen=True, slots=True)
class Throttle:
    """How many failed attempts five minutes may hold: by account, which is also by known device, by network, over all."""

    account: int = 10
    address: int = 10
    overall: int = 1000


@dataclass(frozen=True, slots=True)
class Attempt:
    """Either `attempt_id` (go on) or `retry_after_seconds` (too many). `needs_code`: only with a right second factor."""

    attempt_id: int | None
    retry_after_seconds: int
    needs_code: bool = False


_ONE_AT_A_TIME = "select 1 from sentinel.sign_in_gate for update"
# One row. The wait is until the pace allows the next attempt, or until the oldest guess of a code leaves its hour.
BEGIN_ATTEMPT = """
with recent as (
  select account_hash, account_hash = %(account_hash)s as is_ours, network = %(network)s as is_near, with_code, attempted_at
  from sentinel.sign_in_attempts
  where not succeeded and attempted_at > clock_timestamp() - make_interval(secs => %(window)s)
    and device_hash is not distinct from %(device_hash)s::bytea
), codes as (
  select count(*) as guessed, min(attempted_at) as guessed_from from sentinel.sign_in_attempts
  where account_hash = %(account_hash)s and password_right and not succeeded and device_hash is null
    and attempted_at > clock_timestamp() - interval '1 hour'
), counted as (
  select count(*) filter (where is_ours) as ours,
    count(*) filter (where is_near) as near, count(*) as overall,
    max(attempted_at) filter (where is_near and is_ours) as ours_last,
    max(attempted_at) filter (where is_near and is_ours and with_code) as code_last
  from recent
), others as (
  select max(first_at) as newest from (select min(attempted_at) as first_at from recent where is_near group by account_hash) as accounts
), judged as (
  select coalesce(ours_last, newest) as paced_from, code_last, guessed_from,
    %(device_hash)s::bytea is null and guessed >= %(codes)s as guessed_out,
    ours >= %(account)s or %(device_hash)s::bytea is null and (near >= %(near_most)s or overall >= %(overall)s) as is_full
  from counted cross join codes cross join others
), answered as (
  select *, %(device_hash)s::bytea is null and coalesce(paced_from, '-infinity') < clock_timestamp() - make_interval(secs => %(pace)s)
      as is_paced,
    %(device_hash)s::bytea is null and %(with_code)s and coalesce(code_last, '-infinity') < clock_timestamp() - make_interval(secs => %(pace)s)
      as has_code
  from judged
), inserted as (
  insert into sentinel.sign_in_attempts (account_hash, address, network, device_hash, with_code, succeeded)
  select %(account_hash)s, %(address)s, %(network)s, %(device_hash)s, %(with_code)s, false from answered
  where not guessed_out and (not is_full or is_paced or has_code) returning attempt_id
)
select (select attempt_id from inserted) as attempt_id,
  ceil(greatest(1, extract(epoch from case
    when guessed_out then guessed_from + interval '1 hour'
    when %(device_hash)s::bytea is not null then clock_timestamp() + make_interval(secs => %(pace)s)
    else paced_from + make_interval(secs => %(pace)s) end - clock_timestamp())))::integer as retry_after_seconds,
  is_full and not is_paced as needs_code
from answered
"""
SUCCEEDED = "update sentinel.sign_in_attempts set succeeded = true where attempt_id = %(attempt_id)s"
REFUSED = "update sentinel.sign_in_attempts set password_right = %(password_right)s where attempt_id = %(attempt_id)s"
SWEEP = "delete from sentinel.sign_in_attempts where attempted_at < clock_timestamp() - interval '1 day'"


def network_of(address: str) -> str:
    """What one customer of a network has: an IPv4 address, the first 64 bits of an IPv6 address; other text as it is."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


def begin_attempt(
    pool: Pool,
    *,
    email: str,
    address: str,
    throttle: Throttle,
    device_hash: bytes | None = None,
    with_code: bool = False,
) -> Attempt:
    """Count this attempt, or say how long to wait. `email` is kept only as a hash; `device_hash` is a known device's."""
    fields = {
        "account_hash": hashlib.sha256(email.encode()).digest(), "address": address, "network": network_of(address),
        "device_hash": device_hash, "with_code": with_code, "account": throttle.account, "near_most": throttle.address,
        "overall": throttle.overall, "window": WINDOW_SECONDS, "pace": PACE_SECONDS, "codes": CODES_PER_HOUR,
    }  # fmt: skip

    def call(connection: Any) -> Attempt:
        with connection.transaction(), connection.cursor(row_factory=class_row(Attempt)) as cursor:
            # Lock in a statement of its own: the count must see what the lock waited for.
            cursor.execute(_ONE_AT_A_TIME)
            found: Attempt = cursor.execute(BEGIN_ATTEMPT, fields).fetchone()
            return found

    return call_with_retry(pool, call)


def mark_success(pool: Pool, attempt_id: int) -> None:
    """Mark an attempt as successful: it no longer counts against the limit, the others do."""
    changed(pool, SUCCEEDED, {"attempt_id": attempt_id})


def mark_refused(pool: Pool, attempt_id: int, *, password_right: bool) -> None:
    """This attempt was refused; with a right password it was a guess of a code. Written for every refusal: one takes one time."""
    changed(pool, REFUSED, {"attempt_id": attempt_id, "password_right": password_right})


def sweep(pool: Pool) -> int:
    """Delete attempts older than a day; returns how many."""
    return changed(pool, SWEEP, {})

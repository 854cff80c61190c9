"""Sign-in attempts of the last minutes, counted over all processes, so that guessing is slow however it is distributed.

An attempt is recorded as failed before the password is checked and marked as a success afterwards: concurrent guesses
all count, and a person's own success never erases failures.

Nobody can lock a person out from everywhere:

* a known device, a browser that signed in as this person before, has a counter of its own and is subject to no other;
* over a limit, each account that failed from a network (an IPv4 address, the first 64 bits of an IPv6 address) still
  gets one attempt from there every `PACE_SECONDS`, and so does the first attempt on another account, however many
  attempts failed elsewhere or on other accounts: guessing one account's password does not lock out its colleagues. The
  networks of one IPv6 customer are slowed together: once much has failed from a /56 or a /48, that prefix as a whole
  has the pace;
* each account gets one more attempt at that pace from each network with a code of its second factor; for that one,
  password and code must both be right (`Attempt.needs_code`).

An attacker with any number of networks is still slowed: past `Throttle.account_most` failures on one account, or
`overall_most` on all, an attempt is considered only from a network from which somebody signed in within a day, from a
known device, or with a code.

Only somebody who knows an account's password can use up its guesses of codes: after `CODES_PER_HOUR`, or
`GUESSES_PER_DAY`, only a known device is considered until the oldest guess leaves its hour or day, or an administrator
has changed the account. `CODES_TOLD` guesses in a day append an event, because somebody else has the password too.

After `GUESSES_PER_DAY` failed attempts in a day from one known device, or from one session that asks for step-up, the
device is forgotten or the session ended (`Attempt.is_spent`), because its cookie is probably a stolen copy.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import class_row

from sentinel.core.hosts import network_of
from sentinel.store.database import Pool
from sentinel.store.ids import CLOCK_SKEW, first_id_at, new_id
from sentinel.store.queries import call_with_retry, changed
from sentinel.store.sql_template import SqlTemplate

WINDOW_SECONDS = 300
PACE_SECONDS = 30
CODES_PER_HOUR = 30
GUESSES_PER_DAY = 50
CODES_TOLD = 5
WIDER = ((56, 2), (48, 4))
"""IPv6 prefix lengths that one customer may have, each with the multiple of `Throttle.address` that may fail from one prefix."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """The failed attempts allowed in `WINDOW_SECONDS`: per account (or known device), per network, and in total.

    From `account_most` or `overall_most` on, an attempt without a code is refused unless its network has a recent
    success.
    """

    account: int = 10
    address: int = 10
    overall: int = 1000
    account_most: int = 200
    overall_most: int = 2000


@dataclass(frozen=True, slots=True)
class Attempt:
    """Whether an attempt may proceed: `attempt_id`, or None if there were too many and `retry_after_seconds` says when
    to retry.

    `needs_code`: it may succeed only with a right second factor. `is_spent`: too many attempts failed today from this
    known device or session; the caller has to forget or end it.
    """

    attempt_id: int | None
    retry_after_seconds: int
    needs_code: bool = False
    is_spent: bool = False


_ONE_AT_A_TIME = "select 1 from sentinel.sign_in_gate for update"
# The account's failed attempts of the last day. `is_guess`: a wrong code with the right password. It counts until an
# administrator has changed the account, or nobody could let its owner in again; for an address in several tenants,
# until each of them has. A change dated ahead of the clock (`sentinel.after_what_is_pending`) forgives none before that
# moment: no guess until then would count.
_OF_TODAY = """
  select s.attempt_id, s.device_hash, s.attempted_at, s.with_code, s.password_right and s.attempted_at > coalesce((
      select case when min(o.changed_by_another_at) <= clock_timestamp() then min(o.changed_by_another_at) end
      from sentinel.operators o where o.email = %(email)s), '-infinity') as is_guess
  from sentinel.sign_in_attempts s
  where s.account_hash = %(account_hash)s and not s.succeeded and s.attempted_at > clock_timestamp() - interval '1 day'
"""
# Returns one row. `retry_after_seconds` is until the pace allows the next attempt, or until the oldest guess of a code
# leaves its hour or day.
BEGIN_ATTEMPT = SqlTemplate("""
with recent as (
  select account_hash, account_hash = %(account_hash)s as is_ours, network, with_code, attempted_at,
    case when network ~ %(ipv6)s then network::cidr end as net
  from sentinel.sign_in_attempts
  where not succeeded and attempted_at > clock_timestamp() - make_interval(secs => %(window)s)
    and device_hash is not distinct from %(device_hash)s::bytea
), today as ({of_today}
), codes as (
  select greatest(
      case when count(*) filter (where hourly) >= %(codes)s then min(attempted_at) filter (where hourly) + interval '1 hour' end,
      case when count(*) filter (where is_guess) >= %(daily)s then min(attempted_at) filter (where is_guess) + interval '1 day' end
    ) as guessed_until,
    count(*) filter (where device_hash = %(device_hash)s::bytea) >= %(daily)s as is_spent
  from (select *, is_guess and device_hash is null and attempted_at > clock_timestamp() - interval '1 hour' as hourly from today) as codes
), around as (
  select 0 as width, %(near_most)s as most, account_hash, is_ours, with_code, attempted_at from recent where network = %(network)s
  union all
  select w.width, w.most, r.account_hash, r.is_ours, r.with_code, r.attempted_at
  from unnest(%(wider)s::cidr[], %(wider_most)s::integer[]) with ordinality w(net, most, width) join recent r on r.net <<= w.net
), near as (
  select width, count(*) >= most as is_full, max(attempted_at) filter (where is_ours) as ours_last,
    max(attempted_at) filter (where is_ours and with_code) as code_last
  from around group by width, most
), others as (
  select width, max(first_at) as newest
  from (select width, min(attempted_at) as first_at from around group by width, account_hash) as accounts group by width
), paced as (
  select coalesce(bool_or(is_full), false) as near_full,
    max(coalesce(ours_last, newest)) filter (where width = 0 or is_full) as paced_from,
    max(code_last) filter (where width = 0 or is_full) as code_last
  from near join others using (width)
), counted as (
  select count(*) filter (where is_ours) as ours, count(*) as overall from recent
), judged as (
  select paced_from, code_last, guessed_until, is_spent,
    %(device_hash)s::bytea is null and guessed_until is not null as guessed_out,
    ours >= %(account)s or %(device_hash)s::bytea is null and (near_full or overall >= %(overall)s) as is_full,
    (ours >= %(account_most)s or overall >= %(overall_most)s) and not exists (
      select from sentinel.sign_in_attempts s where s.succeeded and s.network = %(network)s
        and s.attempted_at > clock_timestamp() - interval '1 day') as is_beyond
  from counted cross join codes cross join paced
), answered as (
  select *, %(device_hash)s::bytea is null and not is_beyond
      and coalesce(paced_from, '-infinity') < clock_timestamp() - make_interval(secs => %(pace)s) as is_paced,
    %(device_hash)s::bytea is null and %(with_code)s and coalesce(code_last, '-infinity') < clock_timestamp() - make_interval(secs => %(pace)s)
      as has_code
  from judged
), inserted as (
  insert into sentinel.sign_in_attempts (account_hash, address, network, device_hash, with_code, succeeded)
  select %(account_hash)s, %(address)s, %(network)s, %(device_hash)s, %(with_code)s, false from answered
  where not guessed_out and not is_spent and (not is_full or is_paced or has_code) returning attempt_id
)
select (select attempt_id from inserted) as attempt_id,
  ceil(greatest(1, extract(epoch from case
    when guessed_out then guessed_until
    when %(device_hash)s::bytea is not null or is_beyond then clock_timestamp() + make_interval(secs => %(pace)s)
    else paced_from + make_interval(secs => %(pace)s) end - clock_timestamp())))::integer as retry_after_seconds,
  is_full and not is_paced as needs_code, is_spent
from answered
""").fill(of_today=_OF_TODAY)
SUCCEEDED = "update sentinel.sign_in_attempts set succeeded = true where attempt_id = %(attempt_id)s"
# The event is appended once a day at most, and again after an administrator has changed the account. The look-up of an
# earlier event runs only when one is due; everything else runs for every refusal, so that the time does not reveal the
# reason.
REFUSED = SqlTemplate("""
with refused as (
  update sentinel.sign_in_attempts set password_right = %(password_right)s
  where attempt_id = %(attempt_id)s returning password_right and with_code as is_guess
), today as ({of_today}
), guessed as (
  select count(*) filter (where is_guess and with_code and attempt_id <> %(attempt_id)s) + 1 as codes from today
)
select sentinel.append_event(o.tenant_id, %(event_id)s, 'operator_code_guessed', null, null, clock_timestamp(), jsonb_build_object(
  'by', 'sentinel', 'operator', o.email, 'operator_id', o.operator_id, 'codes', guessed.codes))
from refused cross join guessed
left join sentinel.operators o on o.tenant_id = %(tenant_id)s::uuid and o.operator_id = %(operator_id)s::uuid
where case when refused.is_guess and guessed.codes >= %(told)s then not exists (
  select from sentinel.events e where e.kind = 'operator_code_guessed' and e.kind not in ('decision', 'start', 'outcome')
    and e.event_id >= %(recent)s and e.tenant_id = o.tenant_id and e.body::jsonb ->> 'operator_id' = o.operator_id::text
    and e.occurred_at > greatest(clock_timestamp() - interval '1 day',
      case when o.changed_by_another_at <= clock_timestamp() then o.changed_by_another_at end)) end
""").fill(of_today=_OF_TODAY)
SWEPT_AT_ONCE = 5_000
SWEEP = """
delete from sentinel.sign_in_attempts where attempt_id in (
  select attempt_id from sentinel.sign_in_attempts where attempted_at < clock_timestamp() - interval '1 day'
  order by attempted_at limit %(most)s for update skip locked)
"""


_IPV6_NETWORK = "^([0-9a-f]{1,4}(:[0-9a-f]{1,4}){0,3})?::/64$"
"""The form in which `network_of` writes an IPv6 network; any other stored text is not cast to `cidr` in SQL."""


def _wider(network: str, most: int) -> dict[str, Any]:
    """Parameters with the wider prefixes of an IPv6 network and the failures allowed from each; empty for other networks."""
    if not re.fullmatch(_IPV6_NETWORK, network):
        return {"wider": [], "wider_most": []}
    found = ipaddress.IPv6Network(network)
    return {
        "wider": [str(found.supernet(new_prefix=bits)) for bits, _ in WIDER],
        "wider_most": [times * most for _, times in WIDER],
    }


def begin_attempt(
    pool: Pool,
    *,
    email: str,
    address: str,
    throttle: Throttle,
    device_hash: bytes | None = None,
    with_code: bool = False,
) -> Attempt:
    """Record this attempt as failed, or refuse it with the time to wait. `email` is stored only as a hash.

    `device_hash` is the counter of a known device or of a session; `with_code` says that a code was sent.
    """
    network = network_of(address)
    fields = {
        **_account(email), "address": address, "network": network,
        "device_hash": device_hash, "with_code": with_code, "account": throttle.account, "near_most": throttle.address,
        "overall": throttle.overall, "window": WINDOW_SECONDS, "pace": PACE_SECONDS, "codes": CODES_PER_HOUR, "daily": GUESSES_PER_DAY,
        "account_most": throttle.account_most, "overall_most": throttle.overall_most, "ipv6": _IPV6_NETWORK, **_wider(network, throttle.address),
    }  # fmt: skip

    def call(connection: psycopg.Connection[Any]) -> Attempt:
        with connection.transaction(), connection.cursor(row_factory=class_row(Attempt)) as cursor:
            # The lock is taken in a statement of its own, so that the count sees attempts committed while it waited.
            cursor.execute(_ONE_AT_A_TIME)
            found = cursor.execute(BEGIN_ATTEMPT, fields).fetchone()
            assert found is not None
            return found

    return call_with_retry(pool, call)


def mark_success(pool: Pool, attempt_id: int) -> None:
    """Mark an attempt as successful: it no longer counts as a failure; the failed ones still do."""
    changed(pool, SUCCEEDED, {"attempt_id": attempt_id})


def mark_refused(
    pool: Pool, attempt_id: int, *, email: str, who: tuple[uuid.UUID, uuid.UUID] | None, password_right: bool
) -> None:
    """Record a refusal; with a right password it was a guess of a code. Called for every refusal, so that all take the
    same time.

    `who` is (tenant id, operator id) of the address that was tried, if known; `CODES_TOLD` guesses in a day append an
    event there.
    """
    tenant_id, operator_id = who or (None, None)
    fields = {
        **_account(email), "attempt_id": attempt_id, "password_right": password_right, "event_id": new_id(),
        "recent": first_id_at(datetime.now(UTC) - timedelta(days=1) - CLOCK_SKEW),
        "tenant_id": tenant_id, "operator_id": operator_id, "told": CODES_TOLD,
    }  # fmt: skip
    changed(pool, REFUSED, fields)


def _account(email: str) -> dict[str, Any]:
    """Parameters of `_OF_TODAY`."""
    return {"email": email, "account_hash": account_hash(email)}


def account_hash(email: str) -> bytes:
    """The hash that an account is counted by. Unknown addresses are counted too, and no address is stored in clear."""
    return hashlib.sha256(email.encode()).digest()


def sweep(pool: Pool) -> int:
    """Delete attempts older than a day, at most `SWEPT_AT_ONCE`, and return how many."""
    return changed(pool, SWEEP, {"most": SWEPT_AT_ONCE})

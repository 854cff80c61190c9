"""Stored policy texts by digest, the policies in force, and how much of their limits is used.

If several authorities use one database, the policies that were declared last are in force.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg import errors as pg

from sentinel.authority.engine import Authority
from sentinel.core.canonical import canonical_json
from sentinel.core.errors import EngineUnavailable
from sentinel.policy.errors import PolicyError
from sentinel.policy.library import PolicyLibrary
from sentinel.store.database import Pool
from sentinel.store.ids import new_id
from sentinel.store.queries import all_rows, call_with_retry, scalar

OPERATIONS_LOOKED_AT = 500
"""How many of a tenant's latest operations are searched for subjects whose limit usage is shown."""


@dataclass(frozen=True, slots=True)
class InForceRow:
    """A policy in force with its canonical text; `earlier` counts its other stored texts."""

    policy_id: str
    policy_digest: str
    since: datetime
    canonical: str
    earlier: int


@dataclass(frozen=True, slots=True)
class LimitWindow:
    """A limit whose usage is read: `window` and `zone` as in its policy, `prefix` of its limit keys before the subject.

    `currency_part` is the position of the currency among the parts of the subject, from 1. `caps` are in minor units by
    currency.
    """

    prefix: str
    window: str
    window_seconds: int
    bucket_seconds: int
    zone: str
    currency_part: int
    caps: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LimitUsageRow:
    """How much of a limit one subject has used, in minor units; `whose` is a pseudonym, never the account itself.

    `cap_minor` is the cap given in `LimitWindow`, whatever cap the reservations were made under. `override_minor` is
    what people approved above the cap; it is not counted in `held_minor` and `captured_minor`.
    """

    prefix: str
    whose: str
    currency: str
    cap_minor: int
    held_minor: int
    captured_minor: int
    override_minor: int


REMEMBER_POLICY = """
insert into sentinel.policies (policy_digest, policy_id, policy_version, canonical)
values (%s, %s, %s, %s) on conflict (policy_digest) do nothing
"""
# Fails for a time zone that the server does not know: its calendar windows could not be counted.
TRY_ZONES = "select date_trunc('day', clock_timestamp(), zone) from unnest(%(zones)s::text[]) as asked (zone)"
# Policies belong to all tenants: their changes are events in the feed of the nil tenant.
PUT_IN_FORCE = """
with put as (
  insert into sentinel.policies_in_force as p (policy_id, policy_digest) select * from unnest(%(ids)s::text[], %(digests)s::text[])
  on conflict (policy_id) do update set policy_digest = excluded.policy_digest, since = clock_timestamp()
  where p.policy_digest <> excluded.policy_digest returning p.policy_id, p.policy_digest
)
select sentinel.append_event('00000000-0000-0000-0000-000000000000', n.event_id, 'policy_in_force', null, null, clock_timestamp(),
  jsonb_build_object('policy_id', p.policy_id, 'policy_digest', p.policy_digest, 'policy_version', k.policy_version))
from put as p join sentinel.policies k using (policy_digest)
join unnest(%(ids)s::text[], %(event_ids)s::uuid[]) as n (policy_id, event_id) on n.policy_id = p.policy_id
"""
IN_FORCE = """
select f.policy_id, f.policy_digest, f.since, p.canonical,
       (select count(*)::integer from sentinel.policies e where e.policy_id = f.policy_id) - 1 as earlier
from sentinel.policies_in_force f join sentinel.policies p using (policy_digest) order by f.policy_id
"""
# Sums the current window's parts as sentinel.limit_states does, for the subjects of recent operations: the number of
# rows read is bounded, however many accounts there are. Recent operations are found by the tenant's latest events,
# because the primary key of events begins with the tenant, and that of operations does not. Accounts are returned as
# pseudonyms only. Caps are parameters, because a stored cap is that of the last reservation that fitted; for a currency
# without a cap the limit does not apply.
HIGHEST_LIMIT_USAGE = """
with windows as materialized (
  select l.prefix, l.currency_part, l.caps, case l."window"
      when 'calendar_day' then date_trunc('day', clock_timestamp(), l.zone)
      when 'calendar_month' then date_trunc('month', clock_timestamp(), l.zone)
      else date_bin(make_interval(secs => greatest(l.bucket_seconds, 1)),
                    clock_timestamp() - make_interval(secs => l.window_seconds), 'epoch') end as since
  from unnest(%(prefixes)s::text[], %(windows)s::text[], %(seconds)s::integer[], %(buckets)s::integer[], %(zones)s::text[],
              %(parts)s::integer[], %(caps)s::jsonb[]) as l (prefix, "window", window_seconds, bucket_seconds, zone, currency_part, caps)
), lately as materialized (
  select r.limit_keys from (
    select operation_id from (
      select event_id, kind, operation_id from sentinel.events where tenant_id = %(tenant_id)s order by event_id desc limit 4 * %(looked)s) as e
    where kind = 'decision' order by event_id desc limit %(looked)s) as o
  join sentinel.reservations r on r.tenant_id = %(tenant_id)s and r.operation_id = o.operation_id
), keys as materialized (
  select distinct w.prefix, w.currency_part, w.caps, w.since, k.limit_key, substr(k.limit_key, length(w.prefix) + 1) as subject
  from lately cross join lateral unnest(limit_keys) as k (limit_key) join windows w on w.prefix = split_part(k.limit_key, '|', 1) || '|'
), capped as (
  select k.*, c.currency, (k.caps ->> c.currency)::bigint as cap_minor
  from keys k cross join lateral (select split_part(k.subject, '|', k.currency_part) as currency) as c
  where k.caps ? c.currency
), filled as (
  select k.prefix, k.subject, k.currency, k.cap_minor, u.held_minor, u.captured_minor, u.override_minor,
         row_number() over (partition by k.prefix
                            order by (u.held_minor + u.captured_minor)::numeric / greatest(k.cap_minor, 1) desc, k.subject) as nth
  from capped k cross join lateral (
    select sum(held_minor)::bigint as held_minor, sum(captured_minor)::bigint as captured_minor,
           sum(override_held_minor + override_captured_minor)::bigint as override_minor
    from sentinel.usage where tenant_id = %(tenant_id)s and limit_key = k.limit_key and policy_id = sentinel.policy_of(k.limit_key)
      and subject = k.subject and bucket >= k.since) as u
  where u.held_minor + u.captured_minor + u.override_minor > 0
)
select prefix, left(encode(sha256(convert_to(%(tenant_id)s::text || '/' || subject, 'UTF8')), 'hex'), 8) as whose, currency,
       cap_minor, held_minor, captured_minor, override_minor
from filled where nth <= %(most)s order by prefix, nth
"""
ARE_KNOWN = """
select not exists (select from unnest(%(digests)s::text[]) as asked (digest)
                   where not exists (select from sentinel.policies p where p.policy_digest = asked.digest))
"""
# Compares in both directions: policies in force with another text than here, policies of this authority that are not in
# force, and policies in force that are not loaded here.
NOT_IN_FORCE = """
select coalesce(array_agg(distinct coalesce(own.policy_id, f.policy_id)), '{}')
from unnest(%(ids)s::text[], %(digests)s::text[]) as own (policy_id, policy_digest)
full join sentinel.policies_in_force f on f.policy_id = own.policy_id and f.policy_digest = own.policy_digest
where own.policy_id is null or f.policy_id is null
"""
DIGESTS_IN_FORCE = "select array_agg(policy_digest order by policy_id) from sentinel.policies_in_force"
# Declarations go one after another: two at once could leave a mixture of their sets in force. Readers do not wait.
LOCK_IN_FORCE = "lock table sentinel.policies_in_force in share row exclusive mode"
POLICY_TEXT = "select canonical from sentinel.policies where policy_digest = %(policy_digest)s"
TAKE_OUT_OF_FORCE = """
with out as (delete from sentinel.policies_in_force where policy_id <> all (%(ids)s::text[]) returning policy_id, policy_digest)
select sentinel.append_event('00000000-0000-0000-0000-000000000000', %(event_id)s, 'policies_withdrawn', null, null, clock_timestamp(),
  jsonb_build_object('policy_ids', (select jsonb_agg(policy_id order by policy_id) from out)))
where exists (select from out)
"""


def remember_policies(pool: Pool, policies: Iterable[tuple[str, str, str, str]], zones: Iterable[str] = ()) -> None:
    """Store (digest, id, version, canonical text) of each policy and put exactly these policies in force.

    `zones` are their time zones. Raises `EngineUnavailable`, also for a zone that the server does not know; nothing is
    stored then.
    """
    known = sorted(policies, key=lambda policy: policy[1])
    in_force = {
        "ids": [policy[1] for policy in known], "digests": [policy[0] for policy in known],
        "event_ids": [new_id() for _ in known], "event_id": new_id(),
    }  # fmt: skip

    asked = {"zones": sorted(set(zones))}

    def call(connection: psycopg.Connection[Any]) -> None:
        with connection.transaction():
            connection.execute(LOCK_IN_FORCE)
            connection.execute(TRY_ZONES, asked)
            for policy in known:
                connection.execute(REMEMBER_POLICY, policy)
            connection.execute(PUT_IN_FORCE, in_force)
            connection.execute(TAKE_OUT_OF_FORCE, in_force)

    call_with_retry(pool, call)


def are_known(pool: Pool, digests: Sequence[str]) -> bool:
    """Return whether the database has the policy text of every digest. Raises `EngineUnavailable`."""
    found = call_with_retry(
        pool, lambda connection: connection.execute(ARE_KNOWN, {"digests": list(digests)}).fetchone()
    )
    return bool(found and found[0])


def policy_text(pool: Pool, policy_digest: str) -> str | None:
    """Return the canonical text of a policy by its digest; None if no authority declared it in this database."""
    found: str | None = scalar(pool, POLICY_TEXT, {"policy_digest": policy_digest})
    return found


def digests_in_force(pool: Pool) -> tuple[str, ...]:
    """Return the digest of every policy in force, in order of the policies' ids; empty until an authority declares some."""
    return tuple(scalar(pool, DIGESTS_IN_FORCE) or ())


def policies_in_force(pool: Pool) -> list[InForceRow]:
    """Return every policy in force, by id."""
    return all_rows(pool, InForceRow, IN_FORCE)


def highest_limit_usage(
    pool: Pool, tenant_id: uuid.UUID, limits: Sequence[LimitWindow], *, most: int
) -> list[LimitUsageRow]:
    """Return, for each limit, the `most` subjects of the latest operations that have used the greatest part of it."""
    if not limits:
        return []
    return all_rows(pool, LimitUsageRow, HIGHEST_LIMIT_USAGE, {
        "tenant_id": tenant_id, "most": most, "looked": OPERATIONS_LOOKED_AT, "prefixes": [one.prefix for one in limits],
        "windows": [one.window for one in limits], "seconds": [one.window_seconds for one in limits],
        "buckets": [one.bucket_seconds for one in limits], "zones": [one.zone for one in limits],
        "parts": [one.currency_part for one in limits], "caps": [canonical_json(dict(one.caps)) for one in limits],
    })  # fmt: skip


def declare_policies(authority: Authority) -> PolicyLibrary:
    """Store every loaded policy, put them in force, and return them. Raises `EngineUnavailable`."""
    library = authority.policies.library
    remember_policies(authority.pool, [
        (one.digest, one.policy.policy_id, one.policy.version, canonical_json(one.policy.document()))
        for one in library.policies
    ], [one.policy.zone for one in library.policies])  # fmt: skip
    return library


def refuse_unknown_zones(pool: Pool, folder: Path, library: PolicyLibrary) -> None:
    """Raise `PolicyError` for the first policy of the folder whose time zone the database server does not know.

    While the database is unavailable nothing is refused: `declare_policies` checks the zones again.
    """

    def call(connection: psycopg.Connection[Any]) -> None:
        for one in library.policies:
            try:
                connection.execute(TRY_ZONES, {"zones": [one.policy.zone]})
            except pg.InvalidParameterValue as error:
                raise PolicyError(
                    f'the database does not know its time zone "{one.policy.zone}"', file=str(folder),
                    rule=one.policy.policy_id, part="policy",
                ) from error  # fmt: skip

    with contextlib.suppress(EngineUnavailable):
        call_with_retry(pool, call)


def refuse_unknown_zones_at(conninfo: str, folder: Path, library: PolicyLibrary) -> None:
    """`refuse_unknown_zones` with a temporary pool, for a caller that has none."""
    pool = Pool(conninfo, size=1)
    try:
        refuse_unknown_zones(pool, folder, library)
    finally:
        pool.close()


def are_policies_declared(authority: Authority) -> bool:
    """Return whether the database has every loaded policy, which launch gates and proof packs need. Raises `EngineUnavailable`."""
    return are_known(authority.pool, [one.digest for one in authority.policies.library.policies])


def policies_not_in_force(authority: Authority) -> tuple[str, ...]:
    """Return the ids, sorted, of policies that differ between this authority and the database.

    Raises `EngineUnavailable`. Policies differ if another authority has declared another text since, has withdrawn the
    policy, or has declared a policy that is not loaded here.
    """
    own = [(one.policy.policy_id, one.digest) for one in authority.policies.library.policies]
    asked = {"ids": [policy_id for policy_id, _ in own], "digests": [digest for _, digest in own]}
    return tuple(sorted(scalar(authority.pool, NOT_IN_FORCE, asked)))

"""Agent keys: who may ask the authority, as whom, and what for. Shown once, kept as a hash, revocable.

A rotation makes a second key of the same principal and gives the first an end, so that an agent changes over without
a gap. Whether a key is usable is the database clock's word. Making, rotating and revoking write an event in the same
statement, with neither the key nor its hash.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sentinel.authority.secret_tokens import is_well_formed, make_secret, secret_hash
from sentinel.store.database import Pool
from sentinel.store.rows import all_rows, changed, one_row

LIVE, TEST = "snt_live_", "snt_test_"
HINT_LENGTH = 14

WORKER_SCOPE = "worker"
"""Whose word counts on facts that a policy has `vouched_by: worker`: a program that gathers facts and repeats no agent's."""
SCOPES = ("guard", "check", "report", "approvals:read", "approvals:read_all", "heartbeat", WORKER_SCOPE)
"""Everything a key can be allowed. None of them approves, sets or lifts a halt: no key ever can."""
DEFAULT_SCOPES = ("guard", "check", "report", "approvals:read", "heartbeat")
"""What an agent gets unless told otherwise: its own business, not other agents' approvals."""
WORKER_SCOPES = (*DEFAULT_SCOPES, WORKER_SCOPE)
"""What a worker gets, and the demo's agent, which gathers its facts itself."""


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key as the authority sees it; `usable` is neither revoked nor over, by the database clock."""

    tenant_id: uuid.UUID
    key_id: uuid.UUID
    principal_id: uuid.UUID
    agent_id: str | None
    scopes: list[str]
    owner_operator_id: uuid.UUID | None
    expires_at: datetime | None
    revoked_at: datetime | None
    usable: bool


@dataclass(frozen=True, slots=True)
class KeyListing:
    """A key as an administrator sees it; `hint` is its first characters, `owner` an operator's address.

    `last_used_at` is right to about a minute.
    """

    key_id: uuid.UUID
    principal_id: uuid.UUID
    hint: str
    label: str
    agent_id: str | None
    scopes: list[str]
    owner: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    usable: bool


_USABLE = "(k.revoked_at is null and (k.expires_at is null or k.expires_at > clock_timestamp())) as usable"

# By hash alone: the caller has nothing else yet. A key of a tenant that is gone is no key, hence the join.
FIND_KEY = f"""
select k.tenant_id, k.key_id, k.principal_id, k.agent_id, k.scopes, k.owner_operator_id, k.expires_at, k.revoked_at, {_USABLE}
from sentinel.agent_keys k join sentinel.tenants t using (tenant_id) where k.key_hash = %(key_hash)s
"""
FIND_KEY_BY_ID = f"""
select k.tenant_id, k.key_id, k.principal_id, k.agent_id, k.scopes, k.owner_operator_id, k.expires_at, k.revoked_at, {_USABLE}
from sentinel.agent_keys k where k.tenant_id = %(tenant_id)s and k.key_id = %(key_id)s
"""
LIST_KEYS = f"""
select k.key_id, k.principal_id, k.hint, k.label, k.agent_id, k.scopes, o.email as owner, k.created_at, k.expires_at,
       k.revoked_at, k.last_used_at, {_USABLE}
from sentinel.agent_keys k
left join sentinel.operators o on o.tenant_id = k.tenant_id and o.operator_id = k.owner_operator_id
where k.tenant_id = %(tenant_id)s order by k.created_at, k.key_id
"""
_WHAT_KEY = """jsonb_build_object('by', %(by)s::text, 'key_id', key_id, 'agent_id', agent_id, 'scopes', scopes,
    'owner_operator_id', owner_operator_id, 'expires_at', sentinel.utc_text(expires_at))"""
INSERT_KEY = f"""
with made as (
  insert into sentinel.agent_keys
    (tenant_id, key_id, principal_id, key_hash, hint, label, agent_id, scopes, owner_operator_id, maker_ids, expires_at)
  values (%(tenant_id)s, %(key_id)s, %(principal_id)s, %(key_hash)s, %(hint)s, %(label)s, %(agent_id)s, %(scopes)s,
    %(owner_operator_id)s, array_remove(array[%(by_id)s::uuid], null), clock_timestamp() + make_interval(secs => %(expires_seconds)s::integer))
  on conflict do nothing returning *
)
select sentinel.append_event(tenant_id, %(event_id)s, 'key_created', null, agent_id, clock_timestamp(), {_WHAT_KEY}) from made
"""
REVOKE_KEY = f"""
with ended as (
  update sentinel.agent_keys set revoked_at = clock_timestamp()
  where tenant_id = %(tenant_id)s and key_id = %(key_id)s and revoked_at is null
  returning *
)
select sentinel.append_event(tenant_id, %(event_id)s, 'key_revoked', null, agent_id, clock_timestamp(), {_WHAT_KEY}) from ended
"""
# One transaction: the successor takes everything over from the old key, which ends, never later than it would have.
ROTATE_KEY = f"""
with old as (
  update sentinel.agent_keys
  set expires_at = least(expires_at, clock_timestamp() + make_interval(secs => %(overlap_seconds)s::integer))
  where tenant_id = %(tenant_id)s and key_id = %(old_key_id)s and revoked_at is null
    and (expires_at is null or expires_at > clock_timestamp())
    and not exists (select from sentinel.agent_keys k where k.tenant_id = %(tenant_id)s and k.key_id = %(key_id)s)
  returning *
), made as (
  insert into sentinel.agent_keys
    (tenant_id, key_id, principal_id, key_hash, hint, label, agent_id, scopes, owner_operator_id, maker_ids, expires_at)
  select tenant_id, %(key_id)s, principal_id, %(key_hash)s, %(hint)s, label, agent_id, scopes, owner_operator_id,
         array_remove(maker_ids || %(by_id)s::uuid, null), clock_timestamp() + make_interval(secs => %(expires_seconds)s::integer)
  from old on conflict do nothing returning *
)
select sentinel.append_event(tenant_id, %(event_id)s, 'key_rotated', null, agent_id, clock_timestamp(), {_WHAT_KEY}
  || (select jsonb_build_object('old_key_id', old.key_id, 'old_expires_at', sentinel.utc_text(old.expires_at)) from old))
from made
"""
# Skips what somebody is changing just now: the housekeeper that writes this waits for nobody.
RECORD_USES = """
with used as (
  select k.tenant_id, k.key_id, clock_timestamp() - make_interval(secs => u.seconds_ago) as used_at
  from unnest(%(tenant_ids)s::uuid[], %(key_ids)s::uuid[], %(seconds_ago)s::double precision[]) as u (tenant_id, key_id, seconds_ago)
  join sentinel.agent_keys k using (tenant_id, key_id)
  for no key update of k skip locked
)
update sentinel.agent_keys k set last_used_at = used.used_at from used
where k.tenant_id = used.tenant_id and k.key_id = used.key_id and (k.last_used_at is null or k.last_used_at < used.used_at)
"""


def make_key(prefix: str = LIVE) -> str:
    """A new key: "snt_live_" (or "snt_test_"), 30 random base62 digits, 6 of checksum."""
    return make_secret(prefix)


def key_hash(key: str) -> bytes:
    """What of a key is stored: its SHA-256, 32 bytes."""
    return secret_hash(key)


def looks_like_key(key: str) -> bool:
    """Whether the form and the checksum are right: refuses typing errors before any database is asked."""
    return is_well_formed(key, (LIVE, TEST))


def find_key(pool: Pool, hash_: bytes) -> KeyRow | None:
    """The key of that hash, usable or not, or None."""
    return one_row(pool, KeyRow, FIND_KEY, {"key_hash": hash_})


def find_key_by_id(pool: Pool, tenant_id: uuid.UUID, key_id: uuid.UUID) -> KeyRow | None:
    """The tenant's key of that id, or None."""
    return one_row(pool, KeyRow, FIND_KEY_BY_ID, {"tenant_id": tenant_id, "key_id": key_id})


def list_keys(pool: Pool, tenant_id: uuid.UUID) -> list[KeyListing]:
    """All keys of a tenant, oldest first, dead ones included."""
    return all_rows(pool, KeyListing, LIST_KEYS, {"tenant_id": tenant_id})


def insert_key(
    pool: Pool,
    *,
    tenant_id: uuid.UUID,
    key_id: uuid.UUID,
    principal_id: uuid.UUID,
    key: str,
    label: str,
    agent_id: str | None,
    scopes: tuple[str, ...],
    owner_operator_id: uuid.UUID | None,
    expires_seconds: int | None,
    by: str,
    by_id: uuid.UUID | None,
    event_id: uuid.UUID,
) -> bool:
    """Keep a new key's hash; `expires_seconds` from now by the database clock, or None for no end.

    `by_id` is the operator who made it: whatever it asks, they asked. False when the id is taken."""
    return changed(pool, INSERT_KEY, {
        "tenant_id": tenant_id, "key_id": key_id, "principal_id": principal_id, "key_hash": key_hash(key),
        "hint": key[:HINT_LENGTH], "label": label, "agent_id": agent_id, "scopes": list(scopes),
        "owner_operator_id": owner_operator_id, "expires_seconds": expires_seconds, "by": by, "by_id": by_id, "event_id": event_id,
    }) == 1  # fmt: skip


def revoke_key(pool: Pool, tenant_id: uuid.UUID, key_id: uuid.UUID, *, by: str, event_id: uuid.UUID) -> bool:
    """End a key now. False when there is none, or it was revoked before."""
    fields = {"tenant_id": tenant_id, "key_id": key_id, "by": by, "event_id": event_id}
    return changed(pool, REVOKE_KEY, fields) == 1


def rotate_key(
    pool: Pool,
    *,
    tenant_id: uuid.UUID,
    old_key_id: uuid.UUID,
    key_id: uuid.UUID,
    key: str,
    overlap_seconds: int,
    expires_seconds: int | None,
    by: str,
    by_id: uuid.UUID | None,
    event_id: uuid.UUID,
) -> bool:
    """Keep `key` as the successor of a usable key, which ends after `overlap_seconds`. False when it is not usable."""
    return changed(pool, ROTATE_KEY, {
        "tenant_id": tenant_id, "old_key_id": old_key_id, "key_id": key_id, "key_hash": key_hash(key),
        "hint": key[:HINT_LENGTH], "overlap_seconds": overlap_seconds, "expires_seconds": expires_seconds,
        "by": by, "by_id": by_id, "event_id": event_id,
    }) == 1  # fmt: skip


def record_uses(pool: Pool, uses: Mapping[tuple[uuid.UUID, uuid.UUID], float]) -> None:
    """Note when keys were used last: (tenant, key) → seconds ago. A later use that is on record stays."""
    changed(pool, RECORD_USES, {
        "tenant_ids": [tenant_id for tenant_id, _ in uses], "key_ids": [key_id for _, key_id in uses],
        "seconds_ago": list(uses.values()),
    })  # fmt: skip

"""Agent keys: who may call the authority, for which agent, and with which scopes.

A key is shown once, stored as a hash, and can be revoked. A rotation makes a second key of the same principal and lets
the first one expire after an overlap, so that an agent changes over without a gap. The database's clock says whether a
key is usable. Issuing, rotating and revoking go through `protected_changes.py`.

Every secret has a known prefix, by which scanners find a leaked one, 178 random bits, and a checksum, by which a typing
error is refused without a query. A plain SHA-256 is enough at rest, because 178 random bits cannot be guessed by trial.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sentinel.authority.actor import Actor, local_administrator
from sentinel.authority.protected_changes import ISSUE_KEY, REVOKE_KEY, ROTATE_KEY, address_of, request_change
from sentinel.core.errors import Conflict, InvalidInput, NotFound
from sentinel.core.operation import check_identifier
from sentinel.store.database import Pool
from sentinel.store.ids import new_id
from sentinel.store.queries import all_rows, changed, one_row, scalar
from sentinel.store.sql_template import SqlTemplate

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_KNOWN = frozenset(_DIGITS)
RANDOM_LENGTH = 30
CHECKSUM_LENGTH = 6


def make_secret(prefix: str) -> str:
    """Return a new secret: `prefix`, 30 random base62 digits, and 6 base62 digits of the CRC-32 of all before."""
    body = prefix + "".join(secrets.choice(_DIGITS) for _ in range(RANDOM_LENGTH))
    return body + _checksum(body)


def is_well_formed(secret: str, prefixes: tuple[str, ...]) -> bool:
    """Return whether `secret` has one of the prefixes, the right length and alphabet, and a correct checksum."""
    prefix = next((known for known in prefixes if secret.startswith(known)), None)
    if prefix is None or len(secret) != len(prefix) + RANDOM_LENGTH + CHECKSUM_LENGTH:
        return False
    return _KNOWN.issuperset(secret[len(prefix) :]) and secret[-CHECKSUM_LENGTH:] == _checksum(
        secret[:-CHECKSUM_LENGTH]
    )


def secret_hash(secret: str) -> bytes:
    """Return the form in which a secret is stored and looked up: its SHA-256, 32 bytes."""
    return hashlib.sha256(secret.encode()).digest()


def _checksum(body: str) -> str:
    value, text = zlib.crc32(body.encode()), ""
    for _ in range(CHECKSUM_LENGTH):
        value, digit = divmod(value, len(_DIGITS))
        text = _DIGITS[digit] + text
    return text


LIVE, TEST = "snt_live_", "snt_test_"
HINT_LENGTH = 14

WORKER_SCOPE = "worker"
"""The scope of a key that may vouch for facts that a policy declares `vouched_by: worker`.

For a program that gathers facts itself and does not pass on what an agent states.
"""
SCOPES = ("guard", "check", "report", "approvals:read", "approvals:read_all", "heartbeat", WORKER_SCOPE)
"""All scopes that a key can have. None of them permits approving, or setting or lifting a halt: no key can do that."""
DEFAULT_SCOPES = ("guard", "check", "report", "approvals:read", "heartbeat")
"""The default scopes of an agent's key: its own requests and approvals, not those of other agents."""
WORKER_SCOPES = (*DEFAULT_SCOPES, WORKER_SCOPE)
"""The scopes of a worker's key, and of the demo's agent, which gathers its facts itself."""


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key as the authority sees it; `usable` means neither revoked nor expired, by the database's clock."""

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

    `last_used_at` is accurate to about a minute.
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


_LISTED = """k.key_id, k.principal_id, k.hint, k.label, k.agent_id, k.scopes, o.email as owner, k.created_at, k.expires_at,
       k.revoked_at, k.last_used_at"""
_OWNERS = "left join sentinel.operators o on o.tenant_id = k.tenant_id and o.operator_id = k.owner_operator_id"
_USABLE = "(k.revoked_at is null and (k.expires_at is null or k.expires_at > clock_timestamp())) as usable"

# Looks up by the hash alone, because the tenant is not known yet. The join leaves out a key whose tenant was deleted.
FIND_KEY = SqlTemplate("""
select k.tenant_id, k.key_id, k.principal_id, k.agent_id, k.scopes, k.owner_operator_id, k.expires_at, k.revoked_at, {usable}
from sentinel.agent_keys k join sentinel.tenants t using (tenant_id) where k.key_hash = %(key_hash)s
""").fill(usable=_USABLE)
FIND_KEY_BY_ID = SqlTemplate("""
select k.tenant_id, k.key_id, k.principal_id, k.agent_id, k.scopes, k.owner_operator_id, k.expires_at, k.revoked_at, {usable}
from sentinel.agent_keys k where k.tenant_id = %(tenant_id)s and k.key_id = %(key_id)s
""").fill(usable=_USABLE)
KEY_HINT = "select hint from sentinel.agent_keys where tenant_id = %(tenant_id)s and key_id = %(key_id)s"
LIST_KEYS = SqlTemplate("""
select {listed}, {usable} from sentinel.agent_keys k {owners} where k.tenant_id = %(tenant_id)s order by k.created_at, k.key_id
""").fill(listed=_LISTED, owners=_OWNERS, usable=_USABLE)
# The newest ones of the usable and of the other keys. Only these become values: a tenant's expired keys are never deleted.
NEWEST_KEYS = SqlTemplate("""
select {listed}, k.usable
from (
  select n.*, row_number() over (partition by n.usable order by n.created_at desc, n.key_id desc) as place
  from (
    select k.*, {usable} from sentinel.agent_keys k
    where k.tenant_id = %(tenant_id)s and (%(among)s::uuid[] is null or k.key_id = any(%(among)s::uuid[]))) n
) k {owners}
where k.place <= %(most)s or k.key_id = %(about)s::uuid
order by k.created_at desc, k.key_id desc
""").fill(listed=_LISTED, owners=_OWNERS, usable=_USABLE)
KEY_NAMES = """
select key_id, label, agent_id, hint from sentinel.agent_keys where tenant_id = %(tenant_id)s
"""
HAS_SCOPE = """
select exists (select from sentinel.agent_keys
  where tenant_id = %(tenant_id)s and principal_id = %(principal_id)s and %(scope)s = any(scopes))
"""


def looks_like_key(key: str) -> bool:
    """Return whether a key's form and checksum are right, to refuse typing errors without a query."""
    return is_well_formed(key, (LIVE, TEST))


def find_key(pool: Pool, hash_: bytes) -> KeyRow | None:
    """Return the key with that hash, usable or not, or None."""
    return one_row(pool, KeyRow, FIND_KEY, {"key_hash": hash_})


def find_key_by_id(pool: Pool, tenant_id: uuid.UUID, key_id: uuid.UUID) -> KeyRow | None:
    """Return the tenant's key with that id, usable or not, or None."""
    return one_row(pool, KeyRow, FIND_KEY_BY_ID, {"tenant_id": tenant_id, "key_id": key_id})


def is_workers(pool: Pool, tenant_id: uuid.UUID, principal_id: uuid.UUID) -> bool:
    """Return whether any of a principal's keys, usable or not, has the scope `worker`. A rotation does not change scopes."""
    fields = {"tenant_id": tenant_id, "principal_id": principal_id, "scope": WORKER_SCOPE}
    return bool(scalar(pool, HAS_SCOPE, fields))


def list_keys(pool: Pool, tenant_id: uuid.UUID) -> list[KeyListing]:
    """Return all keys of a tenant, oldest first, including revoked and expired ones."""
    return all_rows(pool, KeyListing, LIST_KEYS, {"tenant_id": tenant_id})


@dataclass(frozen=True, slots=True)
class _KeyName:
    key_id: uuid.UUID
    label: str
    agent_id: str | None
    hint: str


def newest_keys(
    pool: Pool, tenant_id: uuid.UUID, *, sought: str, about: uuid.UUID | None, most: int
) -> list[KeyListing]:
    """Return at most `most` usable keys of a tenant and `most` others, newest first, and the key `about` in any case.

    `sought` is text in the label, the agent or the hint, in any case of its letters.
    """
    among = _named(pool, tenant_id, sought, about) if sought else None
    return all_rows(
        pool, KeyListing, NEWEST_KEYS, {"tenant_id": tenant_id, "among": among, "about": about, "most": most}
    )


def _named(pool: Pool, tenant_id: uuid.UUID, sought: str, about: uuid.UUID | None) -> list[uuid.UUID]:
    # Compared here: with the locale C, the database knows the case of ASCII letters only.
    wanted = sought.casefold()
    return [
        one.key_id
        for one in all_rows(pool, _KeyName, KEY_NAMES, {"tenant_id": tenant_id})
        if wanted in " ".join((one.label, one.agent_id or "", one.hint)).casefold() or one.key_id == about
    ]


def kept_of(key: str, principal_id: uuid.UUID) -> dict[str, str]:
    """Return what is stored of a new key: its hash (hex), its first characters as a hint, and its principal."""
    return {"key_hash": secret_hash(key).hex(), "hint": key[:HINT_LENGTH], "principal_id": str(principal_id)}


MOST_DAYS = 3650


class MadeBefore(Conflict):
    """Raised if a key with that id was already made, as by a form that is sent twice. The key cannot be shown again."""

    code = "key-made-before"

    def __init__(self) -> None:
        super().__init__("this form has already made its key; a key is shown only once")


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key that was just made. `key` is the secret, which must be shown once and never stored."""

    key: str
    key_id: uuid.UUID
    principal_id: uuid.UUID


def issue_key(
    pool: Pool,
    tenant_id: uuid.UUID,
    *,
    agent_id: str | None,
    label: str = "",
    scopes: tuple[str, ...] = DEFAULT_SCOPES,
    owner_operator_id: uuid.UUID | None = None,
    expires_days: int | None = None,
    test: bool = False,
    key_id: uuid.UUID | None = None,
    actor: Actor | None = None,
) -> IssuedKey:
    """Issue a key of a new principal. Its owner and its maker can never approve what it requests.

    `agent_id` binds the key to one agent; without it, the key may act for any agent. With a given `key_id` only one key
    is ever made: a repeat raises `MadeBefore`. `actor` is who makes the key; None is the local administrator. Raises
    `InvalidInput` naming the field, `MadeBefore`, or `WaitsForAdministrator` (not made yet), and as `request_change`.
    """
    if agent_id is not None:
        check_identifier(agent_id, "agent_id", 128)
    check_scopes(scopes)
    owner = address_of(pool, tenant_id, owner_operator_id) if owner_operator_id is not None else None
    issued = IssuedKey(make_secret(TEST if test else LIVE), key_id or new_id(), uuid.uuid4())
    said = request_change(
        pool, actor or local_administrator(tenant_id), ISSUE_KEY, f"key/{issued.key_id}",
        {"key_id": issued.key_id, "agent_id": agent_id, "label": label or None, "scopes": scopes, "owner": owner,
         "owner_operator_id": owner_operator_id, "expires_seconds": key_lifetime_seconds(expires_days), "test": test or None},
        kept_of(issued.key, issued.principal_id),
    )  # fmt: skip
    if said != "done":
        raise MadeBefore
    return issued


def check_scopes(scopes: tuple[str, ...]) -> None:
    """Raise `InvalidInput` for an unknown scope, or no scope at all."""
    unknown = sorted(set(scopes) - set(SCOPES))
    if unknown or not scopes:
        raise InvalidInput.of("scopes", f"must be one or more of {', '.join(SCOPES)}")


def key_lifetime_seconds(days: int | None) -> int | None:
    """Return a lifetime in days as seconds; None for a key that does not expire. Raises `InvalidInput`."""
    if days is None:
        return None
    if not 1 <= days <= MOST_DAYS:
        raise InvalidInput.of("expires_days", f"must be 1 to {MOST_DAYS}")
    return days * 86400


OVERLAP_SECONDS = 86400


def rotate_key(
    pool: Pool,
    tenant_id: uuid.UUID,
    key_id: uuid.UUID,
    *,
    overlap_seconds: int = OVERLAP_SECONDS,
    expires_days: int | None = None,
    new_key_id: uuid.UUID | None = None,
    actor: Actor | None = None,
) -> IssuedKey:
    """Issue the successor of a usable key, with the same principal, agent, scopes and owner.

    The old key expires after `overlap_seconds`, or earlier if it would have. With a given `new_key_id` only one key is
    ever made: a repeat raises `MadeBefore`. `actor` is who rotates it (None: the local administrator), and can never
    approve what the key requests either. Raises `InvalidInput`, `NotFound`, `MadeBefore`, `WaitsForAdministrator` (not
    made yet), or `Conflict` if the old key is revoked or expired.
    """
    if overlap_seconds < 0:
        raise InvalidInput.of("overlap_seconds", "must not be negative")
    old = find_key_by_id(pool, tenant_id, key_id)
    if old is None:
        raise NotFound("there is no key with this id")
    is_test = scalar(pool, KEY_HINT, {"tenant_id": tenant_id, "key_id": key_id}).startswith(TEST)
    issued = IssuedKey(make_secret(TEST if is_test else LIVE), new_key_id or new_id(), old.principal_id)
    said = request_change(
        pool, actor or local_administrator(tenant_id), ROTATE_KEY, f"key/{key_id}",
        {"key_id": issued.key_id, "old_key_id": key_id, "agent_id": old.agent_id, "scopes": old.scopes,
         "overlap_seconds": overlap_seconds, "expires_seconds": key_lifetime_seconds(expires_days),
         **({"test": True} if is_test else {})},
        kept_of(issued.key, issued.principal_id),
    )  # fmt: skip
    if said == "made_before":
        raise MadeBefore
    if said != "done":
        raise Conflict("the key is revoked or expired; make a new one")
    return issued


def revoke_key(pool: Pool, tenant_id: uuid.UUID, key_id: uuid.UUID, *, actor: Actor | None = None) -> None:
    """Revoke the tenant's key; `actor` None is the local administrator.

    Raises `NotFound`, or `Conflict` if it was already revoked.
    """
    said = request_change(
        pool, actor or local_administrator(tenant_id), REVOKE_KEY, f"key/{key_id}", {"key_id": key_id}
    )
    if said == "unknown":
        raise NotFound("there is no key with this id")
    if said != "done":
        raise Conflict("the key was revoked before")


USES_WRITTEN_SECONDS = 60.0

# Skips rows that another transaction has locked: the housekeeping thread must not wait for them.
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


class KeyUses:
    """When keys were last used: collected in memory, written by the housekeeping thread so that no decision waits.

    Accurate to the lifetime of the key cache (`authority/api/identity.py`). A process writes each key at most once a
    minute, and loses at most that minute when it is killed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._used: dict[tuple[uuid.UUID, uuid.UUID], float] = {}
        self._written: dict[tuple[uuid.UUID, uuid.UUID], float] = {}

    def note(self, tenant_id: uuid.UUID, key_id: uuid.UUID) -> None:
        """Note that the key was accepted just now."""
        with self._lock:
            self._used[tenant_id, key_id] = self._clock()

    def write(self, pool: Pool) -> int:
        """Write the uses of those keys that were not written in the last minute, and return their number.

        Raises `EngineUnavailable`.
        """
        now = self._clock()
        with self._lock:
            self._written = {key: at for key, at in self._written.items() if now - at < USES_WRITTEN_SECONDS}
            due = {key: at for key, at in self._used.items() if key not in self._written}
        if not due:
            return 0
        _record_uses(pool, {key: now - at for key, at in due.items()})
        with self._lock:
            for key, at in due.items():
                self._written[key] = now
                if self._used.get(key) == at:
                    del self._used[key]
        return len(due)


def _record_uses(pool: Pool, uses: Mapping[tuple[uuid.UUID, uuid.UUID], float]) -> None:
    """Store when keys were last used: (tenant, key) → seconds ago. A later use that is already stored is kept."""
    changed(pool, RECORD_USES, {
        "tenant_ids": [tenant_id for tenant_id, _ in uses], "key_ids": [key_id for _, key_id in uses],
        "seconds_ago": list(uses.values()),
    })  # fmt: skip

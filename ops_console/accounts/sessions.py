"""Operators' sessions: kept as hashes in the database and ended there, so that a copied cookie is useless after the
sign-out.

Role and active state are read with every lookup, never from the cookie. Sessions expire by the database's clock.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

import orjson

from sentinel.store.database import Pool
from sentinel.store.queries import all_rows, changed, one_row
from sentinel.store.sql_template import SqlTemplate


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A person with a valid session or token. `csrf_token`, `session_id`, `kind`, `said` and `proved` are a session's
    only.

    `stale`: the session's last use has to be written again. `kind` is "page" for a browser's session, else "api".
    `said` are messages for the next page. `proved`: the session was stepped up in the last minutes.
    `must_set_password`: somebody else set the person's password.
    """

    tenant_id: uuid.UUID
    tenant_label: str
    operator_id: uuid.UUID
    email: str
    role: str
    csrf_token: str | None
    expires_at: datetime | None
    stale: bool
    has_second_factor: bool
    session_id: uuid.UUID | None = None
    kind: str = "api"
    said: list[dict[str, str]] | None = None
    proved: bool = False
    must_set_password: bool = False


@dataclass(frozen=True, slots=True)
class SessionListing:
    """A session as its owner sees it; `address` and `user_agent` are as the sign-in request had them, truncated and cleaned."""

    session_id: uuid.UUID
    kind: str
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    address: str
    user_agent: str


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """A session's absolute end, however much it is used."""

    expires_at: datetime


HAS_SECOND_FACTOR = """exists (select from sentinel.second_factors f
         where f.tenant_id = o.tenant_id and f.operator_id = o.operator_id and f.confirmed_at is not null)"""
_LIVES = """s.revoked_at is null and s.expires_at > clock_timestamp()
  and s.last_seen_at > clock_timestamp() - make_interval(secs => %(idle_seconds)s::double precision)"""
# Only if the account is still as it was when password and code were checked. Whatever ends sessions first updates or
# locks this row, so when both happen at once, the later one sees the other. A password that works once is used up by the
# session that it opens, and by nothing else: interrupted before, it still works. `kept`: the first attempt was committed
# and its answer was lost.
INSERT_SESSION = """
with kept as (
  select s.expires_at from sentinel.operator_sessions s where s.tenant_id = %(tenant_id)s and s.session_hash = %(session_hash)s
), seen as (
  update sentinel.operators o set last_signed_in_at = clock_timestamp(),
    password_used_at = case when o.password_one_time then clock_timestamp() end
  where o.tenant_id = %(tenant_id)s and o.operator_id = %(operator_id)s and o.active and o.password_hash = %(password_hash)s
    and o.changed_by_another_at::text is not distinct from %(changed_by_another)s::text
    and (not o.password_one_time or o.password_used_at is null) and not exists (select from kept)
  returning o.operator_id
), made as (
insert into sentinel.operator_sessions (tenant_id, session_hash, operator_id, csrf_token, kind, address, user_agent, expires_at)
select %(tenant_id)s::uuid, %(session_hash)s::bytea, seen.operator_id, %(csrf_token)s::text, %(kind)s::text, %(address)s::text,
  %(user_agent)s::text, clock_timestamp() + make_interval(secs => %(absolute_seconds)s::double precision)
from seen
returning expires_at
)
select expires_at from made union all select expires_at from kept
"""
FIND_SESSION = SqlTemplate("""
select s.tenant_id, t.label as tenant_label, s.operator_id, o.email, o.role, s.csrf_token, s.expires_at,
       s.session_id, s.kind, s.said, {has_second_factor} as has_second_factor, o.password_one_time as must_set_password,
       coalesce(s.stepped_up_at > clock_timestamp() - make_interval(secs => %(step_up_seconds)s::double precision), false) as proved,
       s.last_seen_at < clock_timestamp() - make_interval(secs => %(touch_seconds)s::double precision) as stale
from sentinel.operator_sessions s
join sentinel.operators o using (tenant_id, operator_id) join sentinel.tenants t using (tenant_id)
where s.session_hash = %(session_hash)s and o.active and {lives}
""").fill(has_second_factor=HAS_SECOND_FACTOR, lives=_LIVES)
LIST_SESSIONS = SqlTemplate("""
select s.session_id, s.kind, s.created_at, s.last_seen_at, s.expires_at, s.address, s.user_agent
from sentinel.operator_sessions s
where s.tenant_id = %(tenant_id)s and s.operator_id = %(operator_id)s and {lives}
order by s.last_seen_at desc, s.session_id limit 200
""").fill(lives=_LIVES)
# Only a session that was not revoked can be stepped up.
STEP_UP = """
update sentinel.operator_sessions set stepped_up_at = clock_timestamp()
where tenant_id = %(tenant_id)s and operator_id = %(operator_id)s and session_id = %(session_id)s and revoked_at is null
"""
END_SESSION = """
update sentinel.operator_sessions set revoked_at = clock_timestamp()
where tenant_id = %(tenant_id)s and operator_id = %(operator_id)s and session_id = %(session_id)s and revoked_at is null
"""
END_OTHERS = """
update sentinel.operator_sessions set revoked_at = clock_timestamp()
where tenant_id = %(tenant_id)s and operator_id = %(operator_id)s and session_id <> %(session_id)s and revoked_at is null
"""
TOUCH_SESSION = """
update sentinel.operator_sessions set last_seen_at = clock_timestamp()
where tenant_id = %(tenant_id)s and session_hash = %(session_hash)s and revoked_at is null
"""
REVOKE_SESSION = """
update sentinel.operator_sessions set revoked_at = clock_timestamp()
where session_hash = %(session_hash)s and revoked_at is null
"""
KEEP_SAYING = """
update sentinel.operator_sessions set said = coalesce(said, '[]'::jsonb) || %(said)s::jsonb
where tenant_id = %(tenant_id)s and operator_id = %(operator_id)s and session_id = %(session_id)s and revoked_at is null
"""
# Only the messages that this page read: another window may have stored more since.
FORGET_SAID = """
update sentinel.operator_sessions set said = null
where tenant_id = %(tenant_id)s and operator_id = %(operator_id)s and session_id = %(session_id)s and said = %(said)s::jsonb
"""
KEPT_DAYS = 30
"""How long a session's row, with the address it was opened from, is kept after its absolute end."""
SWEPT_AT_ONCE = 5_000
SWEEP = """
delete from sentinel.operator_sessions where (tenant_id, session_hash) in (
  select tenant_id, session_hash from sentinel.operator_sessions where expires_at < clock_timestamp() - make_interval(days => %(days)s)
  limit %(most)s for update skip locked)
"""


def insert_session(
    pool: Pool,
    *,
    tenant_id: uuid.UUID,
    operator_id: uuid.UUID,
    session_hash: bytes,
    csrf_token: str,
    kind: str,
    address: str,
    user_agent: str,
    absolute_seconds: float,
    password_hash: str,
    changed_by_another: str | None,
) -> datetime | None:
    """Store a new session and the time of the sign-in, use up a password that works once, and return the session's
    absolute end.

    Returns None and stores nothing if the account has changed since `password_hash` and `changed_by_another` were read, or
    if such a password was used before.
    """
    end = one_row(pool, SessionEnd, INSERT_SESSION, {
        "tenant_id": tenant_id, "operator_id": operator_id, "session_hash": session_hash, "csrf_token": csrf_token,
        "kind": kind, "address": address, "user_agent": user_agent, "absolute_seconds": absolute_seconds,
        "password_hash": password_hash, "changed_by_another": changed_by_another,
    })  # fmt: skip
    return end.expires_at if end is not None else None


def find_session(
    pool: Pool, session_hash: bytes, *, idle_seconds: float, touch_seconds: float, step_up_seconds: float
) -> SignedIn | None:
    """Return the session's person; None if it is unknown, revoked, idle for too long or expired, or the operator is deactivated."""
    fields = {
        "session_hash": session_hash, "idle_seconds": idle_seconds, "touch_seconds": touch_seconds,
        "step_up_seconds": step_up_seconds,
    }  # fmt: skip
    return one_row(pool, SignedIn, FIND_SESSION, fields)


def list_sessions(
    pool: Pool, tenant_id: uuid.UUID, operator_id: uuid.UUID, *, idle_seconds: float
) -> list[SessionListing]:
    """An operator's live sessions, last used first, at most 200."""
    fields = {"tenant_id": tenant_id, "operator_id": operator_id, "idle_seconds": idle_seconds}
    return all_rows(pool, SessionListing, LIST_SESSIONS, fields)


def step_up(pool: Pool, who: SignedIn) -> bool:
    """Record a step-up: the session's person proved who they are just now. False if the session was revoked."""
    return changed(pool, STEP_UP, _session(who)) == 1


def end_session(pool: Pool, tenant_id: uuid.UUID, operator_id: uuid.UUID, session_id: uuid.UUID) -> bool:
    """Revoke one of an operator's own sessions. False if there is none of that id, or it was revoked before."""
    fields = {"tenant_id": tenant_id, "operator_id": operator_id, "session_id": session_id}
    return changed(pool, END_SESSION, fields) == 1


def end_others(pool: Pool, who: SignedIn) -> int:
    """Revoke all of the person's sessions but this one, and return how many."""
    return changed(pool, END_OTHERS, _session(who))


def touch_session(pool: Pool, tenant_id: uuid.UUID, session_hash: bytes) -> None:
    """Record that the session was used now."""
    changed(pool, TOUCH_SESSION, {"tenant_id": tenant_id, "session_hash": session_hash})


def revoke_session(pool: Pool, session_hash: bytes) -> bool:
    """Revoke a session by its hash. False if it is unknown or was revoked before."""
    return changed(pool, REVOKE_SESSION, {"session_hash": session_hash}) == 1


def store_message(pool: Pool, who: SignedIn, said: dict[str, str]) -> None:
    """Store a message for the session's next page."""
    changed(pool, KEEP_SAYING, {**_session(who), "said": orjson.dumps([said]).decode()})


def take_messages(pool: Pool, who: SignedIn) -> list[dict[str, str]]:
    """Return the messages stored for this page, and remove them. If more were stored since, all of them stay for the next page."""
    if not who.said:
        return []
    changed(pool, FORGET_SAID, {**_session(who), "said": orjson.dumps(who.said).decode()})
    return who.said


def sweep(pool: Pool) -> int:
    """Delete sessions whose absolute end is `KEPT_DAYS` past, at most `SWEPT_AT_ONCE`, and return how many."""
    return changed(pool, SWEEP, {"days": KEPT_DAYS, "most": SWEPT_AT_ONCE})


def _session(who: SignedIn) -> dict[str, uuid.UUID | None]:
    return {"tenant_id": who.tenant_id, "operator_id": who.operator_id, "session_id": who.session_id}

"""Second factors as rows: one per person, encrypted by `totp.py`, with the time step of the last code used.

Steps are counted by the database's clock, 30 seconds each. A code works once: using it is an UPDATE that requires its
step to be later than the last one.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from sentinel.store.database import Pool
from sentinel.store.queries import changed, one_row
from sentinel.store.sql_template import SqlTemplate

STEP_SECONDS = 30
PENDING_MINUTES = 10
"""How long a secret can be confirmed after it was first shown."""
_IS_FRESH = f"f.created_at > clock_timestamp() - interval '{PENDING_MINUTES} minutes'"


@dataclass(frozen=True, slots=True)
class Pending:
    """A second factor that was shown but is not confirmed: its sealed secret, and the current time step."""

    secret: str
    now_step: int


# A second tab shows the same secret. A secret that was shown long ago, or for which a new one is asked (`anew`), is
# replaced: somebody who once saw the account's page must not know the secret that the owner confirms later.
START = SqlTemplate("""
insert into sentinel.second_factors as f (tenant_id, operator_id, secret)
values (%(tenant_id)s, %(operator_id)s, %(secret)s)
on conflict (tenant_id, operator_id) do update set secret = excluded.secret, created_at = clock_timestamp()
where f.confirmed_at is null and (%(anew)s or not ({is_fresh}))
""").fill(is_fresh=_IS_FRESH)
PENDING = SqlTemplate("""
select f.secret, floor(extract(epoch from clock_timestamp()) / {step_seconds})::bigint as now_step from sentinel.second_factors f
where f.tenant_id = %(tenant_id)s and f.operator_id = %(operator_id)s and f.confirmed_at is null and {is_fresh}
""").fill(step_seconds=STEP_SECONDS, is_fresh=_IS_FRESH)
CONFIRM = SqlTemplate("""
with done as (
  update sentinel.second_factors f set confirmed_at = clock_timestamp(), last_step = %(step)s
  where f.tenant_id = %(tenant_id)s and f.operator_id = %(operator_id)s and f.secret = %(secret)s and f.confirmed_at is null and {is_fresh}
  returning f.tenant_id
)
select sentinel.append_event(tenant_id, %(event_id)s, 'operator_second_factor_set', null, null, clock_timestamp(),
  jsonb_build_object('by', %(by)s::text, 'operator', %(by)s::text, 'operator_id', %(operator_id)s::uuid)) from done
""").fill(is_fresh=_IS_FRESH)
# `secret` is written too: this re-encrypts a secret of an older key with the newest one.
USE_STEP = """
update sentinel.second_factors set last_step = %(step)s, secret = %(secret)s
where tenant_id = %(tenant_id)s and operator_id = %(operator_id)s and confirmed_at is not null and last_step < %(step)s
"""
REMOVE = """
with done as (
  delete from sentinel.second_factors where tenant_id = %(tenant_id)s and operator_id = %(operator_id)s returning tenant_id
)
select sentinel.append_event(tenant_id, %(event_id)s, 'operator_second_factor_removed', null, null, clock_timestamp(),
  jsonb_build_object('by', %(by)s::text, 'operator', %(by)s::text, 'operator_id', %(operator_id)s::uuid)) from done
"""


def start(pool: Pool, tenant_id: uuid.UUID, operator_id: uuid.UUID, secret: str, *, anew: bool) -> None:
    """Store a second factor to be confirmed, unless the person has one; `anew` replaces one that is not confirmed yet."""
    changed(pool, START, {**_of(tenant_id, operator_id), "secret": secret, "anew": anew})


def pending_enrolment(pool: Pool, tenant_id: uuid.UUID, operator_id: uuid.UUID) -> Pending | None:
    """The person's second factor that is not confirmed yet and may still be, or None."""
    return one_row(pool, Pending, PENDING, _of(tenant_id, operator_id))


def confirm(
    pool: Pool, tenant_id: uuid.UUID, operator_id: uuid.UUID, *, secret: str, step: int, by: str, event_id: uuid.UUID
) -> bool:
    """Confirm the second factor, so that signing in requires it. False if its secret was replaced or it was confirmed before."""
    fields = {**_of(tenant_id, operator_id), "secret": secret, "step": step, "by": by, "event_id": event_id}
    return changed(pool, CONFIRM, fields) == 1


def use_step(pool: Pool, tenant_id: uuid.UUID, operator_id: uuid.UUID, *, step: int, secret: str) -> bool:
    """Mark the code of this time step as used. False if it, or a later one, was used before."""
    return changed(pool, USE_STEP, {**_of(tenant_id, operator_id), "step": step, "secret": secret}) == 1


def remove(pool: Pool, tenant_id: uuid.UUID, operator_id: uuid.UUID, *, by: str, event_id: uuid.UUID) -> bool:
    """Remove a second factor. False if there is none."""
    return changed(pool, REMOVE, {**_of(tenant_id, operator_id), "by": by, "event_id": event_id}) == 1


def _of(tenant_id: uuid.UUID, operator_id: uuid.UUID) -> dict[str, Any]:
    return {"tenant_id": tenant_id, "operator_id": operator_id}

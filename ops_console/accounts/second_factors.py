"""Second factors: one a person, encrypted by `totp.py`, and the step of the code that was used last.

Steps are counted by the database's clock, 30 seconds each. A code opens once: using one is an UPDATE that wants the step
to be later than the last.
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
"""So long a secret that was shown can be confirmed."""
_IS_FRESH = f"f.created_at > clock_timestamp() - interval '{PENDING_MINUTES} minutes'"


@dataclass(frozen=True, slots=True)
class Pending:
    """A second factor that was shown and not confirmed; `now_step` is now."""

    secret: str
    now_step: int


# A second tab shows the same. What was shown long ago, or is asked for anew, is another secret: nobody who once saw the page of
# an account knows the one that its owner confirms later.
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
# `secret` is written too: one that an older key encrypted moves to the newest.
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
    """Keep a second factor to be confirmed, unless there is one; with `anew` in the place of one that waits."""
    changed(pool, START, {**_of(tenant_id, operator_id), "secret": secret, "anew": anew})


def pending_enrolment(pool: Pool, tenant_id: uuid.UUID, operator_id: uuid.UUID) -> Pending | None:
    """What waits to be confirmed."""
    return one_row(pool, Pending, PENDING, _of(tenant_id, operator_id))


def confirm(
    pool: Pool, tenant_id: uuid.UUID, operator_id: uuid.UUID, *, secret: str, step: int, by: str, event_id: uuid.UUID
) -> bool:
    """From now on it is asked for. False when another secret took its place, or it was confirmed before."""
    fields = {**_of(tenant_id, operator_id), "secret": secret, "step": step, "by": by, "event_id": event_id}
    return changed(pool, CONFIRM, fields) == 1


def use_step(pool: Pool, tenant_id: uuid.UUID, operator_id: uuid.UUID, *, step: int, secret: str) -> bool:
    """Use the code of this step up. False when it, or a later one, was used."""
    return changed(pool, USE_STEP, {**_of(tenant_id, operator_id), "step": step, "secret": secret}) == 1


def remove(pool: Pool, tenant_id: uuid.UUID, operator_id: uuid.UUID, *, by: str, event_id: uuid.UUID) -> bool:
    """Take a second factor away. False when there is none."""
    return changed(pool, REMOVE, {**_of(tenant_id, operator_id), "by": by, "event_id": event_id}) == 1


def _of(tenant_id: uuid.UUID, operator_id: uuid.UUID) -> dict[str, Any]:
    return {"tenant_id": tenant_id, "operator_id": operator_id}

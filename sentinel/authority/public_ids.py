"""What public ids stand for, by the id: filled from the decisions in their order, so that a look-up is one row by its key."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sentinel.store.database import Pool
from sentinel.store.rows import changed, one_row, single


@dataclass(frozen=True, slots=True)
class NamedRow:
    """A public id, what it stands for, and the first decision that it stands in; `body` is the recorded pack without its hash."""

    public_id: str
    kind: str
    value: str
    event_id: uuid.UUID
    operation_id: uuid.UUID
    agent_id: str
    body: str
    occurred_at: datetime


SECRET = "select secret from sentinel.public_id_secret"
FIND = """
select p.public_id, p.kind, p.value, e.event_id, e.operation_id, e.agent_id, e.body, e.occurred_at
from sentinel.public_ids p join sentinel.events e using (tenant_id, event_id)
where p.tenant_id = %(tenant_id)s and p.public_id = %(public_id)s
"""
# A proof's name has the event's id in it.
FIND_PROOF = """
select %(public_id)s::text as public_id, 'proof' as kind, e.operation_id::text as value, e.event_id, e.operation_id, e.agent_id,
  e.body, e.occurred_at
from sentinel.events e where e.tenant_id = %(tenant_id)s and e.event_id = %(event_id)s and e.kind = 'decision'
"""
MARK = "select position from sentinel.public_id_marks where tenant_id = %(tenant_id)s and key_id = %(key_id)s"
# One statement: the mark never stands before an id that is missing.
ADD = """
with added as (
  insert into sentinel.public_ids (tenant_id, public_id, kind, value, event_id)
  select %(tenant_id)s, n.public_id, n.kind, n.value, n.event_id
  from unnest(%(public_ids)s::text[], %(kinds)s::text[], %(values)s::text[], %(event_ids)s::uuid[]) as n (public_id, kind, value, event_id)
  on conflict (tenant_id, public_id) do nothing
)
insert into sentinel.public_id_marks as m (tenant_id, key_id, position) values (%(tenant_id)s, %(key_id)s, %(position)s)
on conflict (tenant_id, key_id) do update set position = greatest(m.position, excluded.position)
"""


def kept_secret(pool: Pool) -> str:
    """What public ids are minted with where no setting says it."""
    return str(single(pool, SECRET))


def find_named(pool: Pool, tenant_id: uuid.UUID, public_id: str) -> NamedRow | None:
    """What a public id stands for, or None."""
    return one_row(pool, NamedRow, FIND, {"tenant_id": tenant_id, "public_id": public_id})


def find_proven(pool: Pool, tenant_id: uuid.UUID, proof_id: str, event_id: uuid.UUID) -> NamedRow | None:
    """The decision that a proof's name stands for, or None."""
    fields = {"tenant_id": tenant_id, "public_id": proof_id, "event_id": event_id}
    return one_row(pool, NamedRow, FIND_PROOF, fields)


def mark(pool: Pool, tenant_id: uuid.UUID, key_id: str) -> int:
    """The feed position up to which the ids are known that were minted with this secret."""
    return int(single(pool, MARK, {"tenant_id": tenant_id, "key_id": key_id}) or 0)


def add_named(
    pool: Pool,
    tenant_id: uuid.UUID,
    named: Sequence[tuple[str, str, str, uuid.UUID]],
    *,
    key_id: str,
    position: int,
) -> None:
    """Keep (public id, kind, value, event), of which some may be known, and that everything up to `position` is."""
    columns = list(zip(*named, strict=True)) or [(), (), (), ()]
    changed(pool, ADD, {
        "tenant_id": tenant_id, "key_id": key_id, "position": position, "public_ids": list(columns[0]),
        "kinds": list(columns[1]), "values": list(columns[2]), "event_ids": list(columns[3]),
    })  # fmt: skip

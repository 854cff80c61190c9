"""Index of public ids: what each id stands for, one row per id, filled from the feed of decisions in order."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sentinel.authority import feed
from sentinel.core.errors import NotFound, TryLater
from sentinel.core.public_ids import Kind, PublicIdGenerator, is_public_id
from sentinel.core.publication import DecisionRecord, public_ids_of
from sentinel.store.database import Pool
from sentinel.store.ids import event_of_proof, proof_id_of
from sentinel.store.queries import changed, one_row, scalar


@dataclass(frozen=True, slots=True)
class PublicIdRow:
    """A public id, what it stands for, and the first decision with it; `body` is that decision's recorded pack without the hash."""

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
# A proof id contains the id of its event.
FIND_PROOF = """
select %(public_id)s::text as public_id, 'proof' as kind, e.operation_id::text as value, e.event_id, e.operation_id, e.agent_id,
  e.body, e.occurred_at
from sentinel.events e where e.tenant_id = %(tenant_id)s and e.event_id = %(event_id)s and e.kind = 'decision'
"""
INDEXED_POSITION = (
    "select position from sentinel.public_id_marks where tenant_id = %(tenant_id)s and key_id = %(key_id)s"
)
# One statement, so that the position is never stored without the ids up to it.
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


def stored_secret(pool: Pool) -> str:
    """Return the secret stored in the database, which is used if no setting provides one."""
    return str(scalar(pool, SECRET))


def find_public_id(pool: Pool, tenant_id: uuid.UUID, public_id: str) -> PublicIdRow | None:
    """Return what a public id stands for, or None if it is not in the index."""
    return one_row(pool, PublicIdRow, FIND, {"tenant_id": tenant_id, "public_id": public_id})


def find_decision_of_proof(pool: Pool, tenant_id: uuid.UUID, proof_id: str, event_id: uuid.UUID) -> PublicIdRow | None:
    """Return the decision of a proof id, whose event is `event_id`, or None."""
    fields = {"tenant_id": tenant_id, "public_id": proof_id, "event_id": event_id}
    return one_row(pool, PublicIdRow, FIND_PROOF, fields)


def indexed_position(pool: Pool, tenant_id: uuid.UUID, key_id: str) -> int:
    """Return the feed position up to which decisions are indexed with the ids made from this secret (`key_id`)."""
    return int(scalar(pool, INDEXED_POSITION, {"tenant_id": tenant_id, "key_id": key_id}) or 0)


def add_public_ids(
    pool: Pool,
    tenant_id: uuid.UUID,
    named: Sequence[tuple[str, str, str, uuid.UUID]],
    *,
    key_id: str,
    position: int,
) -> None:
    """Add (public id, kind, value, event id) to the index, and record that it is complete up to `position`.

    Ids that are in the index already are kept as they are.
    """
    columns = list(zip(*named, strict=True)) or [(), (), (), ()]
    changed(pool, ADD, {
        "tenant_id": tenant_id, "key_id": key_id, "position": position, "public_ids": list(columns[0]),
        "kinds": list(columns[1]), "values": list(columns[2]), "event_ids": list(columns[3]),
    })  # fmt: skip


AT_ONCE = 1000
_WITH_LEDGER = {Kind.LEDGER_ENTRY.name.lower(), Kind.REFUND.name.lower(), "proof"}


@dataclass(frozen=True, slots=True)
class PublicIdMatch:
    """What a public id stands for: `value` of `kind` agent, action, ledger_entry or refund, or a proof's operation id.

    The other fields are those of the first decision with that id.
    """

    public_id: str
    kind: str
    value: str
    operation_id: uuid.UUID
    proof_id: str
    agent_id: str
    action: str
    ledger_entry_id: str | None
    refund_id: str | None
    decided_at: datetime


def load_public_id_generators(pool: Pool, secrets: Sequence[str]) -> list[PublicIdGenerator]:
    """Return one generator per secret, of which the first makes new ids, and one for the stored secret, which made the
    ids while none was configured."""
    return [PublicIdGenerator(secret) for secret in (*secrets, stored_secret(pool))]


def index_public_ids(pool: Pool, tenant_id: uuid.UUID, ids: PublicIdGenerator, *, seconds: float = 2.0) -> bool:
    """Index the decisions since the last run, for about `seconds`, and return whether all of them are indexed.

    Raises `EngineUnavailable`.
    """
    until = time.monotonic() + seconds
    position = indexed_position(pool, tenant_id, ids.key_id)
    while True:
        rows = feed.after(pool, tenant_id, None, position, AT_ONCE)
        if rows:
            named = {
                public_id: (public_id, kind, value, row.event_id)
                for row in reversed(rows)
                for public_id, kind, value in public_ids_of(ids, record_of(tenant_id, row))
            }
            # Sorted, so that two consoles that index at the same time wait for each other and do not deadlock.
            position = rows[-1].position
            add_public_ids(pool, tenant_id, [named[one] for one in sorted(named)], key_id=ids.key_id, position=position)
        if len(rows) < AT_ONCE:
            return True
        if time.monotonic() >= until:
            return False


def look_up_public_id(pool: Pool, tenant_id: uuid.UUID, ids: PublicIdGenerator, text: str) -> PublicIdMatch:
    """Return what a public id or a proof id stands for. Raises `NotFound`, also for text that is neither.

    Raises `TryLater` if the id is not found while decisions remain to be indexed, because it may be in one of them.
    """
    event_id = event_of_proof(text)
    found = find_decision_of_proof(pool, tenant_id, text, event_id) if event_id else None
    if found is None and is_public_id(text):
        found = find_public_id(pool, tenant_id, text)
        if found is None:
            is_all = index_public_ids(pool, tenant_id, ids)
            found = find_public_id(pool, tenant_id, text)
            if found is None and not is_all:
                raise TryLater("public ids are still being indexed, and this one has not been found yet: try again")
    if found is None:
        raise NotFound("no public record has that id")
    return _match(found)


def record_of(tenant_id: uuid.UUID, row: feed.FeedRow | feed.ProofRow) -> DecisionRecord:
    """Return a row of the feed as the record that `core.publication` publishes."""
    return DecisionRecord(tenant_id, row.event_id, row.agent_id, row.is_bound, json.loads(row.body))


def _match(row: PublicIdRow) -> PublicIdMatch:
    pack = json.loads(row.body)
    ledger = pack if row.kind in _WITH_LEDGER else {}
    return PublicIdMatch(
        row.public_id, row.kind, row.value, row.operation_id, proof_id_of(row.event_id), row.agent_id, pack["action"],
        ledger.get("ledger_entry_id"), ledger.get("refund_id"), row.occurred_at,
    )  # fmt: skip

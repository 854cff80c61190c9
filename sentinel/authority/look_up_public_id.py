"""Public ids for operators: which decision, agent, refund or ledger entry one stands for.

The table that answers is filled behind the decisions, not with them: a guard mints nothing. A console fills it as it runs,
and whoever looks up fills what is missing first.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sentinel.authority import feed
from sentinel.authority.public_ids import NamedRow, add_named, find_named, find_proven, kept_secret, mark
from sentinel.core.errors import NotFound
from sentinel.core.public_ids import Kind, PublicIds, is_public_id, public_ids
from sentinel.core.publication import Record, public_ids_of
from sentinel.store.database import Pool
from sentinel.store.ids import event_of_proof, proof_id_of

AT_ONCE = 1000
_WITH_LEDGER = {Kind.LEDGER_ENTRY.name.lower(), Kind.REFUND.name.lower(), "proof"}


@dataclass(frozen=True, slots=True)
class LookedUp:
    """What a public id stands for: `value` of `kind` agent, action, ledger_entry, refund, or a proof's operation.

    The rest is of the first decision that it stands in.
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


def minters(pool: Pool, secrets: Sequence[str]) -> list[PublicIds]:
    """The first mints; without a secret of the settings it is the one that the database keeps."""
    return public_ids(secrets or [kept_secret(pool)])


def index_public_ids(pool: Pool, tenant_id: uuid.UUID, ids: PublicIds, *, seconds: float = 2.0) -> bool:
    """Take in the decisions that came since; whether that was all of them. Raises `EngineUnavailable`."""
    until = time.monotonic() + seconds
    position = mark(pool, tenant_id, ids.key_id)
    while True:
        rows = feed.after(pool, tenant_id, None, position, AT_ONCE)
        if rows:
            named = {
                public_id: (public_id, kind, value, row.event_id)
                for row in reversed(rows)
                for public_id, kind, value in public_ids_of(ids, record_of(tenant_id, row))
            }
            # In one order everywhere: two consoles that do the same wait for each other instead of locking up.
            position = rows[-1].position
            add_named(pool, tenant_id, [named[one] for one in sorted(named)], key_id=ids.key_id, position=position)
        if len(rows) < AT_ONCE:
            return True
        if time.monotonic() >= until:
            return False


def look_up_public_id(pool: Pool, tenant_id: uuid.UUID, ids: PublicIds, text: str) -> LookedUp:
    """What stands behind a public id or a proof's name. Raises `NotFound`, also for what is neither."""
    event_id = event_of_proof(text)
    found = find_proven(pool, tenant_id, text, event_id) if event_id else None
    if found is None and is_public_id(text):
        found = find_named(pool, tenant_id, text)
        if found is None:
            index_public_ids(pool, tenant_id, ids)
            found = find_named(pool, tenant_id, text)
    if found is None:
        raise NotFound("nothing public has that id")
    return _looked_up(found)


def record_of(tenant_id: uuid.UUID, row: feed.FeedRow | feed.ProofRow) -> Record:
    """A row of the feed as what is published."""
    return Record(tenant_id, row.event_id, row.agent_id, row.is_bound, json.loads(row.body))


def _looked_up(row: NamedRow) -> LookedUp:
    pack = json.loads(row.body)
    ledger = pack if row.kind in _WITH_LEDGER else {}
    return LookedUp(
        row.public_id, row.kind, row.value, row.operation_id, proof_id_of(row.event_id), row.agent_id, pack["action"],
        ledger.get("ledger_entry_id"), ledger.get("refund_id"), row.occurred_at,
    )  # fmt: skip

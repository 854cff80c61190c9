"""Compares a proof pack with the recorded decision, for operators. Anybody can recompute its hash (`core/proof.py`)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.authority.feed import find_proof
from sentinel.authority.operations import find_decided_by_event
from sentinel.authority.public_ids import record_of
from sentinel.core.canonical import canonical_json, sha256_hex
from sentinel.core.errors import InvalidInput, NotFound
from sentinel.core.proof import is_intact, opens
from sentinel.core.public_ids import PublicIdGenerator
from sentinel.core.publication import Publisher
from sentinel.store.database import Pool


@dataclass(frozen=True, slots=True)
class RecordComparison:
    """The result of comparing a pack with the record of its proof id.

    `intact`: the pack states the hash of its own content. `is_recorded`: it equals the recorded pack. `is_published`:
    it equals the pack's public form. `record_intact`: the recorded pack has its recorded hash, and its commitment opens
    to the stored operation.
    """

    recorded_hash: str
    intact: bool
    is_recorded: bool
    is_published: bool
    record_intact: bool

    @property
    def holds(self) -> bool:
        """Whether the pack is genuine and the record is intact."""
        return self.intact and (self.is_recorded or self.is_published) and self.record_intact


def compare_with_record(
    pool: Pool,
    tenant_id: uuid.UUID,
    ids: Sequence[PublicIdGenerator],
    actions_of: Callable[[str], Collection[str]],
    pack: Mapping[str, Any],
) -> RecordComparison:
    """Compare a pack, an agent's or the public one, with the recorded decision.

    `ids` are the generators that may have made the pack's public ids. Packs are compared by their canonical JSON, which
    tells apart values that are equal in Python (1 and true). Raises `InvalidInput` if it is no proof pack, and
    `NotFound` if no decision has its proof id.
    """
    if not isinstance(pack.get("hash"), str) or not isinstance(pack.get("proof_id"), str):
        raise InvalidInput.of("proof pack", "must have a proof_id and a hash")
    intact = is_intact(pack)
    row = find_proof(pool, tenant_id, None, pack["proof_id"])
    if row is None:
        raise NotFound("there is no proof with this id")
    record = record_of(tenant_id, row)
    published = [Publisher(lambda one=one: one, actions_of).pack(record) for one in ids]  # type: ignore[misc]
    written = canonical_json(pack)
    kept = find_decided_by_event(pool, tenant_id, row.event_id)
    is_open = kept is not None and opens(record.pack, salt=kept.salt, operation_canonical=kept.request)
    return RecordComparison(
        recorded_hash=row.hash,
        intact=intact,
        is_recorded=written == canonical_json({**record.pack, "hash": row.hash}),
        is_published=any(written == canonical_json(one) for one in published),
        record_intact=is_open and sha256_hex(row.body) == row.hash,
    )

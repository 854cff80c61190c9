"""Verifies proof packs: by recomputing the hash (anyone), and against the recorded decision (operators)."""

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
from sentinel.core.proof import opens, pack_hash
from sentinel.core.public_ids import PublicIdGenerator
from sentinel.core.publication import Publisher
from sentinel.store.database import Pool


@dataclass(frozen=True, slots=True)
class PackVerification:
    """Whether a pack carries the hash of its own content."""

    intact: bool
    stated_hash: str
    computed_hash: str


@dataclass(frozen=True, slots=True)
class RecordComparison:
    """A pack compared with the record of its proof id.

    `intact`: it carries the hash of its own content; `is_recorded`: it is the recorded pack; `is_published`: it is what the
    public is shown of it. `record_intact`: what is recorded has its recorded hash and opens to the operation that was decided.
    """

    recorded_hash: str
    intact: bool
    is_recorded: bool
    is_published: bool
    record_intact: bool

    @property
    def holds(self) -> bool:
        """Whether the pack is genuine."""
        return self.intact and (self.is_recorded or self.is_published) and self.record_intact


def verify_proof(pack: Mapping[str, Any]) -> PackVerification:
    """Recompute a pack's hash. Raises `InvalidInput` for something that is no proof pack."""
    stated = pack.get("hash")
    if not isinstance(stated, str) or not isinstance(pack.get("proof_id"), str):
        raise InvalidInput.of("proof pack", "must have a proof_id and a hash")
    computed = pack_hash(pack)
    return PackVerification(stated == computed, stated, computed)


def compare_with_record(
    pool: Pool,
    tenant_id: uuid.UUID,
    ids: Sequence[PublicIdGenerator],
    actions_of: Callable[[str], Collection[str]],
    pack: Mapping[str, Any],
) -> RecordComparison:
    """Compare a pack, an agent's or the public one, with the recorded decision. `ids`: any of them may have minted.

    By their canonical JSON: values that Python calls equal (1 and true) are others in it. Raises `InvalidInput` for
    something that is no proof pack, `NotFound` where nothing is recorded under its name.
    """
    verified = verify_proof(pack)
    row = find_proof(pool, tenant_id, None, pack["proof_id"])
    if row is None:
        raise NotFound("there is no proof of that id")
    record = record_of(tenant_id, row)
    published = [Publisher(lambda one=one: one, actions_of).pack(record) for one in ids]  # type: ignore[misc]
    written = canonical_json(pack)
    kept = find_decided_by_event(pool, tenant_id, row.event_id)
    is_open = kept is not None and opens(record.pack, salt=kept.salt, operation_canonical=kept.request)
    return RecordComparison(
        recorded_hash=row.hash,
        intact=verified.intact,
        is_recorded=written == canonical_json({**record.pack, "hash": row.hash}),
        is_published=any(written == canonical_json(one) for one in published),
        record_intact=is_open and sha256_hex(row.body) == row.hash,
    )

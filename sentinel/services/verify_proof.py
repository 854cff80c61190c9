"""Check a proof pack as anyone can: recompute its hash from its own content; and read one as the public may."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.core.errors import InvalidInput, NotFound
from sentinel.core.proof import pack_hash
from sentinel.store.database import Pool
from sentinel.store.feed import find_proof


@dataclass(frozen=True, slots=True)
class Verified:
    """Whether a pack carries the hash of its own content."""

    intact: bool
    stated_hash: str
    computed_hash: str


def verify_proof(pack: Mapping[str, Any]) -> Verified:
    """Recompute a pack's hash. Raises `InvalidInput` for something that is no proof pack."""
    stated = pack.get("hash")
    if not isinstance(stated, str) or not isinstance(pack.get("proof_id"), str):
        raise InvalidInput.of("proof pack", "must have a proof_id and a hash")
    computed = pack_hash(pack)
    return Verified(stated == computed, stated, computed)


def read_proof(pool: Pool, tenant_id: uuid.UUID, agents: list[str] | None, proof_id: str) -> dict[str, Any]:
    """The public pack of that name with its hash; `agents` None means every agent is public. Raises `NotFound`."""
    row = find_proof(pool, tenant_id, agents, proof_id)
    if row is None:
        raise NotFound("there is no proof of that id")
    return {**json.loads(row.body), "hash": row.hash}

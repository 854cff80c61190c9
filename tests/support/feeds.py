"""A published decision: one for tests without a database, and what a recorded pack must look like in public."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from ops_console.board.events import LiveEvent
from sentinel.authority.public_ids import load_public_id_generators
from sentinel.core.proof import pack_hash
from sentinel.core.public_ids import Kind
from sentinel.core.publication import PublicFields

NOW = datetime(2026, 5, 4, 12, 0, 30, tzinfo=UTC)


def live_event(position: int, **fields: Any) -> LiveEvent:
    return LiveEvent(position, NOW, PublicFields(fields), "")


def minted(fixtures: Any, kind: Kind, value: str) -> str:
    """The public id of a value of a set of fixtures's tenant."""
    return load_public_id_generators(fixtures.pool, ())[0].mint(kind, fixtures.tenant_id, value)


def public_form(fixtures: Any, recorded: Any) -> dict[str, Any]:
    """The public pack of a decision on a refund by a bound key: its own words replaced, hashed anew."""
    pack = json.loads(recorded.pack)
    pack["ledger_entry_id"] = minted(fixtures, Kind.LEDGER_ENTRY, pack["ledger_entry_id"])
    pack["refund_id"] = minted(fixtures, Kind.REFUND, pack["refund_id"])
    return {**pack, "hash": pack_hash(pack)}

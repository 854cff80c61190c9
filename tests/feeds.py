"""A row of the public feed, for tests without a database."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any

from sentinel.store.feed import FeedRow

NOW = datetime(2026, 5, 4, 12, 0, 30, tzinfo=UTC)


def row(position: int, **pack: Any) -> FeedRow:
    return FeedRow(position, uuid.UUID(int=position), "an-agent", json.dumps(pack), NOW)

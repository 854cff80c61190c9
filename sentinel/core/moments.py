"""Times from outside as moments: what a sender, a file or a row calls a time, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sentinel.core.errors import InvalidInput


def moment_of(found: Any, field: str) -> datetime:
    """A time with a zone, as the same moment in UTC. Raises `InvalidInput` naming the field.

    In UTC it is kept: Python knows offsets, and years with them, that PostgreSQL refuses or keeps as a year before 1.
    """
    try:
        moment = datetime.fromisoformat(found)
        if moment.tzinfo is None:
            raise InvalidInput.of(field, "must have a time zone")
        # Near either end of the calendar the moment may have no year in UTC.
        return moment.astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        raise InvalidInput.of(field, "must be an RFC 3339 time") from None

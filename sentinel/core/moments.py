"""Times on the wire: those from outside (a sender, a file, a row) as moments in UTC, and moments as text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sentinel.core.errors import InvalidInput


def moment_of(found: Any, field: str) -> datetime:
    """Return an RFC 3339 time with a zone as the same moment in UTC. Raises `InvalidInput` naming the field.

    It is converted to UTC because Python accepts offsets that PostgreSQL refuses, and local times near the ends of the
    calendar that PostgreSQL would refuse or store as a year before 1.
    """
    try:
        moment = datetime.fromisoformat(found)
        if moment.tzinfo is None:
            raise InvalidInput.of(field, "must have a time zone")
        # Near either end of the calendar the UTC year may be out of Python's range: OverflowError.
        return moment.astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        raise InvalidInput.of(field, "must be an RFC 3339 time") from None


def rfc3339(moment: datetime) -> str:
    """Format a time as on the wire: UTC with microseconds and "Z"."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")

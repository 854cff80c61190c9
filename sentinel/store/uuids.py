"""Identifiers out of paths and arguments."""

from __future__ import annotations

import uuid


def uuid_or_none(text: str) -> uuid.UUID | None:
    """The UUID in its plain 36-character form, else None: other spellings of one id do not exist here."""
    try:
        found = uuid.UUID(text)
    except ValueError:
        return None
    return found if str(found) == text.lower() else None

"""The two audiences of the console: what operators reach, and what everybody does."""

from __future__ import annotations

from enum import Enum


class Audience(Enum):
    """Which routes an app has. Both at once only where nobody listens: in tests, and for the documents."""

    OPERATORS = "operators"
    PUBLIC = "public"
    BOTH = "both"

    @property
    def is_public(self) -> bool:
        """Whether it has the board, the proofs and the confirm page."""
        return self is not Audience.OPERATORS

    @property
    def is_operators(self) -> bool:
        """Whether it has the operators' pages and API."""
        return self is not Audience.PUBLIC

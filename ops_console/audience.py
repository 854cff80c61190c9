"""The two audiences of the console: operators, and the public."""

from __future__ import annotations

from enum import Enum


class Audience(Enum):
    """Which routes an app has. `BOTH` is only for apps that no listener serves: tests, and generating the API documents."""

    OPERATORS = "operators"
    PUBLIC = "public"
    BOTH = "both"

    @property
    def is_public(self) -> bool:
        """Whether the app has the board, the proofs and the confirm page."""
        return self is not Audience.OPERATORS

    @property
    def is_operators(self) -> bool:
        """Whether the app has the operators' pages and API."""
        return self is not Audience.PUBLIC

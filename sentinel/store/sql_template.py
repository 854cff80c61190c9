"""SQL texts put together from constants of ours, never from what somebody sent: values are always bound."""

from __future__ import annotations

from typing import LiteralString

from psycopg.sql import SQL, Composable, Literal


class SqlTemplate:
    """A constant text with `{part}`s to fill; a brace that is meant is doubled."""

    def __init__(self, text: LiteralString) -> None:
        self._text = SQL(text)

    def fill(self, **parts: LiteralString | Composable | int) -> str:
        """The text. A part that is a text is SQL of ours; a number or a `psycopg.sql` object says itself what it is."""
        return self._text.format(**{name: _composable(part) for name, part in parts.items()}).as_string()


def _composable(part: LiteralString | Composable | int) -> Composable:
    if isinstance(part, str):
        return SQL(part)
    return Literal(part) if isinstance(part, int) else part

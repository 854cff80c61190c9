"""SQL texts assembled from constants in our code, never from input: values are always bound."""

from __future__ import annotations

from typing import LiteralString

from psycopg.sql import SQL, Composable, Literal


class SqlTemplate:
    """A constant SQL text with `{part}` placeholders; a literal brace is doubled."""

    def __init__(self, text: LiteralString) -> None:
        self._text = SQL(text)

    def fill(self, **parts: LiteralString | Composable | int) -> str:
        """The text with its parts filled in: a `str` as SQL, an `int` as a literal, a `psycopg.sql` object as it renders itself."""
        return self._text.format(**{name: _composable(part) for name, part in parts.items()}).as_string()


def _composable(part: LiteralString | Composable | int) -> Composable:
    if isinstance(part, str):
        return SQL(part)
    return Literal(part) if isinstance(part, int) else part

"""Text for messages to people: counted things, and foreign text that must not become a link or a mention."""

from __future__ import annotations

import re

# Characters inside a web or mail address, or at the start of a mention; the last three (CJK and fullwidth) are read as
# full stops. Between two digits they do not count, since amounts and times are no links and no domain ends in a digit;
# but a dot does where another dot follows the next digits, as in an IPv4 address.
_LINKING = "[.:/@\u3002\uff0e\uff61]"
_LINKABLE = re.compile(
    rf"(?:(?<![0-9]){_LINKING}+|{_LINKING}+(?![0-9])|\.(?=[0-9]+\.[0-9]))(?=[^\s.:/@\u3002\uff0e\uff61])"
)

EXECUTED_BY_PERSON = "executed, as a person said"
"""The shop's reference of an order that a person resolved as executed: the shop was not asked."""


def counted(count: int, one: str, several: str = "") -> str:
    """Return a count with its noun, "1 row" or "2,000 rows"; `several` is the plural where it is not `one` with an s."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def unlinked(text: str) -> str:
    """Return foreign text for a message, spaced so that no mail or chat client turns it into a link or a mention.

    A space is put after each `.`, `:`, `/` and `@` inside a word: "https:// evil. example/ ops".
    """
    return _LINKABLE.sub(lambda found: f"{found[0]} ", text)


def named(identifier: str) -> str:
    """Return an identifier from outside, `unlinked`, and in quotation marks where that inserted spaces."""
    found = unlinked(identifier)
    return identifier if found == identifier else f'"{found}"'

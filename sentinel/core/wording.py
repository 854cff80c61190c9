"""Words for people: numbers of things, and what somebody else wrote, for messages."""

from __future__ import annotations

import re

# What stands inside an address of the web or of mail, or begins a mention; the last three are read as full stops. Not between two digits,
# but for what has several dots: an amount and a time are none, and no domain ends in a digit.
_LINKING = "[.:/@\u3002\uff0e\uff61]"
_LINKABLE = re.compile(
    rf"(?:(?<![0-9]){_LINKING}+|{_LINKING}+(?![0-9])|\.(?=[0-9]+\.[0-9]))(?=[^\s.:/@\u3002\uff0e\uff61])"
)


def counted(count: int, one: str, several: str = "") -> str:
    """ "1 row", "2,000 rows"; `several` where it is not `one` with an s."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def unlinked(text: str) -> str:
    """A text of somebody else's for a message, of which no client of mail or chat makes a link or a mention.

    A space follows each `.`, `:`, `/` and `@` inside a word: "https:// evil. example/ ops".
    """
    return _LINKABLE.sub(lambda found: f"{found[0]} ", text)


def named(identifier: str) -> str:
    """An identifier that somebody else chose, `unlinked`, and in quotation marks where that put spaces in."""
    found = unlinked(identifier)
    return identifier if found == identifier else f'"{found}"'

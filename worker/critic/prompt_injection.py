"""Detects prompt injection in a customer's text, as it is written and as it reads decoded.

Detection only tightens: a suspicious text sends the row to a person, an unsuspicious one permits nothing.
"""

from __future__ import annotations

import re
import unicodedata
from enum import StrEnum
from functools import lru_cache

from worker.critic.machine_words import speaks_to_a_machine
from worker.critic.readings import MAX_LOOKED_AT, is_explained, mixes_alphabets, normalized, other_readings

SAME_TEXT_ACCOUNTS = 3
"""So many other accounts with the same text within a week count as a template."""

# Invisible, direction-changing, private-use and tag characters: a person would not see what is there.
_INVISIBLE = re.compile(
    "[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ue000-\uf8ff\U000e0000-\U000e0fff]"
)
_RTL = "\u0590-\u08ff"
_JOINING = "\u0600-\u06ff\u0900-\u0dff"
_PICTURE = "\u2600-\u27bf\ufe0f\U0001f000-\U0001faff"
# Where such characters belong: joined pictures, flags of regions, marks of right-to-left text, joiners of some scripts.
_BELONGS = re.compile(
    f"(?<=[{_PICTURE}])\u200d(?=[{_PICTURE}])|(?<=\U0001f3f4)[\U000e0061-\U000e007a]{{4,6}}\U000e007f"
    f"|(?<=[{_RTL}])[\u200e\u200f]|[\u200e\u200f](?=[{_RTL}])|(?<=[{_JOINING}])[\u200c\u200d]"
)
_MORSE = re.compile(r"(?:[.-]{1,6}+[ /]++){20,}+")
_DENSE = re.compile(r"\S{60,}+")
_LINK = re.compile(r"https?://\S+")
_HARMLESS_RUN = re.compile(r"\b(?:[0-9a-fA-F]{32}|[0-9a-fA-F]{40}|[0-9a-fA-F]{64})\b|([^\w\s])\1{9,}+|_{10,}+")
_BLOB = re.compile(r"[A-Za-z0-9+/=_-]{20,}+")


class InjectionSign(StrEnum):
    """Why a text is suspicious."""

    TOO_LONG = "too long"
    INVISIBLE = "invisible characters"
    MIXED = "look-alike letters"
    WORDS = "words aimed at a machine"
    HIDDEN = "hidden words aimed at a machine"
    ENCODED = "an encoded passage"


def is_suspicious(text: str) -> bool:
    """Whether the text looks like prompt injection. An empty text does not; one that is too long is left to the critic."""
    return suspicious_because(text) not in (None, InjectionSign.TOO_LONG)


@lru_cache(maxsize=1024)
def suspicious_because(text: str) -> InjectionSign | None:
    """Which rule says so; None if none does. Never quotes the text. Cached, because facts and critic both ask."""
    if len(text) > MAX_LOOKED_AT:
        return InjectionSign.TOO_LONG
    if _hides_characters(text):
        return InjectionSign.INVISIBLE
    if len(unicodedata.normalize("NFKC", text)) > MAX_LOOKED_AT:
        return InjectionSign.TOO_LONG  # a single character can unfold to eighteen
    if speaks_to_a_machine(normalized(text)):
        return InjectionSign.WORDS
    if mixes_alphabets(text):
        return InjectionSign.MIXED
    if any(speaks_to_a_machine(reading) for reading in other_readings(text)):
        return InjectionSign.HIDDEN
    return InjectionSign.ENCODED if _has_encoded_passage(text) else None


def _hides_characters(text: str) -> bool:
    return not text.isascii() and _INVISIBLE.search(_BELONGS.sub("", text)) is not None


def _has_encoded_passage(text: str) -> bool:
    """Morse, or a run without a space that is no address, checksum, ruled line, picture or readable base64."""
    if any("." in found[0] and "-" in found[0] for found in _MORSE.finditer(text)):
        return True
    rest = _HARMLESS_RUN.sub(" ", _LINK.sub(" ", text))
    if not _DENSE.search(rest):
        return False
    return _DENSE.search(_BLOB.sub(lambda found: " " if is_explained(found[0]) else found[0], rest)) is not None

"""Detects prompt injection in a text and its readings: normalised, decoded, unspaced, reversed, without look-alikes.

The work is bounded: each reading is one pass over the text, and decoded text is decoded once more and no further.
Detection only tightens: a suspicious text sends the row to a person, an unsuspicious one permits nothing.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import html
import re
import unicodedata
from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache
from urllib.parse import unquote

from worker.critic.machine_words import speaks_to_a_machine

# Readings of a text.

MAX_LOOKED_AT = 4000
"""Characters; a longer text is suspicious by itself and is not examined."""

_LOOK_ALIKES = str.maketrans(
    "аеорсухіјѕԁɡһӏкмтнвԛԝαοενιρκυτχωոսօցհզ",  # Cyrillic, Greek, Armenian
    "aeopcyxijsdghlkmthbqwaoevipkutxwnuoghq",
)
_LEET = str.maketrans("0134578$@", "oieastbsa")
_BLOB = re.compile(r"[A-Za-z0-9+/=_-]{20,}+")
_DENSE_WORD = re.compile(r"\S{40,}+")
_HEX = re.compile(r"\b(?:[0-9a-fA-F]{2}[ :]?){12,}+")
_BINARY = re.compile(r"\b(?:[01]{8}[\s,]*+){8,}+")
_ESCAPES = re.compile(r"(?:\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}){4,}+")
_SPACED = re.compile(r"\b(?:\w[ ._*-]){4,}\w\b")
_SPACES = re.compile(r"[ ._*-]")
_LETTERS = re.compile(r"[^\W\d_]+")
_FEWEST_TO_FOLD = 4


def normalized(text: str) -> str:
    """The text in lower case, with compatible forms folded and accents dropped, so that one pattern fits all spellings."""
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text)).casefold()
    return "".join(c for c in folded if not unicodedata.combining(c))


def other_readings(text: str) -> Iterator[str]:
    """Yield the text decoded in every cheap way, each reading `normalized`, without the text itself."""
    shown = normalized(text)
    ways = (
        unquote(html.unescape(text)), text[::-1], codecs.encode(text, "rot13"), shown.translate(_LEET),
        shown.translate(_LOOK_ALIKES), _SPACED.sub(lambda found: _SPACES.sub("", found[0]), text),
    )  # fmt: skip
    for way in ways:
        if way not in (text, shown):
            yield normalized(way)
    for passage in decoded_passages(text):
        yield normalized(passage)
        for inner in decoded_passages(passage):
            yield normalized(inner)


def decoded_passages(text: str) -> Iterator[str]:
    """Yield the decoded passages of a text: escapes, binary, hexadecimal, base64, base32, base85."""
    for found in _ESCAPES.findall(text):
        yield found.encode("ascii", "ignore").decode("unicode_escape", "ignore")
    for found in _BINARY.findall(text):
        yield "".join(chr(int(byte, 2)) for byte in re.findall("[01]{8}", found))
    for found in _HEX.findall(text):
        yield bytes.fromhex(re.sub("[^0-9a-fA-F]", "", found)).decode("utf-8", "ignore")
    for found in _BLOB.findall(text):
        yield from _unpacked(found)
    for found in _DENSE_WORD.findall(text):
        yield from _unpacked_85(found)


def is_explained(blob: str) -> bool:
    """Whether a run of letters and digits is base64 of readable text, which is checked by itself, or of a picture."""
    content = _base64(blob)
    return content.startswith((b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF")) or _is_readable(content)


def mixes_alphabets(text: str) -> bool:
    """Whether a word mixes Latin letters with look-alikes of another alphabet."""
    if text.isascii():
        return False
    return any(_is_mixed(word) for word in _LETTERS.findall(unicodedata.normalize("NFKC", text).casefold()))


def _is_mixed(word: str) -> bool:
    if len(word) < _FEWEST_TO_FOLD or word.isascii():
        return False
    folded = word.translate(_LOOK_ALIKES)
    # A word in one alphabet may be a word of another language; a mix of Latin letters and look-alikes is a disguise.
    return folded != word and folded.isascii() and any(c.isascii() for c in word)


def _unpacked(blob: str) -> Iterator[str]:
    """Yield a run of letters and digits decoded as base64 and as base32."""
    yield _base64(blob).decode("utf-8", "ignore")
    bare = blob.strip("=").upper()
    try:
        yield base64.b32decode(bare + "=" * (-len(bare) % 8)).decode("utf-8", "ignore")
    except (ValueError, binascii.Error):
        return


def _unpacked_85(word: str) -> Iterator[str]:
    inner = word.removeprefix("<~").removesuffix("~>")
    for decode in (base64.a85decode, base64.b85decode):
        try:
            yield decode(inner).decode("utf-8", "ignore")
        except (ValueError, OverflowError):
            continue


def _base64(blob: str) -> bytes:
    bare = blob.strip("=").replace("+", "-").replace("/", "_")
    try:
        return base64.urlsafe_b64decode(bare + "=" * (-len(bare) % 4))
    except (ValueError, binascii.Error):
        return b""


def _is_readable(content: bytes) -> bool:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return bool(text) and text.replace("\n", "").replace("\t", "").isprintable()


# Prompt injection.

SAME_TEXT_ACCOUNTS = 3
"""The same text from this many other accounts within a week counts as a template."""

# Invisible, direction-changing, private-use and tag characters, whose content a person would not see.
_INVISIBLE = re.compile(
    "[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ue000-\uf8ff\U000e0000-\U000e0fff]"
)
_RTL = "\u0590-\u08ff"
_JOINING = "\u0600-\u06ff\u0900-\u0dff"
_PICTURE = "\u2600-\u27bf\ufe0f\U0001f000-\U0001faff"
# Legitimate uses of such characters: joined emoji, flags of regions, marks of right-to-left text, joiners of some
# scripts.
_BELONGS = re.compile(
    f"(?<=[{_PICTURE}])\u200d(?=[{_PICTURE}])|(?<=\U0001f3f4)[\U000e0061-\U000e007a]{{4,6}}\U000e007f"
    f"|(?<=[{_RTL}])[\u200e\u200f]|[\u200e\u200f](?=[{_RTL}])|(?<=[{_JOINING}])[\u200c\u200d]"
)
_MORSE = re.compile(r"(?:[.-]{1,6}+[ /]++){20,}+")
_DENSE = re.compile(r"\S{60,}+")
_LINK = re.compile(r"https?://\S+")
_HARMLESS_RUN = re.compile(r"\b(?:[0-9a-fA-F]{32}|[0-9a-fA-F]{40}|[0-9a-fA-F]{64})\b|([^\w\s])\1{9,}+|_{10,}+")


class InjectionSign(StrEnum):
    """Why a text is suspicious."""

    TOO_LONG = "too long"
    INVISIBLE = "invisible characters"
    MIXED = "look-alike letters"
    WORDS = "words aimed at a machine"
    HIDDEN = "hidden words aimed at a machine"
    ENCODED = "an encoded passage"


def is_suspicious(text: str) -> bool:
    """Whether the text looks like prompt injection. False for an empty text, and for one that is too long, which is left to the critic."""
    return suspicious_because(text) not in (None, InjectionSign.TOO_LONG)


@lru_cache(maxsize=1024)
def suspicious_because(text: str) -> InjectionSign | None:
    """The sign that makes the text suspicious, or None; it never quotes the text. Cached, because facts and critic both ask."""
    if len(text) > MAX_LOOKED_AT:
        return InjectionSign.TOO_LONG
    if _hides_characters(text):
        return InjectionSign.INVISIBLE
    if len(unicodedata.normalize("NFKC", text)) > MAX_LOOKED_AT:
        return InjectionSign.TOO_LONG  # NFKC can expand one character to eighteen
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
    """Whether the text has Morse code, or 60 characters without a space that are no address, checksum, ruled line,
    picture or readable base64."""
    if any("." in found[0] and "-" in found[0] for found in _MORSE.finditer(text)):
        return True
    rest = _HARMLESS_RUN.sub(" ", _LINK.sub(" ", text))
    if not _DENSE.search(rest):
        return False
    return _DENSE.search(_BLOB.sub(lambda found: " " if is_explained(found[0]) else found[0], rest)) is not None

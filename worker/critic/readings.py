"""Normalises a text and decodes it in every cheap way: folded, base64, unspaced, reversed, without look-alike letters.

Bounded: each way is one pass over the text; decoded text is decoded once more and no further.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import html
import re
import unicodedata
from collections.abc import Iterator
from urllib.parse import unquote

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
    """Lower case, compatible forms folded, accents dropped, so that one pattern fits all spellings."""
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text)).casefold()
    return "".join(c for c in folded if not unicodedata.combining(c))


def other_readings(text: str) -> Iterator[str]:
    """The text decoded in every way that costs nothing, each already `normalized`; the text itself is not among them."""
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
    """What the encoded passages of a text say: escapes, binary, hexadecimal, base64, base32, base85."""
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
    """Whether a run of letters and digits is readable text or a picture in base64: then nothing in it is hidden."""
    content = _base64(blob)
    return content.startswith((b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF")) or _is_readable(content)


def mixes_alphabets(text: str) -> bool:
    """Whether a word that reads as Latin is written partly in another alphabet's look-alikes."""
    if text.isascii():
        return False
    return any(_is_mixed(word) for word in _LETTERS.findall(unicodedata.normalize("NFKC", text).casefold()))


def _is_mixed(word: str) -> bool:
    if len(word) < _FEWEST_TO_FOLD or word.isascii():
        return False
    folded = word.translate(_LOOK_ALIKES)
    # A word of one alphabet is a word of some language; Latin letters beside look-alikes are a disguise.
    return folded != word and folded.isascii() and any(c.isascii() for c in word)


def _unpacked(blob: str) -> Iterator[str]:
    """A run of letters and digits read as base64 and base32."""
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

"""Language detection: whether a text is in a script and language that the rules have words for.

The other rules look for known words and cannot judge a text in another language, so such a text goes to a person. The
language is detected sentence by sentence from its most common words (`common_words.py`). The detection is approximate:
a few words of a language without a word list pass as names.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection
from enum import Enum, StrEnum
from functools import cache

from worker.critic.common_words import ALPHABET, COMMON_WORDS


class UnreadableText(StrEnum):
    """Why the rules cannot read a text, as snake_case codes for the trail."""

    SCRIPT = "other_script"
    LANGUAGE = "other_language"
    LETTERS_APART = "letters_apart"


class _LanguageMatch(Enum):
    """Which languages a word belongs to: KNOWN, supported ones only; SHARED, others too; FOREIGN, others only; OTHER, unknown."""

    KNOWN, SHARED, FOREIGN, OTHER = range(4)


# Latin letters with and without accents, printable ASCII, and white space. All other characters are checked one by one.
_LATIN = re.compile(
    "[\t\n\x0b\x0c\r\x85 -~\u00a0-\u01bf\u01c4-\u024f\u02b9-\u02bc\u0300-\u034e\u0350-\u036f\u1e00-\u1eff]+"
)
# Accepted among the other characters: punctuation, symbols, emoji and their modifiers, spaces; no letters and no
# digits.
_CATEGORIES = frozenset({"Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp"})
_WITH_PICTURES = frozenset("\u200d\ufe0e\ufe0f\u20e3") | {chr(code) for code in range(0xE0020, 0xE0080)}
# Symbols that stand for letters: Braille, letters in circles and boxes. A few may be a flag or a sign; more are a text.
_LETTER_SYMBOL = re.compile("[\u2800-\u28ff\U0001f100-\U0001f1ff]")
_MOST_LETTER_SYMBOLS = 6
_UNIT = re.compile(r"(?<![^\W\d_])(?:μ[A-Za-z]{0,2}|[kM]?Ω)(?![^\W\d_])")
# Six letters or more, each standing alone: "I g n o r e", "a.p.p.r.o.v.e". Sizes, initials and abbreviations have fewer.
_LETTERS_APART = re.compile(r"(?<![^\W\d_])(?:[^\W\d_][\W\d_]{1,4}){5}[^\W\d_](?![^\W\d_])")
_SENTENCE = re.compile(r"[.!?;:|\n\r\u2028\u2029…()\[\]]+")
_WORD = re.compile(r"[^\W\d_]+")
# Addresses, and runs of letters and digits that are no words: `readings.py` checks what they may hide.
_NO_WORDS = re.compile(
    r"(?<!\S)\S*?(?:://|@|www\.|base64,)\S*+|(?<![A-Za-z0-9+/=_-])(?=[^\W\d]*\d)[A-Za-z0-9+/=_-]{20,}+"
)
_FEWEST_TO_TELL = 6
"""The fewest words in which a lack of common words means another language; fewer may be a name or an item's title."""
_COMMON_SHARE = 6
"""At least one word in this many must be a common one."""


def unreadable_because(text: str, languages: Collection[str]) -> UnreadableText | None:
    """Why the rules cannot read a text; None if they can. `languages` are ISO 639-1 codes from `READABLE`."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    if _has_other_script(text):
        return UnreadableText.SCRIPT
    if _LETTERS_APART.search(text):
        return UnreadableText.LETTERS_APART
    return UnreadableText.LANGUAGE if _is_other_language(text, frozenset(languages)) else None


def _has_other_script(text: str) -> bool:
    rest = _LATIN.sub("", _UNIT.sub("", text))
    if len(_LETTER_SYMBOL.findall(rest)) > _MOST_LETTER_SYMBOLS:
        return True
    return not all(c in _WITH_PICTURES or unicodedata.category(c) in _CATEGORIES for c in set(rest))


def _is_other_language(text: str, languages: frozenset[str]) -> bool:
    known, shared, foreign = _words_of(languages)
    counts = Counter[_LanguageMatch]()
    for sentence in _SENTENCE.split(_NO_WORDS.sub(" ", text)):
        kinds = [
            _LanguageMatch.KNOWN if (word := written.casefold()) in known
            else _LanguageMatch.SHARED if word in shared
            else _LanguageMatch.FOREIGN if word in foreign or _has_strange_letter(written)
            else _LanguageMatch.OTHER
            for written in _WORD.findall(sentence) if len(written) > 1
        ]  # fmt: skip
        common = len(kinds) - kinds.count(_LanguageMatch.OTHER) - kinds.count(_LanguageMatch.FOREIGN)
        if _has_foreign_run(kinds) or (len(kinds) >= _FEWEST_TO_TELL and common * _COMMON_SHARE < len(kinds)):
            return True
        counts.update(kinds)
    return counts[_LanguageMatch.FOREIGN] > counts[_LanguageMatch.KNOWN]


def _has_foreign_run(kinds: list[_LanguageMatch]) -> bool:
    """Whether two foreign words occur with no known word between them."""
    foreign = 0
    for kind in kinds:
        foreign = 0 if kind is _LanguageMatch.KNOWN else foreign + (kind is _LanguageMatch.FOREIGN)
        if foreign > 1:
            return True
    return False


def _has_strange_letter(word: str) -> bool:
    """Whether a word has a letter that no readable language has; capitalised words count as names, which may have any."""
    return not word.istitle() and not ALPHABET.issuperset(word.casefold())


@cache
def _words_of(languages: frozenset[str]) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """(words of these languages only, words that others have too, words of others only)."""
    ours = frozenset().union(*(COMMON_WORDS[lang] for lang in languages))
    others = frozenset().union(*(words for lang, words in COMMON_WORDS.items() if lang not in languages))
    return ours - others, ours & others, others - ours

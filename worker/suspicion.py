"""Simple rules that tell a customer's words from words aimed at a machine.

They can only tighten: a suspicious reason is refused, an unsuspicious one permits nothing. They are not a proof; the
safety of the money rests on the policy, which never sees the words. A text is looked at as it is written and as it would
read decoded, unspaced, reversed or without look-alikes.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from urllib.parse import unquote

MAX_LOOKED_AT = 4000
"""Longer texts are suspicious by themselves: nobody explains a refund in four thousand characters."""

# Invisible, direction-changing, private-use and tag characters: a person would not see what is there.
_INVISIBLE = re.compile(
    "[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ue000-\uf8ff\U000e0000-\U000e0fff]"
)

_MANY = r"(?:[\w'-]+\W+){0,6}?"
_ABOUT_RULES = (
    r"(?:instructions?|rules|guidelines|directives?|restrictions|prompts?|safety|policy|polic(?:y|ies) for|told|above"
    r"|anweisung\w*|regeln|richtlinien|besprochen|consignes|regles|instrucciones|reglas|istruzioni|regole|systeme?\b)"
)
_PATTERNS = (
    # Turning the machine against its orders.
    rf"\b(?:ignor\w+|disregard|forget|bypass|overrid\w+|supersedes?|skip|vergiss|vergessen|missachte\w*|oublie\w*|olvida\w*|"
    rf"dimentica\w*)\b\W+{_MANY}{_ABOUT_RULES}",
    rf"\b(?:new|neue|nuevas?|nouvelles?|nuove)\W+{_MANY}(?:instructions?|directive|anweisung\w*|instrucciones|istruzioni)\b",
    r"\b(?:override:|safety (?:protocols?|checks?|guidelines)|security update|system update|breach alert)",
    r"\b(?:no|without|any|ohne|keine|sans|sin|senza|an?|im)\W+(?:any\W+|content\W+|internal\W+)*"
    r"(?:restrictions?|restricciones|restrizioni|filters?|filtro|filtre|limits\b(?! on)|rules\b|policy\b|regeln|unrestricted|"
    r"uncensored)",
    r"\b(?:un(?:restricted|censored|eingeschrankt\w*)|jailbreak|dan has|do anything now|(?:developer|entwickler) mode|"
    r"modo desarrollador)",
    r"\b(?:from now on|ab jetzt|ab sofort|desde ahora|d'ora in poi|you are (?:now|no longer)|you must|you now|"
    r"du bist jetzt|vous etes desormais|ahora es|ora sei)\b",
    r"\b(?:exempt from|not (?:made|meant) for this case|gilt nicht|no se aplican|non valgono|ne s'appliquent pas)",
    # Speaking to a machine, or as one.
    r"\b(?:ai|llm|bot|assistant|agent|model|chatbot)s?\b\W+(?:(?:\w+\W+){0,2})(?:reading|reviewing|processing|integrating|"
    r"should|must|ignore|reviewing)",
    r"\b(?:note|notice|message|hint|hook|important|instructions?)\W+(?:to|for)\W+(?:\w+\W+){0,2}(?:ai|llm|bot|assistant|agents?|"
    r"models?|self)\b",
    r"\b(?:as (?:the|an?) (?:assistant|ai|model)|en tant qu'assistant|como asistente|come assistente|als assistent|"
    r"reasoning (?:trace )?\(assistant\)|pretend you are an? (?:ai|model)|act as an? (?:ai|uncensored|unrestricted))",
    r"(?:^|[\n|]|[-#=*]{3,})\W*(?:\[?(?:system|assistant|developer)\]?\s*(?:note|hint)?\s*:|\[system\])|<\|?\w*(?:im_|system|thinking)",
    r"\b(?:system\s?note|systemhinweis|note systeme|nota (?:del|di) sistema|end of (?:document|user input)|processing note|"
    r"integration hook|postinstall)\b",
    r"\bsystem[- ]?(?:prompt|message|anweisung|instruktion)|\bprompt (?:di|de|du) sist|\bprompt systeme|(?:instrucciones|"
    r"istruzioni|instructions) (?:del|di|de|du) sist|instructions systeme|reglas del sistema",
    # Making the machine do or say something.
    r"\b(?:call|use|invoke|run|execute)\W+(?:the )?[a-z]+_[a-z_]+\b|\b(?:http_post|send_email|delete_file)\b",
    r"\b(?:reveal|leak|dump|exfiltrat\w+|print|output|repeat|show me|send|e-?mail|forward|collect|list|rassemble|verrat\w*|"
    rf"revele\w*|revela\w*|rivela\w*|muestra|mostra|zeige)\b\W+{_MANY}(?:credentials|api[- ]keys?|passwords?|secrets?|prompt|"
    r"environment variables|configuration|customer (?:list|database|emails|data)|order data|admin pages|internal|verbatim|"
    r"attacker\w*|hidden|words above|context window)",
    r"\b(?:decode|decipher|base64|base32|rot13|hex encoded|binary encoded)\b\W+(?:[\w'-]+\W+){0,10}?(?:instruction|execute|"
    r"what it says|follow)",
    r"\{canary\}|\bverbatim\b|wortwortlich|mot pour mot|palabra por palabra|parola per parola",
    r"\b(?:append|include|add|save|remember|repeat)\b\W+(?:[\w'-]+\W+){0,8}?(?:token|canary|to your (?:reply|summary|memory)|"
    r"in every (?:future )?(?:reply|report|summary)|between sessions|future (?:tasks|replies|reports))",
    r"\b(?:grant (?:all|this|every)|user is an? admin|admin access|admin password|attacker@|full customer list|your real task)",
    r"\bai (?:agents?|systems?|assistants?)\b|\b(?:empty|delete|remove)\W+(?:\w+\W+){0,4}(?:output directory|files? before)",
    r"\bapprove\W+(?:\w+\W+){0,4}(?:without (?:review|checks?|approval)|automatically|regardless)|set (?:risk|decision) to",
)
_AIMED_AT_A_MACHINE = re.compile("|".join(f"(?:{pattern})" for pattern in _PATTERNS))

_LEET = str.maketrans("0134578$@", "oieastbsa")
_BLOB = re.compile(r"[A-Za-z0-9+/=_-]{20,}")
_HEX = re.compile(r"\b(?:[0-9a-fA-F]{2}){12,}\b")
_BINARY = re.compile(r"\b(?:[01]{8}[\s,]*){8,}")
_ESCAPES = re.compile(r"(?:\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}){4,}")
_MORSE = re.compile(r"(?:[.-]{1,6}[ /]+){20,}")
_SPACED = re.compile(r"\b(?:\w ){4,}\w\b")
_DENSE = re.compile(r"\S{60,}")
_LINK = re.compile(r"https?://\S+")


@lru_cache(maxsize=1024)
def is_suspicious(text: str) -> bool:
    """Whether these words look aimed at a machine. No text is unsuspicious."""
    return suspicious_because(text) is not None


def suspicious_because(text: str) -> str | None:
    """Which rule says so, in words for a person; None if none does. Never quotes the text."""
    if len(text) > MAX_LOOKED_AT:
        return "too long"
    if _INVISIBLE.search(text):
        return "invisible characters"
    if _AIMED_AT_A_MACHINE.search(plain(text)):
        return "words aimed at a machine"
    if any(_AIMED_AT_A_MACHINE.search(plain(reading)) for reading in _other_readings(text)):
        return "hidden words aimed at a machine"
    if _MORSE.search(text) or _DENSE.search(_LINK.sub("", text)):
        return "an encoded passage"
    return None


def plain(text: str) -> str:
    """Lower case, look-alikes folded, accents dropped, so that one pattern fits all spellings."""
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text)).casefold()
    return "".join(c for c in folded if not unicodedata.combining(c))


def _other_readings(text: str) -> Iterator[str]:
    """The same text decoded in every way that costs nothing."""
    if not text:
        return
    yield unquote(text)
    yield text[::-1]
    yield codecs.encode(text, "rot13")
    yield text.lower().translate(_LEET)
    yield _SPACED.sub(lambda found: found[0].replace(" ", ""), text)
    for found in _ESCAPES.findall(text):
        yield found.encode("ascii", "ignore").decode("unicode_escape", "ignore")
    for found in _BINARY.findall(text):
        yield "".join(chr(int(byte, 2)) for byte in re.findall("[01]{8}", found))
    for found in _HEX.findall(text):
        yield bytes.fromhex(found).decode("utf-8", "ignore")
    for found in _BLOB.findall(text):
        yield from _unpacked(found)


def _unpacked(blob: str) -> Iterator[str]:
    """A run of letters and digits read as base64 and base32."""
    bare = blob.strip("=")
    for decode, block in ((base64.urlsafe_b64decode, 4), (base64.b32decode, 8)):
        padded = bare.replace("+", "-").replace("/", "_") + "=" * (-len(bare) % block)
        try:
            yield decode(padded).decode("utf-8", "ignore")
        except (ValueError, binascii.Error):
            continue

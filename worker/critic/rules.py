"""The rules critic: deterministic, without outside calls, well under a millisecond for usual texts.

In order of precedence: amount, prompt injection, hidden text, scenario, the same text over several accounts; then doubts: a
text that is too long, has markup, is in an unsupported script or language, or speaks of how it is decided. Texts are cut to
a maximum length first. What it detects and what it misses is written in `policies/critic.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sentinel.platform.resources import policies_dir
from worker.critic.amounts import amount_detail
from worker.critic.bounds import Bounds, load_bounds
from worker.critic.case import CriticCase, CriticCode, Opinion
from worker.critic.coverage import unreadable_because
from worker.critic.decision_words import speaks_of_deciding
from worker.critic.prompt_injection import SAME_TEXT_ACCOUNTS, InjectionSign, suspicious_because
from worker.critic.readings import MAX_LOOKED_AT, normalized

# Brackets that look like those of tags, beyond what NFKC folds.
_BRACKETS = str.maketrans("‹›〈〉⟨⟩⟪⟫《》❮❯❰❱【】〔〕⟦⟧", "<><><><><><><>[][][]")
_ROLE = (
    r"(?:systeme?|sistema|assistant|assistent|asistente|assistente|users?|human|ai|ki|ia|llm|gpt|bot|chatbot|developer|admin|administrator"
    r"|supervisor|operator|reviewer|model|agent|tool|function|instructions?|anweisung(?:en)?|instrucciones|istruzioni|prompt|policy"
    r"|context|decision|verdict|role|response|output|answer)"
)
_MARKUP = re.compile(
    # Tags and comments, but not a mail or web address in angle brackets.
    r"<(?![\w.+-]{1,64}@[\w.-]{1,255}>|https?://[^<>\s]{1,500}>)[/!?%|]?\s?[a-z_][^<>\n]{0,200}>|<[/!?%|]\w|<<\s?/?\w|[%|?]>|-->"
    rf"|\[\s?/\s?\w{{1,30}}\s?\]|\[\s?#?\s?{_ROLE}\b[^\]\n]{{0,40}}\]|\[\s?/?(?:inst|sys)\b|\[\["
    # Templates, code, calls and data.
    r"|\{\{|\}\}|\{%|[$#]\{|\{\s?\w{1,30}\s?\}|```|~~~|\\[nrt](?![a-z])|\\begin\b|&(?:lt|gt|#\d{1,6}|#x[\da-f]{1,5});"
    r"|\]\(\s?\w{2,10}:|[\[{,]\s{0,8}[\"'][\w -]{1,40}[\"']\s?:|\b[a-z]\w{0,60}+(?:\.\w{1,60}+){1,4}+\("
    r"|\b[a-z]{1,40}_\w{0,60}+\(|\bfunction\s?\w{0,40}\("
    # A header of a role where a line or sentence begins, and a banner with one.
    rf"|(?:^|[\n\r\u2028\u2029.!?;|>\"”])[^\w\n]{{0,12}}{_ROLE}(?:[ _-]?(?:message|prompt|note|update|alert|override|instructions?|role))?"
    r"[\s*_\"'\])]{0,6}(?::|=>|->|={1,2}|>>)"
    rf"|(?<![-=#*~])[-=#*~]{{3,}}+\s?(?:\w{{1,20}}\s){{0,3}}{_ROLE}\b[\w ]{{0,30}}[-=#*~]{{3}}|(?:^|\n)\s{{0,8}}#{{1,6}}\s?{_ROLE}\b",
)


def has_markup(text: str) -> bool:
    """Whether there is a tag, a template, code, data or a header of a role in it."""
    return _MARKUP.search(normalized(text).translate(_BRACKETS)) is not None


_TEXT_CODES = {
    InjectionSign.WORDS: (CriticCode.INSTRUCTIONS, "words_aimed_at_a_machine"),
    InjectionSign.HIDDEN: (CriticCode.ENCODED_TEXT, "hidden_words"),
    InjectionSign.INVISIBLE: (CriticCode.ENCODED_TEXT, "invisible_characters"),
    InjectionSign.MIXED: (CriticCode.ENCODED_TEXT, "look_alike_letters"),
    InjectionSign.ENCODED: (CriticCode.ENCODED_TEXT, "encoded_passage"),
    InjectionSign.TOO_LONG: (CriticCode.LONG_TEXT, "not_looked_at"),
}

SPEAKS_OF_DECIDING = "speaks_of_deciding"
"""Detail of `critic_instructions` where two weak signs meet: enough for a person to look, not enough to call the row suspicious."""


class RulesCritic:
    """Immutable; safe to share between threads."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        """Without `bounds`: the shipped ones."""
        self._bounds = bounds or load_bounds(policies_dir())

    def judge(self, case: CriticCase) -> Opinion:
        """The first rule that speaks against the case, else approved."""
        if detail := amount_detail(case):
            return Opinion(CriticCode.AMOUNT, "rules", detail)
        for text in case.texts.values():
            if why := suspicious_because(text):
                return Opinion(_TEXT_CODES[why][0], "rules", _TEXT_CODES[why][1])
        if detail := _scenario_detail(case.scenario, normalized((case.reason or "")[:MAX_LOOKED_AT])):
            return Opinion(CriticCode.SCENARIO, "rules", detail)
        if case.same_text_accounts >= SAME_TEXT_ACCOUNTS:
            return Opinion(CriticCode.REPEATED_TEXT, "rules")
        for place, text in case.texts.items():
            if doubt := self._doubt(place, text):
                return doubt
        return Opinion(CriticCode.OK, "rules")

    def _doubt(self, place: str, text: str) -> Opinion | None:
        """Why a person should read this text, though nothing in it is suspicious."""
        if len(text) > self._bounds.longest[place]:
            return Opinion(CriticCode.LONG_TEXT, "rules", f"{place}_too_long")
        if has_markup(text):
            return Opinion(CriticCode.MARKUP, "rules", f"markup_in_{place}")
        if why := unreadable_because(text, self._bounds.languages):
            return Opinion(CriticCode.LANGUAGE, "rules", why)
        if speaks_of_deciding(normalized(text)):
            return Opinion(CriticCode.INSTRUCTIONS, "rules", SPEAKS_OF_DECIDING)
        return None


# A text that speaks of another scenario than the one requested: English and German keywords, plain cases only. One that also has
# words of its own scenario passes, and so does one without any known words: own keywords are matched broadly, foreign ones narrowly.


def _finders(words: Mapping[str, str]) -> dict[str, re.Pattern[str]]:
    return {topic: re.compile(rf"\b(?:{pattern})") for topic, pattern in words.items()}


_FAULT = (
    r"broken|damaged|defect|crack(?:ed|s)\b|shattered|scratched|faulty|does(?:n.?t| not) work|not working|stopped working"
    r"|torn\b|kaputt|defekt|beschadigt|zerbrochen|zerkratzt|funktioniert nicht|gerissen"
)
_FEE = (
    r"(?:shipping|delivery|return|freight)\W{1,3}(?:fee|cost|charge)|postage|versandkosten|lieferkosten|liefergebuhr"
    r"|rucksendekosten|frachtkosten|porto\b"
)
_PRICE = (
    r"(?:now|today|elsewhere) (?:much )?cheaper|cheaper (?:now|elsewhere|today)|price (?:drop|match|difference)|lower price"
    r"|price (?:has |was |is )?(?:now )?(?:gone down|went down|fell|fallen|lowered|reduced)"
    r"|preis(?:differenz|senkung|unterschied)|jetzt (?:viel )?(?:gunstiger|billiger)|(?:gunstiger|billiger) geworden"
)
_OWN = _finders(
    {
        "fee": rf"{_FEE}|ship|deliver|post|send|sent|return|label|versand|liefer|fracht|ruckse|porto|fees?\b|gebuhr|charge",
        "fault": rf"{_FAULT}|quality|qualitat|worn|wear|fade|stain|loose|leak|hole|missing|dead|turn on|fabric|material|naht"
        r"|lose|fehlt|loch|stoff|verarbeit|fleck|verfarb|broke\b|break",
        "price": rf"{_PRICE}|price|preis|cheap|gunstig|billig|sale\b|discount|rabatt|reduc|reduziert|difference|differenz|offer",
    }
)
_FOREIGN = _finders(
    {
        "fault": _FAULT,
        "fee": _FEE,
        "price": _PRICE,
        "loss": r"never (?:arrived|came|received|got)|not (?:yet )?(?:arrived|received)|did(?:n.?t| not) (?:arrive|receive)"
        r"|lost in|nie (?:angekommen|erhalten)|nicht (?:angekommen|erhalten|geliefert)|verloren gegangen",
    }
)
_OWN_AND_FOREIGN: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "fee": ("fee", ("fault", "price", "loss")),
    "price_diff": ("price", ("fault", "fee", "loss")),
    "defect": ("fault", ("fee", "price", "loss")),
    "quality": ("fault", ("fee", "price", "loss")),
}
"""Scenario → its own topic and those that do not go with it. Standard and compensation are asked for all reasons."""


def _scenario_detail(scenario: str, plain_text: str) -> str:
    """What the text speaks of instead, e.g. "speaks_of_fault"; "" if nothing speaks against the scenario.

    `plain_text` is lower case without accents (`readings.normalized`).
    """
    found = _OWN_AND_FOREIGN.get(scenario)
    if found is None or not plain_text:
        return ""
    own, foreign = found
    if _OWN[own].search(plain_text):
        return ""
    return next((f"speaks_of_{topic}" for topic in foreign if _FOREIGN[topic].search(plain_text)), "")

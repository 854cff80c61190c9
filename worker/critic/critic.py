"""The critic: judges a refund request by rules, then by a model where they approve and the branch is configured for it.

The rules are deterministic, make no outside calls, and take well under a millisecond for usual texts. In order of
precedence: amount, prompt injection and hidden text, scenario, the same text from several accounts; then doubts: a text
that is too long, has markup, is in an unsupported script or language, or is about how the shop decides.
`policies/critic.yaml` describes what is detected and what is missed.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from sentinel.core.money import DIGITS, MAX_MINOR, Money
from sentinel.platform.resources import policies_dir
from worker.critic.bounds import Bounds, load_bounds
from worker.critic.case import CriticCase, CriticCode, Layer, Opinion
from worker.critic.coverage import unreadable_because
from worker.critic.decision_words import speaks_of_deciding
from worker.critic.model import ModelCritic
from worker.critic.readings import MAX_LOOKED_AT, SAME_TEXT_ACCOUNTS, InjectionSign, normalized, suspicious_because
from worker.critic.settings import CriticSettings

# The amount is compared with the order ($980 for $98) and with amounts that the customer's text names.
#
# All amounts are integers in minor units. Amounts in text are parsed leniently ("9,80 €", "USD 1,234.50", "80 cents"):
# one that can be read in two ways contradicts the request only if both readings do.

_DOLLARS = frozenset({"USD", "CAD", "AUD", "NZD", "SGD", "HKD", "MXN", "CLP", "COP", "TWD"})
_MARKS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("$", "dollar", "dollars", "bucks"), _DOLLARS),
    **dict.fromkeys(("€", "euro", "euros"), frozenset({"EUR"})),
    **dict.fromkeys(("£", "quid"), frozenset({"GBP", "EGP"})),
    **dict.fromkeys(("¥", "yen", "yuan"), frozenset({"JPY", "CNY"})),
    "franken": frozenset({"CHF"}),
}
_SMALL = frozenset({"cent", "cents", "pence", "rappen"})
# Currency codes that are also words ("all 3 of them", "try 2") are ignored; "pounds" may be a weight, so it is not a
# mark.
_WORDS = frozenset({"ALL", "BAM", "BOB", "CUP", "GEL", "LAK", "MAD", "MOP", "PEN", "RON", "SOS", "TOP", "TRY"})
_CODES = "|".join(sorted(code.lower() for code in DIGITS.keys() - _WORDS))
_NUMBER = r"\d{1,12}(?:[.,'’ ]\d{3}(?!\d)){0,4}(?:[.,]\d{1,3})?(?!\d)"
_NAMED = re.compile(
    rf"(?P<before>[$€£¥]|(?<!\w)(?:{_CODES}))\s?(?P<first>{_NUMBER})"
    rf"|(?<![\w.,])(?P<second>{_NUMBER})\s?(?P<after>[$€£¥]|(?:{_CODES}|dollars?|bucks|euros?|quid|yen|yuan|franken|cents?|pence"
    r"|rappen)\b)"
)
_BARE = re.compile(r"(?<![\w.,:/-])\d{1,9}[.,]\d{2}(?![\w:/-]|[.,]\d)")
_MOST_NAMED = 8
_SLIPS = (10, 100, 1000)
_FEW = range(2, 10)
_LONGEST_TEXT = 4000


@dataclass(frozen=True, slots=True)
class NamedAmount:
    """An amount that a text names: all its readings in minor units, and the currencies it may be in."""

    readings: frozenset[int]
    currencies: frozenset[str]


def amount_detail(case: CriticCase) -> str:
    """What is wrong with the requested amount, as a snake_case code; "" for nothing."""
    return _against_facts(case) or (_against_words(case.requested, case.reason) if case.reason else "")


def _against_facts(case: CriticCase) -> str:
    asked = case.requested
    known = [(name, fact) for name, fact in _references(case) if fact is not None]
    if not known:
        return ""
    if any(fact.currency != asked.currency for _, fact in known):
        return "other_currency"
    over = [(name, fact) for name, fact in known if asked.amount_minor > fact.amount_minor]
    if not over:
        return ""
    if any(asked.amount_minor == fact.amount_minor * slip for _, fact in over for slip in _SLIPS):
        return "slip_of_ten"
    if over[0][0] == "item" and case.paid is not None and asked == case.paid:
        return "order_total_for_one_item"
    return f"over_{over[0][0]}"


def _references(case: CriticCase) -> tuple[tuple[str, Money | None], ...]:
    """The amounts that the request must not exceed: for a fee the order's and the shipping fee, else the order's and the item's."""
    if case.scenario == "fee":
        return (("paid", case.paid), ("shipping_fee", case.shipping_fee))
    return (("paid", case.paid), ("item", case.item_paid))


def _against_words(asked: Money, text: str) -> str:
    text = unicodedata.normalize("NFKC", text[:_LONGEST_TEXT])[:_LONGEST_TEXT].casefold()
    bare = _bare_amounts(_NAMED.sub(" ", text), asked.currency)
    named = named_amounts(text, asked.currency)
    if asked.amount_minor in bare or len(named) > _MOST_NAMED:
        return ""
    # A number without a currency counts only if the request is exactly ten, a hundred or a thousand times that number.
    if any(asked.amount_minor == minor * slip for minor in bare for slip in _SLIPS):
        return "text_names_a_tenth"
    mine = [each for each in named if asked.currency in each.currencies]
    if named and not mine:
        return "text_names_other_currency"
    return "" if not mine or _may_be_meant(asked.amount_minor, mine) else "text_names_less"


def named_amounts(text: str, currency: str) -> list[NamedAmount]:
    """The first amounts with a currency in a lower-case text, at most one more than are weighed, read with the digits of `currency`."""
    readable = (_named(found, currency) for found in _NAMED.finditer(text))
    return list(itertools.islice(filter(None, readable), _MOST_NAMED + 1))


def _named(found: re.Match[str], currency: str) -> NamedAmount | None:
    number = found["first"] or found["second"]
    mark = found["before"] or found["after"]
    readings = frozenset(_readings(number, 0 if mark in _SMALL else DIGITS[currency]))
    currencies = frozenset({currency}) if mark in _SMALL else _MARKS.get(mark) or frozenset({mark.upper()})
    return NamedAmount(readings, currencies) if readings else None


def _bare_amounts(text: str, currency: str) -> set[int]:
    found = itertools.islice(_BARE.finditer(text), _MOST_NAMED)
    return {minor for each in found for minor in _readings(each[0], DIGITS[currency])}


def _readings(number: str, digits: int) -> set[int]:
    """All readings of a number in minor units, those within range: "1.234" may be 1234 or 1.234, "9,8" is 9.80."""
    bare = re.sub(r"['’ ]", "", number)
    whole = re.sub(r"[.,]", "", bare)
    found = set()
    head, separator, tail = _last_separator(bare)
    if not separator or len(tail) == 3:
        found.add(int(whole) * 10**digits)
    if separator and len(tail) <= digits:
        found.add(int(re.sub(r"[.,]", "", head) or "0") * 10**digits + int(tail.ljust(digits, "0")))
    return {minor for minor in found if 0 < minor <= MAX_MINOR}


def _last_separator(bare: str) -> tuple[str, str, str]:
    place = max(bare.rfind("."), bare.rfind(","))
    return (bare[:place], bare[place], bare[place + 1 :]) if place >= 0 else (bare, "", "")


def _may_be_meant(asked_minor: int, named: list[NamedAmount]) -> bool:
    """Whether the request fits the named amounts: at most one of them, 2 to 9 times one, or the sum of several."""
    sums = {0}
    for each in named:
        sums |= {old + reading for old in sums for reading in each.readings}
    times = {reading * number for each in named for reading in each.readings for number in _FEW}
    return asked_minor in sums | times or any(asked_minor <= max(each.readings) for each in named)


# The rules.

# Look-alikes of angle and square brackets that NFKC does not fold.
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
    # The header of a role at the beginning of a line or sentence, and a banner with a role.
    rf"|(?:^|[\n\r\u2028\u2029.!?;|>\"”])[^\w\n]{{0,12}}{_ROLE}(?:[ _-]?(?:message|prompt|note|update|alert|override|instructions?|role))?"
    r"[\s*_\"'\])]{0,6}(?::|=>|->|={1,2}|>>)"
    rf"|(?<![-=#*~])[-=#*~]{{3,}}+\s?(?:\w{{1,20}}\s){{0,3}}{_ROLE}\b[\w ]{{0,30}}[-=#*~]{{3}}|(?:^|\n)\s{{0,8}}#{{1,6}}\s?{_ROLE}\b",
)


def has_markup(text: str) -> bool:
    """Whether a text has a tag, a template, code, data or the header of a role."""
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
"""The detail of `critic_instructions` for two weak signs: enough for a person to look, not enough to call the row suspicious."""


_NO_OBJECTION = Opinion(CriticCode.OK, "rules")


class RulesCritic:
    """The rules layer. Immutable, so safe to share between threads."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        """Use `bounds`, or the shipped ones by default."""
        self._bounds = bounds or load_bounds(policies_dir())

    def judge(self, case: CriticCase) -> Opinion:
        """Return the objection of the first rule that has one, else approve."""
        if detail := amount_detail(case):
            return Opinion(CriticCode.AMOUNT, "rules", detail)
        texts = case.texts
        for text in texts.values():
            if why := suspicious_because(text):
                return Opinion(_TEXT_CODES[why][0], "rules", _TEXT_CODES[why][1])
        if case.reason and (detail := _scenario_detail(case.scenario, normalized(case.reason[:MAX_LOOKED_AT]))):
            return Opinion(CriticCode.SCENARIO, "rules", detail)
        if case.same_text_accounts >= SAME_TEXT_ACCOUNTS:
            return Opinion(CriticCode.REPEATED_TEXT, "rules")
        for place, text in texts.items():
            if doubt := self._doubt(place, text):
                return doubt
        return _NO_OBJECTION

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


# Detects a text about another scenario than the requested one by English and German keywords, in plain cases only. A
# text that also has words of its own scenario passes, as does one without known words: own keywords match broadly,
# foreign ones narrowly.


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
"""Scenario → (its own topic, the topics that contradict it). Standard and compensation are missing: any reason fits them."""


def _scenario_detail(scenario: str, plain_text: str) -> str:
    """The code of the topic that contradicts the scenario, such as "speaks_of_fault"; "" for none.

    `plain_text` is lower case without accents (`readings.normalized`).
    """
    found = _OWN_AND_FOREIGN.get(scenario)
    if found is None or not plain_text:
        return ""
    own, foreign = found
    if _OWN[own].search(plain_text):
        return ""
    return next((f"speaks_of_{topic}" for topic in foreign if _FOREIGN[topic].search(plain_text)), "")


# Both layers combined.


class Judge(Protocol):
    """One layer of the critic. Never raises."""

    def judge(self, case: CriticCase) -> Opinion:
        """Judge the case."""


class Critic:
    """The critic of a worker; `model` is None where no model is configured."""

    def __init__(self, rules: Judge | None = None, model: Judge | None = None) -> None:
        self._rules: Judge = rules or RulesCritic()
        self._model = model

    def judge(self, case: CriticCase, *, wants_model: bool) -> Opinion:
        """Judge by the rules, and by the model where they approve and `wants_model`. Never raises.

        Without a configured model a case that wants one is not approved.
        """
        opinion = _safely(self._rules, case, "rules")
        if not opinion.approved or not wants_model:
            return opinion
        if self._model is None:
            return Opinion(CriticCode.ERROR, "model", "not_configured")
        return _safely(self._model, case, "model")


def critic_from(settings: CriticSettings) -> Critic:
    """Make the critic of these settings; without a model URL it has no model layer. Raises `PolicyError`."""
    rules = RulesCritic(load_bounds(settings.policies_dir))
    if not settings.critic_url:
        return Critic(rules)
    model = ModelCritic(
        settings.critic_url, settings.critic_model, settings.critic_api_key, settings.critic_timeout_seconds
    )
    return Critic(rules, model)


def _safely(judge: Judge, case: CriticCase, layer: Layer) -> Opinion:
    try:
        return judge.judge(case)
    except Exception:  # a defect in a critic stops one row, not the worker
        return Opinion(CriticCode.ERROR, layer, "defect")

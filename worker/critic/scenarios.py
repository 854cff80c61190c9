"""Detects a text that speaks of another scenario than the one requested. English and German keywords, plain cases only.

A text that also has words of its own scenario passes, and so does one without any known words: own keywords are matched
broadly, foreign ones narrowly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping


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


def scenario_detail(scenario: str, plain_text: str) -> str:
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

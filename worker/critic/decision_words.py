"""Detects text about how the shop decides instead of about the purchase: weak signals, of which two kinds must occur.

A customer may mention a rule, a manager or a check. A text with several kinds of such words is probably written for the
reviewer: reason enough for a person to read it, not to deny the refund. English, and some German. All patterns match
`readings.normalized` text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_FEWEST_KINDS = 2
_FEW = r"(?:[\w'-]+\s){0,3}?"

_KINDS: Mapping[str, tuple[str, ...]] = {
    "that nothing needs to be looked at": (
        r"\b(?:without|no|not|skip\w*|bypass\w*|waiv\w*|omit\w*|suspend\w*|disabl\w*|ignor\w*|lift\w*|ohne|keine?|uberspring\w*)"
        rf"\s{_FEW}(?:(?:re-?)?(?:reviews?|checks?|checking|checked|approvals?|verif\w+|confirmation|authori[sz]ation|validation)"
        r"|limits?|polic(?:y|ies)|rules?|restrictions?|human|manual|prufung|prufen|freigabe|genehmigung|kontrolle|regeln|ruckfragen?)\b",
    ),
    "what to decide": (
        r"\b(?:mark|set|treat|classify|flag|consider|label|count|regard|record|return|answer|respond|reply|output|decide|conclude"
        r"|behandle|markiere|antworte)\b[^.!?\n]{0,50}?\b(?:approved|authori[sz]ed|cleared|allowed?|granted|executed|settled|eligible"
        r"|verified|legitimate|trusted|low[- ]risk|risk[- ]free|valid|genehmigt|freigegeben|erlaubt|gepruft)\b",
        rf"\b(?:approve|authori[sz]e|grant|release|execute|process|issue|pay)\s{_FEW}"
        r"(?:immediately|at once|right away|instantly|now|in full|anyway|automatically)\b",
        r"\bauto[- ]?(?:approv|process|releas|pay)\w*",
    ),
    "who or what decides": (
        r"\b(?:llms?|gpt|chatbots?|bots?|language models?|sprachmodell|algorithm\w*|classifiers?|automat(?:ed|ic) \w+)\b",
        r"\b(?:(?:the|an?|this|dear|to|die|der) (?:ai|ki)|decision (?:engine|system)"
        r"|refund ?(?:agent|bot|engine|system|assistant|processor))\b",
        r"\b(?:this|the|dear|an?) (?:model|agent|assistant|reviewer|evaluator|critic|moderator|checker|system) (?:should|must|shall"
        r"|will|is to|has to|can|may|in charge|that|who|which|reading|reviewing)\b|\bof this (?:model|agent|assistant|system)\b",
        r"\byou are (?:now |an? |the ){0,2}(?:\w+ )?(?:model|agent|assistant|bot|system|reviewer)\b",
    ),
    "what only those inside speak of": (
        r"\brisk (?:score|level|flag|rating|class|model)|\bfraud (?:score|check|flag|filter|team|rules?|system|department)",
        r"\breason code|\b(?:white|allow)-?list\w*|\boverrid\w*|\bpre-?(?:approv|authori[sz]|clear|verif|validat)\w*|\bthreshold",
        r"\b(?:approval|limit|policy|security|compliance|risk) (?:steps?|checks?|flow|gate|queue|engine|section|exception|update"
        r"|team|department|limits?)\b|\b(?:test|debug|maintenance|developer|admin|training) (?:mode|run|environment)",
        r"\badministrators?\b|\bsandbox|\binternal (?:note|memo|policy|use|only|audit)|\b(?:root|admin) (?:access|rights)"
        r"|\bsystem (?:status|update|notice|notification)",
    ),
    "another part to play, or another task": (
        r"\bpretend\w*|\bimagine (?:that )?(?:you|a)\b|\bsuppose (?:that )?you|\brole-?play|\bhypothetical|\bstay in character",
        r"\byour (?:role|job|task|goal|objective|instructions?|rules|guidelines|training|purpose|programming|decision)\b",
        r"\bdeine (?:rolle|aufgabe|regeln|anweisungen)|\bfor the rest of (?:this|the|our) (?:chat|conversation|session)"
        r"|\bfrom now on|\bab sofort",
    ),
    "what to say, and what not": (
        r"\bnothing else\b|\b(?:only|just|exactly)(?: with)? the (?:word|following|text|phrase)|\bword (?:for|by) word|\bnur mit\b",
        r"\bdo(?: not|n't) (?:mention|reveal|disclose|include|explain|log|tell|record|ask|escalate|flag|question)|\berwahne\b",
        r"\bas (?:json|plain text)|\b(?:end|begin|start|finish) (?:your|every|each|the) (?:answer|reply|response|message)",
    ),
    "what counts more, and what no longer": (
        r"\b(?:earlier|previous|prior|above|preceding|existing|normal|usual|standard) (?:rules?|instructions?|polic(?:y|ies)"
        r"|directions?|guidance|limits?|checks?)\b|\btakes? (?:precedence|priority)|\bsupersed\w*",
        r"\bno longer (?:appl|valid|in force|bind)\w*|\bdo(?:es)? not apply|\beffective immediately"
        r"|\bnew (?:rules?|instructions?|polic(?:y|ies)|directive)|\bneue (?:regel|anweisung)\w*",
    ),
}
_PATTERNS = tuple(re.compile("|".join(patterns)) for patterns in _KINDS.values())


def speaks_of_deciding(plain_text: str) -> bool:
    """Whether at least two kinds of such words are in the text, which has the form of `readings.normalized`."""
    return sum(pattern.search(plain_text) is not None for pattern in _PATTERNS) >= _FEWEST_KINDS

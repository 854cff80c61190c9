"""Detects known phrases of prompt injection by patterns, each tried only at words that can begin it.

The detection is not complete: the safety of the money rests on the policy, which never sees the text. So patterns may
miss phrases, but must be fast and rarely flag a genuine customer. All patterns match `readings.normalized` text, and
possessive repetitions keep each from backtracking over more than a few words.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict

_MANY = r"(?:[\w'-]++\W++){0,6}?"
_ABOUT_RULES = (
    r"(?:instructions?|rules|guidelines|directives?|restrictions|prompts?|safety|policy|polic(?:y|ies) for|told|above"
    r"|anweisung\w*|regeln|richtlinien|besprochen|consignes|regles|instrucciones|reglas|istruzioni|regole|systeme?\b)"
)
_SECRETS = (
    r"(?:credentials|api[- ]keys?|passwords?|secrets?|prompt|environment variables|configuration"
    r"|customer (?:list|database|emails|data)|order data|admin pages|internal|verbatim|attacker\w*|hidden|words above"
    r"|context window)"
)

# (the first words, a regular expression for the rest of that word and what follows)
_PATTERNS: tuple[tuple[str, str], ...] = (
    # Turning the model against its instructions.
    (
        "ignor disregard forget bypass overrid supersede skip vergiss vergessen missachte oublie olvida dimentica",
        rf"\w*+\W++{_MANY}{_ABOUT_RULES}",
    ),
    (
        "new neue nueva nouvelle nuove",
        rf"\w?+\W++{_MANY}(?:instructions?|directive|anweisung\w*|instrucciones|istruzioni)\b",
    ),
    ("override:", ""),
    ("safety", r" (?:protocols?|guidelines)"),
    ("disable disabling disregarding without bypassing", r"\W++(?:\w++\W++){0,3}?safety (?:checks?|filters?)"),
    ("security system breach", r" (?:update|alert)\b"),
    (
        "no without any ohne keine sans sin senza a an im",
        r"\W++(?:any\W++|content\W++|internal\W++)*+(?:restrictions?|restricciones|restrizioni|filters?\b|filtro|filtre"
        r"|limits\b(?! on)|rules\b|policy\b|regeln|unrestricted|uncensored)",
    ),
    ("unrestricted uncensored uneingeschrankt jailbreak", ""),
    ("do", " anything now"),
    ("dan", r" has\b"),
    ("developer entwickler", r"\W?(?:mode|modus)\b"),
    ("modo", " desarrollador"),
    ("from ab desde d", r"(?: now on|'ora in poi| jetzt| sofort| ahora)\b"),
    (
        "you",
        r" (?:are (?:now|no longer|authori[sz]ed to approve)\b|(?:must|now) (?:also |always |never |only )?(?:comply|ignore|obey|follow|answer|act|respond|reply|reveal|print|output|operate|have no|are)\b)",
    ),
    ("du vous ahora ora", r" (?:bist jetzt|etes desormais|es|sei)\b"),
    ("exempt", " from"),
    ("not", " (?:made|meant) for this case"),
    ("gilt no non ne", " (?:nicht|se aplican|valgono|s'appliquent pas)"),
    # Addressing a model, or speaking as one.
    (
        "ai llm bot assistant agent model chatbot",
        r"s?+\b\W++(?:\w++\W++){0,2}?(?:reading|reviewing|processing|integrating|should|must|ignore)",
    ),
    ("ai", r" (?:agents?|systems?|assistants?)\b"),
    (
        "note notice message hint hook important instruction",
        r"s?+\W++(?:to|for)\W++(?:\w++\W++){0,2}?(?:ai|llm|bot|assistant|agents?|models?|self)\b",
    ),
    ("as", r" (?:the|an?) (?:assistant|ai|(?:ai|language) model)\b"),
    ("en como come als", " (?:tant qu'assistant|asistente|assistente|assistent)"),
    ("reasoning", r" (?:trace )?\(assistant\)"),
    ("pretend", " you are an? (?:ai|model)"),
    ("act", " as an? (?:ai|uncensored|unrestricted)"),
    ("system systemhinweis", r"\s?note\b|hinweis\b"),
    ("note nota", r" (?:systeme|(?:del|di) sistema)\b"),
    ("end", r" of (?:document|user input)\b"),
    ("processing integration", r" (?:note|hook)\b"),
    ("postinstall", r"\b"),
    ("system", r"[- ]?(?:prompt|message|anweisung|instruktion)"),
    ("prompt", " (?:(?:di|de|du) sist|systeme)"),
    ("instrucciones istruzioni instructions", r" (?:(?:del|di|de|du) sist|systeme|you (?:were|have been|are) given)"),
    ("reglas", " del sistema"),
    ("tool function finish response json", r"_(?:calls?|reason|format|schema)\b"),
    # Making the model do or say something.
    ("call use invoke run execute", r"\W++(?:the )?[a-z]+_[a-z_]+\b"),
    ("http send delete", r"_(?:post|email|file)\b"),
    (
        "reveal leak dump exfiltrat print output repeat show send e-mail email mail forward collect list rassemble verrat"
        " revele revela rivela muestra mostra zeige",
        rf"\w*+\W++{_MANY}{_SECRETS}",
    ),
    (
        "decode decipher base64 base32 rot13 hex binary",
        r"(?: encoded)?+\W++(?:[\w'-]++\W++){0,10}?(?:instruction|execute|what it says|follow)",
    ),
    ("verbatim wortwortlich", r"\b"),
    ("mot palabra parola", " (?:pour mot|por palabra|per parola)"),
    (
        "append include add save remember repeat",
        r"\W++(?:[\w'-]++\W++){0,8}?(?:token\b|canary|to your (?:reply|summary|memory)"
        r"|in every (?:future )?(?:reply|report|summary)|between sessions|future (?:tasks|replies))",
    ),
    ("grant", " (?:all|this|every)"),
    ("user", " is an? admin"),
    ("admin", " (?:access|password)"),
    ("attacker@", ""),
    ("full", " customer list"),
    ("your", " real task"),
    ("empty delete remove", r"\W++(?:\w++\W++){0,4}?(?:output directory|files? before)"),
    (
        "approve approving genehmige genehmigen",
        r"\W++(?:\w++\W++){0,4}?(?:without (?:any )?(?:review|checks?|approval)|automatically|regardless|automatisch|ohne prufung)",
    ),
    ("set", " (?:risk|decision|approved|verdict) (?:score )?to"),
    ("approved", r"\s?[:=]\s?true\b"),
)

_MARKS = re.compile(
    r"(?:^|[\n|.]|[-#=*]{3})[^\w\n]{0,12}+(?:system|assistant|developer)\]?\s?(?:note|hint)?\s?:|\[system\]"
    r"|<\|?\w{0,20}(?:im_|system|thinking)|\[/?inst\]|<<sys>>|(?<!#)#{2,}+\s?(?:system|instruction|assistant|response)\b"
    r"|</?\s?(?:script|iframe|img|svg|style|object|embed|meta|tool|function|assistant|prompt|data|untrusted|customer)[\w:-]{0,30}[\s/>]"
    r"|<!--|!\[[^\]\n]{0,80}\]\(|\{canary\}"
    r"|[\"'](?:is_)?(?:approved?|decision|verdict|reason_code|tool|arguments)[\"']\s?:"
)
"""Markers of roles, tool calls, verdicts and hidden markup, which count wherever they occur."""

_WORD = re.compile(r"[\w-]+[@:]?")
_KEY = 3


@functools.cache
def _patterns_by_start() -> dict[str, tuple[re.Pattern[str], ...]]:
    """The patterns by the first three letters of the words that can begin them; compiled at first use, not at import."""
    found: dict[str, list[re.Pattern[str]]] = defaultdict(list)
    for starts, rest in _PATTERNS:
        words = starts.split()
        for key in {word[:_KEY] for word in words}:
            mine = "|".join(re.escape(word) for word in words if word[:_KEY] == key)
            found[key].append(re.compile(f"(?:{mine}){rest}"))
    return {key: tuple(patterns) for key, patterns in found.items()}


def speaks_to_a_machine(plain_text: str) -> bool:
    """Whether the text, in the form of `readings.normalized`, has words or markers aimed at a model."""
    by_start = _patterns_by_start()
    for word in _WORD.finditer(plain_text):
        patterns = by_start.get(word[0][:_KEY])
        if patterns and any(pattern.match(plain_text, word.start()) for pattern in patterns):
            return True
    return _MARKS.search(plain_text) is not None

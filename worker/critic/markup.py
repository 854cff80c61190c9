"""Tags, templates, code and headers of roles: what a customer does not write about a refund, and what models are steered with.

Seen only where it has such a form. Words that mean the same without it are not: `machine_words` knows some of them.
"""

from __future__ import annotations

import re

from worker.critic.readings import plain

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
    return _MARKUP.search(plain(text).translate(_BRACKETS)) is not None

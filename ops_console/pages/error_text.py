"""Our errors as a page says them: a field by what its form calls it, a rule as a sentence. The API keeps its own names."""

from __future__ import annotations

import re

from sentinel.core.errors import SentinelError

_LABELS = {
    "proof": "Your password or code", "digest": "What the page showed", "verdict": "Your decision", "id": "The list",
    "reason": "The reason", "reference": "The reference", "evidence": "The evidence", "executed": "Was it executed",
    "target": "“Of which”", "scope": "The scope", "level": "The level", "email": "The e-mail address", "password": "The password",
    "code": "The code", "old": "The old password", "new": "The new password", "again": "The new password again",
    "label": "The label", "expires_days": "The number of days", "overlap_hours": "The number of hours", "agent_id": "The agent",
    "owner": "Key owner", "scopes": "What it may", "role": "The role", "canary_percent": "The share",
    "q": "What is looked for", "lane": "The lane", "status": "The state", "kind": "The kind", "agent": "The agent",
    "operation": "The operation id", "since": "The beginning", "until": "The end", "cursor": "The place in the list",
    "key_id": "The key", "token_id": "The token", "session_id": "The session", "name": "The name", "sort": "The order",
}  # fmt: skip
# How validators say it, and how a person would.
_RULES = {
    "Missing data for required field": "is missing",
    "Field may not be null": "is missing",
    "Not a valid integer": "must be a whole number",
    "Not a valid string": "must be a text",
    "Not a valid email address": "is no e-mail address",
    "Unknown field": "does not belong to this form",
}
_SAID_OF_IT = re.compile(r"(is|are|was|were|must|may|can|cannot|has|have|had|does|differs|holds|names|needs)\b")


def in_words(error: SentinelError) -> tuple[str, dict[str, str]]:
    """(the sentence, rule by field name) of an error."""
    rules = {path: _RULES.get(rule, rule) for path, rule in error.errors.items()}
    fields = {path.rpartition(".")[2]: rule for path, rule in rules.items()}
    for path, rule in error.errors.items():
        # Only a sentence that was made of the field and its rule is made anew; others were written for people.
        if error.detail == f"{path}: {rule}":
            return _sentence(path.rpartition(".")[2], rules[path]), fields
    return error.detail, fields


def _sentence(field: str, rule: str) -> str:
    label = _LABELS.get(field) or f"“{field.replace('_', ' ')}”"
    return f"{label} {rule}" if _SAID_OF_IT.match(rule) else f"{label}: {rule}"

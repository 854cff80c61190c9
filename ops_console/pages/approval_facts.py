"""The facts of an approval's card: what is bound by the digest, leaf by leaf, each marked for how it may be written.

What names whom and what it is about (the amount, accounts, the identifiers of `core/operation.py`) comes first. Every other name and value
is the agent's own choice: it is shown apart from our labels, all of it, however much there is. Free text is fenced off.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ops_console.pages.text import money
from sentinel.authority.approvals import ApprovalRow
from sentinel.core.canonical import sha256_hex
from sentinel.core.money import DIGITS
from sentinel.core.operation import IDENTIFIER, IDENTIFIER_PARAMS

READABLE = 100
"""So many facts of an agent's own a person reads; the card says so where there are more."""
_ACCOUNTS = ("account_ref", "account_id")
_FIRST = ("amount", *_ACCOUNTS)
"""Known facts in the order of the card; the other identifiers follow by name."""
_LONGEST_NAME = 128


@dataclass(frozen=True, slots=True)
class ShownFact:
    """One leaf of the operation. `style` is money, name, value, text (foreign, to be fenced) or hidden; `known` where its name is
    one of ours, whose form the authority checked, and not the agent's."""

    path: str
    shown: str
    style: str
    known: bool = False


def is_bound(canonical: str, row: ApprovalRow) -> bool:
    """Whether the stored operation is the one that the digest names, with the row's amount; else somebody changed one."""
    amount = json.loads(canonical).get("params", {}).get("amount") or {}
    same = (amount.get("amount_minor"), amount.get("currency")) == (row.amount_minor, row.currency)
    return same and sha256_hex(canonical) == row.digest


def facts_of(canonical: str, *, accounts: bool) -> list[ShownFact]:
    """All of the operation's params, the known ones first; whose account it is only where `accounts` says so."""
    params = json.loads(canonical).get("params", {})
    known = [
        name for name in (*_FIRST, *sorted(IDENTIFIER_PARAMS.difference(_FIRST))) if _is_known(name, params.get(name))
    ]
    own = {name: value for name, value in params.items() if name not in known}
    return [
        *(replace(_fact(name, params[name], accounts), known=True) for name in known),
        *sorted(
            (_fact(path, value, accounts) for path, value in _leaves("", own)), key=lambda fact: fact.style == "text"
        ),
    ]


def _is_known(name: str, value: Any) -> bool:
    """Whether it is what the authority lets in under this name."""
    return _is_money(value) if name == "amount" else isinstance(value, str)


def _is_money(value: Any) -> bool:
    """Whether it has the form of an amount. An agent may write anything under these two names."""
    if not (isinstance(value, dict) and value.keys() == {"amount_minor", "currency"}):
        return False
    currency = value["currency"]
    return type(value["amount_minor"]) is int and isinstance(currency, str) and currency in DIGITS


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value and not (path and _is_money(value)):
        for name, inner in value.items():
            yield from _leaves(f"{path}.{name}" if path else name, inner)
    elif isinstance(value, list) and value:
        for place, inner in enumerate(value):
            yield from _leaves(f"{path}[{place + 1}]", inner)
    elif path:
        yield path, value


def _fact(path: str, value: Any, accounts: bool) -> ShownFact:
    if path.rpartition(".")[2] in _ACCOUNTS and not accounts:
        return ShownFact(path, "shown to approvers", "hidden")
    if _is_money(value):
        return ShownFact(path, money(value["amount_minor"], value["currency"]), "money")
    if isinstance(value, bool):
        return ShownFact(path, "yes" if value else "no", "value")
    if isinstance(value, str):
        is_name = (path in IDENTIFIER_PARAMS or len(value) <= _LONGEST_NAME) and IDENTIFIER.fullmatch(value) is not None
        return ShownFact(path, value, "name" if is_name else "text")
    return ShownFact(path, json.dumps(value), "value")

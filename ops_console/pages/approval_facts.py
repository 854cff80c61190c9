"""The facts of an approval's card: what is bound by the digest, leaf by leaf, each marked for how it may be written.

Names and numbers are shown as they are; anything else in an operation is some agent's or customer's text and is fenced off.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ops_console.pages.text import money
from sentinel.authority.approvals import ApprovalRow
from sentinel.core.canonical import sha256_hex
from sentinel.core.operation import IDENTIFIER

MOST = 100
_ACCOUNTS = ("account_ref", "account_id")
_LONGEST_NAME = 128


@dataclass(frozen=True, slots=True)
class Fact:
    """One leaf of the operation. `style` is money, name, value, text (foreign, to be fenced) or hidden."""

    path: str
    shown: str
    style: str


def is_bound(canonical: str, row: ApprovalRow) -> bool:
    """Whether the stored operation is the one that the digest names, with the row's amount; else somebody changed one."""
    amount = json.loads(canonical).get("params", {}).get("amount") or {}
    same = (amount.get("amount_minor"), amount.get("currency")) == (row.amount_minor, row.currency)
    return same and sha256_hex(canonical) == row.digest


def facts_of(canonical: str, *, accounts: bool) -> list[Fact]:
    """The operation's params, at most `MOST`; whose account it is only where `accounts` says so."""
    leaves = _leaves("", json.loads(canonical).get("params", {}))
    found = [_fact(path, value, accounts) for path, value in leaves]
    found.sort(key=lambda fact: fact.style == "text")
    rest = len(found) - MOST
    return found[:MOST] + ([Fact("…", f"{rest} more", "value")] if rest > 0 else [])


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and not (path and value.keys() == {"amount_minor", "currency"}):
        for name, inner in value.items():
            yield from _leaves(f"{path}.{name}" if path else name, inner)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _leaves(f"{path}[{place + 1}]", inner)
    else:
        yield path, value


def _fact(path: str, value: Any, accounts: bool) -> Fact:
    if path.rpartition(".")[2] in _ACCOUNTS and not accounts:
        return Fact(path, "shown to approvers", "hidden")
    if isinstance(value, dict):
        return Fact(path, money(value["amount_minor"], value["currency"]), "money")
    if isinstance(value, bool):
        return Fact(path, "yes" if value else "no", "value")
    if isinstance(value, str):
        is_name = len(value) <= _LONGEST_NAME and IDENTIFIER.fullmatch(value) is not None
        return Fact(path, value, "name" if is_name else "text")
    return Fact(path, str(value), "value")

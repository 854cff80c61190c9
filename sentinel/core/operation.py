"""Operation: one exact action under one idempotency key, its canonical form, digest and first difference.

`{"amount": 40, "currency": "USD"}` and `{"amount": {"value": "40.00", "currency": "USD"}}`, another key order, or
null against absent are the same operation (`docs/CONTRACT.md` §2). The evidence context comes with it but is no part of
it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec

from sentinel.core.canonical import MAX_SAFE_INTEGER, canonical_json, sha256_hex
from sentinel.core.errors import InvalidInput
from sentinel.core.money import Money, parse_money

IDENTIFIER = re.compile(r"[A-Za-z0-9._:/@-]+")
"""The form of every identifier on the wire: ASCII only, so no character of another script can pass for one of these.
Spellings that differ in case or in punctuation at the end are different identifiers; as values of a once-key, the
second one needs a person's approval."""

MAX_IDENTIFIER = 200
"""The longest identifier among the params."""

# Control characters (except tab and line ends), surrogates, bidirectional and zero-width characters: a person would not
# see the text as it is, or a store would refuse it.
UNSAFE_TEXT = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)

IDENTIFIER_PARAMS = frozenset(
    {
        "ledger_entry_id",
        "refund_id",
        "account_ref",
        "account_id",
        "order_ref",
        "order_id",
        "order_key",
        "source",
        "channel",
        "scenario",
        "escalation",
    }
)
"""Params that name things in limits, proofs and the public feed: identifiers, never free text."""

MAX_KEY, MAX_TEXT = 128, 8192

# dict first: `isinstance` with the abstract class is several times slower.
_MAPPINGS = (dict, Mapping)

DEFAULTED = frozenset({"resource", "risk_class"})
"""Fields of a request that get a default where it omits them; see `with_defaults`."""

_Path = str | tuple[Any, str | int]
"""Where a value is: a name, or a path and the member or index in it."""


class Operation(msgspec.Struct, frozen=True, eq=False):
    """A validated operation. `params` is normalised: an amount is `{"amount_minor": int, "currency": str}`.

    `evidence` is the request's evidence context as it came, or None. It is not part of canonical form, digest or
    equality, so the same operation may be asked about again with other evidence.
    """

    idempotency_key: str
    agent_id: str
    action: str
    params: Mapping[str, Any]
    resource: str
    risk_class: str
    canonical: str
    digest: str
    evidence: Mapping[str, Any] | None = None

    def __eq__(self, other: object) -> bool:
        """Whether it is the same operation under the same key."""
        if not isinstance(other, Operation):
            return NotImplemented
        # The canonical form covers all other fields.
        return self.idempotency_key == other.idempotency_key and self.canonical == other.canonical

    __hash__ = None  # type: ignore[assignment]

    @property
    def amount(self) -> Money | None:
        """The operation's money, if it has any."""
        found = self.params.get("amount")
        return Money(found["amount_minor"], found["currency"]) if found else None

    def param(self, name: str) -> str | None:
        """Return the param of that name if it is text (an identifier), else None."""
        found = self.params.get(name)
        return found if isinstance(found, str) else None

    def facts(self) -> dict[str, Any]:
        """Return the fields that a decision may read; `evidence_context` only where the request carries one."""
        facts = {
            "params": self.params, "action": self.action, "agent_id": self.agent_id,
            "resource": self.resource, "risk_class": self.risk_class,
        }  # fmt: skip
        if self.evidence:
            facts["evidence_context"] = self.evidence
        return facts


def build_operation(
    *,
    idempotency_key: str,
    agent_id: str,
    action: str,
    params: Mapping[str, Any],
    resource: str | None = None,
    risk_class: str | None = None,
    evidence: Mapping[str, Any] | None = None,
) -> Operation:
    """Normalise, apply defaults and compute the digest. Raises `InvalidInput` naming the param and the rule it breaks."""
    normalised = _normal_params(params)
    resource, risk_class = _defaults(action, resource, risk_class)
    canonical = canonical_json(
        {"action": action, "agent_id": agent_id, "params": normalised, "resource": resource, "risk_class": risk_class}
    )
    return Operation(
        idempotency_key, agent_id, action, normalised, resource, risk_class, canonical, sha256_hex(canonical), evidence
    )


def name_in_policy(action: str, names: Container[str]) -> str | None:
    """Return the one of a policy's `names` that covers an action: the action itself, else the longest pattern
    ("data.*"), else None.

    The agent chooses the action's text, but this name comes from the policy: it is safe to publish and to use as a
    label.
    """
    # An action that literally ends in "*" must not pass for the pattern of that name.
    if action in names and not action.endswith("*"):
        return action
    prefix = action
    while "." in prefix:
        prefix = prefix.rpartition(".")[0]
        if (pattern := f"{prefix}.*") in names:
            return pattern
    return None


def with_defaults(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the request with its missing defaults: the action as `resource`, "standard" as `risk_class`."""
    resource, risk_class = _defaults(request.get("action"), request.get("resource"), request.get("risk_class"))
    return {**request, "resource": resource, "risk_class": risk_class}


def _defaults(action: Any, resource: Any, risk_class: Any) -> tuple[Any, Any]:
    return resource or action, risk_class or "standard"


def request_template(operation: Operation) -> str:
    """Return the canonical form as a template for PostgreSQL's `format`: "%1$s" is the params' place, "%2$s" the resource's."""
    return _request_template(operation.action, operation.agent_id, operation.risk_class)[0]


def params_text(operation: Operation) -> str | None:
    """Return the params' canonical text, which fills the template with the resource; None for a resource that JSON would escape."""
    _, begins, ends = _request_template(operation.action, operation.agent_id, operation.risk_class)
    canonical, rest = operation.canonical, f',"resource":"{operation.resource}"{ends}'
    return canonical[begins : -len(rest)] if canonical.endswith(rest) else None


@lru_cache(maxsize=4096)
def _request_template(action: str, agent_id: str, risk_class: str) -> tuple[str, int, str]:
    """Return (the template, the offset of the params in the canonical form, the text after the resource)."""
    begins = canonical_json({"action": action, "agent_id": agent_id})[:-1] + ',"params":'
    ends = f',"risk_class":{canonical_json(risk_class)}}}'
    return f'{plain_format(begins)}%1$s,"resource":"%2$s"{plain_format(ends)}', len(begins), ends


def plain_format(text: str) -> str:
    """Escape text for a template of PostgreSQL's `format`, which then reproduces it unchanged."""
    return text.replace("%", "%%")


def first_difference(recorded: str, arriving: str) -> str:
    """Return the path of the first field in which two canonical operations differ, e.g. "params.amount"."""
    return _difference(json.loads(recorded), json.loads(arriving), "") or "operation"


def _difference(one: Any, other: Any, path: str) -> str | None:
    if isinstance(one, dict) and isinstance(other, dict) and not {"amount_minor"} & (one.keys() | other.keys()):
        for key in sorted(one.keys() | other.keys()):
            # As text, because in Python true is equal to 1.
            if canonical_json(one.get(key)) != canonical_json(other.get(key)):
                return _difference(one.get(key), other.get(key), f"{path}.{key}" if path else key)
        return None
    return path


def _normal_params(params: Mapping[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in params.items() if value is not None}
    for key, value in rest.items():
        if key in IDENTIFIER_PARAMS and not is_identifier(value, MAX_IDENTIFIER):
            check_identifier(value, f"params.{key}", MAX_IDENTIFIER)
    normal: dict[str, Any] = {}
    amount = rest.pop("amount", None)
    if amount is not None:
        currency = rest.pop("currency", None) if not isinstance(amount, _MAPPINGS) else None
        money = _amount(amount, currency)
        if rest.get("currency", money.currency) != money.currency:
            raise InvalidInput.of("params.currency", "contradicts params.amount.currency")
        normal["amount"] = {"amount_minor": money.amount_minor, "currency": money.currency}
    for key, value in rest.items():
        # An identifier was checked above, and its name is one of a closed set: neither needs further checks.
        normal[key] = value if key in IDENTIFIER_PARAMS else _normal(value, ("params", _key(key, "params")))
    if "risk" in normal:
        _check_risk(normal["risk"])
    return normal


def _amount(amount: Any, currency: Any) -> Money:
    if isinstance(amount, _MAPPINGS):
        extra = sorted(amount.keys() - {"value", "currency"})
        if extra:
            raise InvalidInput.of(f"params.amount.{extra[0]}", "is not a field of an amount")
        return parse_money(amount.get("value"), amount.get("currency"), field="params.amount")
    if currency is None:
        raise InvalidInput.of("params.currency", "is required next to amount")
    return parse_money(amount, currency, field="params.amount")


def _normal(value: Any, path: _Path) -> Any:
    if isinstance(value, str):
        return check_text(value, path)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if abs(value) > MAX_SAFE_INTEGER:
            raise InvalidInput.of(_written(path), "must be within ±(2^53−1); write larger numbers as text")
        return value
    if isinstance(value, _MAPPINGS):
        return {_key(k, path): _normal(v, (path, k)) for k, v in value.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [_normal(item, (path, index)) for index, item in enumerate(value)]
    if isinstance(value, (Decimal, float)):
        raise InvalidInput.of(_written(path), "must be an integer; write fractions as text, so that they stay exact")
    raise InvalidInput.of(_written(path), "is not a JSON value")


def _key(key: str, path: _Path) -> str:
    if not key or len(key) > MAX_KEY or not key.isascii() or not key.isprintable():
        raise InvalidInput.of(_written(path), f"field names must have 1 to {MAX_KEY} printable ASCII characters")
    return key


def _written(path: _Path) -> str:
    """Format a path for people: "params.items[2].name". Done only for an error message."""
    if isinstance(path, str):
        return path
    within, step = path
    return f"{_written(within)}[{step}]" if isinstance(step, int) else f"{_written(within)}.{step}"


def _check_risk(risk: Any) -> None:
    if not isinstance(risk, _MAPPINGS):
        raise InvalidInput.of("params.risk", "must be an object")
    for flag in ("duplicate_refund", "stale_window", "suspicious_reason"):
        if flag in risk and not isinstance(risk[flag], bool):
            raise InvalidInput.of(f"params.risk.{flag}", "must be true or false")
    attempts = risk.get("customer_attempts_24h")
    if attempts is not None and (isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 0):
        raise InvalidInput.of("params.risk.customer_attempts_24h", "must be an integer, 0 or more")


def is_identifier(value: Any, most: int) -> bool:
    """Whether `value` is an identifier of at most `most` characters (`docs/CONTRACT.md` §1)."""
    return isinstance(value, str) and 0 < len(value) <= most and IDENTIFIER.fullmatch(value) is not None


def check_identifier(value: Any, path: str, most: int) -> str:
    """Return `value` if it is an identifier of at most `most` characters; else raise `InvalidInput`."""
    if not is_identifier(value, most):
        raise InvalidInput.of(path, f"must be 1 to {most} of the characters A-Z a-z 0-9 . _ : / @ -")
    return str(value)


def check_text(value: str, path: _Path, most: int = MAX_TEXT) -> str:
    """Return `value` if it has at most `most` characters and a person would see all of it; else raise `InvalidInput`."""
    if len(value) > most:
        raise InvalidInput.of(_written(path), f"must have at most {most} characters")
    # Printable ASCII, which almost every text is, holds no unsafe character, so the slower search is skipped.
    if not (value.isascii() and value.isprintable()) and UNSAFE_TEXT.search(value):
        raise InvalidInput.of(_written(path), "must not hold control, zero-width or direction-changing characters")
    return value

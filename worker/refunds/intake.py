"""Reads refund requests from JSON: strict, line by line; every refusal names the field and the rule it breaks.

One object, one array, or JSON lines; rows as in `docs/CONTRACT.md` §6. Money never passes a binary float. An unknown channel,
scenario or mode is a misspelling and is refused; a known one without a route goes to a person, as the route table says.
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from json import JSONDecodeError
from typing import Any

from sentinel.core.errors import InvalidInput
from sentinel.core.moments import moment_of
from sentinel.core.money import parse_money
from sentinel.core.operation import check_identifier
from sentinel.core.proof import REDACTION
from sentinel.core.strict_json import STRICT, strict_json
from sentinel.platform.http.bodies import check_depth, check_unicode
from sentinel.policy.errors import nearest
from worker.refunds.risk_facts import MAX_COUNT, RISK_FACTS
from worker.refunds.rows import DEFAULT_AGENT, NewRow
from worker.refunds.workflow.routes import CHANNELS, MODES, SCENARIOS

FIELDS = frozenset(
    {"ledger_entry_id", "refund_id", "agent_id", "action", "status", "amount", "idempotency_key", "channel", "scenario",
     "account_ref", "source", "order_ref", "requested_at", "reason", "risk", "redaction_status", "mode", "language", "contact"}
)  # fmt: skip
_MODE = re.compile(r"[a-z_]{1,40}", re.ASCII)
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8}){0,2}", re.ASCII)
_ROW = re.compile(r"[^\s,]")
_CONTACT = re.compile(r"[!-~]{3,320}", re.ASCII)
_MAX_ENTRY_ID, _MAX_REFUND_ID, _MAX_NAME, _MAX_REASON = 120, 128, 64, 2000


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a row was not entered. `line` counts from 1: the line of a file that is read by lines or cannot be read, else the place in the array."""

    line: int
    field: str
    rule: str
    ledger_entry_id: str | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """A well-formed row and its line, counted as in `Refusal`."""

    line: int
    row: NewRow


def rows_of(objects: Iterable[tuple[int, Any]], agent_id: str = DEFAULT_AGENT) -> Iterator[Accepted | Refusal]:
    """Parse (line, object or Refusal) pairs into rows, good or refused, in order; `agent_id` is the agent of rows that
    name none. A second row of the same id is refused.
    """
    seen: dict[str, int] = {}
    for line, found in objects:
        if isinstance(found, Refusal):
            yield found
            continue
        try:
            row = parse_row(found, agent_id)
        except InvalidInput as error:
            (field, rule), *_ = error.errors.items()
            yield Refusal(line, field, rule, _name(found))
            continue
        if row.ledger_entry_id in seen:
            rule = f"is a duplicate of line {seen[row.ledger_entry_id]}"
            yield Refusal(line, "ledger_entry_id", rule, row.ledger_entry_id)
            continue
        seen[row.ledger_entry_id] = line
        yield Accepted(line, row)


def parse_row(found: Any, agent_id: str = DEFAULT_AGENT) -> NewRow:
    """Parse one JSON object into a `NewRow`; `agent_id` is its agent if it names none.

    Raises `InvalidInput` naming the first bad field and the rule it breaks.
    """
    if not isinstance(found, dict):
        raise InvalidInput.of("row", "must be an object")
    for field in sorted(found.keys() - FIELDS):
        raise InvalidInput.of(field[:60], "is not a field of a ledger row")
    given = {name: value for name, value in found.items() if value is not None}
    entry_id = _identifier(given, "ledger_entry_id", _MAX_ENTRY_ID)
    _constant(given, "status", "NEW")
    _constant(given, "idempotency_key", f"refund:{entry_id}")
    _constant(given, "redaction_status", REDACTION)
    amount = _amount(given)
    return NewRow(
        ledger_entry_id=entry_id,
        refund_id=_identifier(given, "refund_id", _MAX_REFUND_ID),
        amount_minor=amount[0],
        currency=amount[1],
        agent_id=_identifier(given, "agent_id", _MAX_NAME, agent_id),
        action=_identifier(given, "action", _MAX_NAME, "refund.create"),
        channel=known_name(_identifier(given, "channel", _MAX_NAME, "retail"), "channel", CHANNELS),
        scenario=known_name(_identifier(given, "scenario", _MAX_NAME, "standard"), "scenario", SCENARIOS),
        account_ref=_maybe_identifier(given, "account_ref"),
        order_ref=_maybe_identifier(given, "order_ref"),
        source=_source(given),
        requested_at=moment_of(given["requested_at"], "requested_at") if "requested_at" in given else None,
        reason=_reason(given),
        risk=_risk(given.get("risk", {})),
        mode=_mode(given),
        language=_form(given, "language", _LANGUAGE, "a language tag like en or de-AT"),
        contact=_form(given, "contact", _CONTACT, "an address of at most 320 printable characters without spaces"),
    )


def known_name(name: str, field: str, known: Collection[str]) -> str:
    """Return `name` if it is known. Raises `InvalidInput` naming the nearest known one."""
    if name in known:
        return name
    raise InvalidInput.of(field, f'unknown {field} "{name}"; {nearest(name, known) or "known: " + ", ".join(known)}')


def read_objects(text: str) -> Iterator[tuple[int, Any]]:
    """Yield (line, value or Refusal) of a file: its one JSON value, the elements of its one array, or a value per line.

    A single value over several lines that is not JSON gives one Refusal, where it breaks off. A value with half a
    surrogate pair, which JSON can write and the database cannot store, gives a Refusal that names the field.
    """
    for line, found in _read_values(text):
        try:
            check_unicode(found, whole="row")
        except InvalidInput as error:
            (field, rule), *_ = error.errors.items()
            yield line, Refusal(line, field, rule, _name(found))
        else:
            yield line, found


def _read_values(text: str) -> Iterator[tuple[int, Any]]:
    try:
        whole = _decode(text)
    except ValueError as fault:
        if _is_one_value(text, fault):
            refusal = _no_value(text, fault)
            yield refusal.line, refusal
            return
        whole = None
    if isinstance(whole, list):
        yield from enumerate(whole, 1)
    elif whole is not None:
        yield 1, whole
    else:
        for number, line in enumerate(lines_of(text), 1):
            if line.strip():
                yield number, _line(number, line)


def _is_one_value(text: str, fault: ValueError) -> bool:
    """Whether text that is not JSON was meant as one value over several lines, and not as one value per line."""
    lines = (line for line in lines_of(text) if line.strip())
    first, second = next(lines, ""), next(lines, None)
    alone = _fault(first)
    if second is None or alone is None:
        return False
    if first.lstrip().startswith("["):
        return True
    # True if the first line begins a value that goes on in the next, and no line is a value by itself.
    goes_on = (
        "\n" in text[: fault.pos].strip() if isinstance(fault, JSONDecodeError) else isinstance(alone, JSONDecodeError)
    )
    return goes_on and all(_fault(line) is not None for line in (second, *lines))


def _fault(line: str) -> ValueError | None:
    try:
        _decode(line)
    except ValueError as error:
        return error
    return None


def _no_value(text: str, fault: ValueError) -> Refusal:
    """Return one refusal of the whole file: where it stops being JSON, or at the row with a name given twice or an invalid number."""
    at = fault.pos if isinstance(fault, JSONDecodeError) else _row_of_fault(text)
    column = at - text.rfind("\n", 0, at)
    return Refusal(text.count("\n", 0, at) + 1, "row", f"{_no_json(fault, column)}; none of this file was read")


def _row_of_fault(text: str) -> int:
    start = len(text) - len(text.lstrip())
    if text[start] != "[":
        return start
    end = start + 1
    while (begin := _ROW.search(text, end)) is not None:
        try:
            _, end = STRICT.raw_decode(text, begin.start())
            check_depth(f"[{text[begin.start() : end]}]")
        except (ValueError, InvalidInput):
            return begin.start()
    return end


def lines_of(text: str) -> io.StringIO:
    """Iterate over the lines of a file, with their ends. `str.splitlines` also splits at characters that may occur within a text."""
    return io.StringIO(text, newline="")


def _line(number: int, line: str) -> Any:
    try:
        return _decode(line)
    except ValueError as error:
        return Refusal(number, "row", _no_json(error, error.colno if isinstance(error, JSONDecodeError) else None))


def _no_json(fault: ValueError, column: int | None) -> str:
    said = fault.msg if isinstance(fault, JSONDecodeError) else str(fault).splitlines()[0][:100]
    return f"is not JSON: {said}" + (f": column {column}" if column is not None else "")


def _decode(text: str) -> Any:
    """Strict JSON: no duplicate keys, no NaN, fractions as `Decimal`. Raises `ValueError`."""
    try:
        check_depth(text)
    except InvalidInput as error:
        raise ValueError(error.detail) from None
    return strict_json(text)


def _name(found: Any) -> str | None:
    name = found.get("ledger_entry_id") if isinstance(found, dict) else None
    return (
        name if isinstance(name, str) and name.isascii() and name.isprintable() and len(name) <= _MAX_ENTRY_ID else None
    )


def _identifier(given: dict[str, Any], name: str, most: int, default: str | None = None) -> str:
    if name not in given:
        if default is None:
            raise InvalidInput.of(name, "is required")
        return default
    return check_identifier(given[name], name, most)


def _maybe_identifier(given: dict[str, Any], name: str) -> str | None:
    return check_identifier(given[name], name, _MAX_REFUND_ID) if name in given else None


def _source(given: dict[str, Any]) -> str:
    """The shop whose order it is; "" without an order."""
    if "source" in given and "order_ref" not in given:
        raise InvalidInput.of("source", "must be given only with order_ref, whose source it is")
    return _identifier(given, "source", _MAX_NAME, "")


def _constant(given: dict[str, Any], name: str, wanted: str) -> None:
    if name in given and given[name] != wanted:
        raise InvalidInput.of(name, f'must be "{wanted}"')


def _amount(given: dict[str, Any]) -> tuple[int, str]:
    amount = given.get("amount")
    if not isinstance(amount, dict):
        raise InvalidInput.of("amount", "must be {value, currency}")
    for extra in sorted(amount.keys() - {"value", "currency"}):
        raise InvalidInput.of(f"amount.{extra[:60]}", "is not a field of an amount")
    money = parse_money(amount.get("value"), amount.get("currency"))
    return money.amount_minor, money.currency


def _reason(given: dict[str, Any]) -> str | None:
    """Return the free text. Its content is checked later; here only text that the database cannot store is refused."""
    reason = given.get("reason")
    if reason is None:
        return None
    if not isinstance(reason, str) or len(reason) > _MAX_REASON:
        raise InvalidInput.of("reason", f"must be text of at most {_MAX_REASON} characters")
    if "\x00" in reason or any("\ud800" <= character <= "\udfff" for character in reason):
        raise InvalidInput.of("reason", "must not contain NUL or an unpaired surrogate")
    return reason


def _form(given: dict[str, Any], name: str, form: re.Pattern[str], means: str) -> str | None:
    found = given.get(name)
    if found is not None and not (isinstance(found, str) and form.fullmatch(found)):
        raise InvalidInput.of(name, f"must be {means}")
    return found


def _mode(given: dict[str, Any]) -> str | None:
    mode = _form(given, "mode", _MODE, "a word of a-z and _, at most 40 characters")
    return None if mode is None else known_name(mode, "mode", MODES)


def _risk(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise InvalidInput.of("risk", "must be an object")
    for extra in sorted(found.keys() - {fact.name for fact in RISK_FACTS}):
        raise InvalidInput.of(f"risk.{extra[:60]}", "is not a risk fact")
    known = {name: value for name, value in found.items() if value is not None}
    for fact in RISK_FACTS:
        value = known.get(fact.name, fact.kind())
        if fact.kind is bool and not isinstance(value, bool):
            raise InvalidInput.of(f"risk.{fact.name}", "must be true or false")
        if fact.kind is int and (type(value) is not int or not 0 <= value <= MAX_COUNT):
            raise InvalidInput.of(f"risk.{fact.name}", f"must be an integer from 0 to {MAX_COUNT}")
    return known

"""Maps a source's payload to an `Order` by the source's field map: dotted paths; the first that holds a value is taken.

A value that is missing, null or empty is unknown (None), never zero. A value of another type is `InvalidInput` naming the
path: a wrong map must not look like an order about which nothing is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from sentinel.core.errors import InvalidInput
from sentinel.core.money import DIGITS, Money, parse_money
from sentinel.core.operation import MAX_IDENTIFIER, is_identifier
from worker.orders.order import Item, Order

Path = tuple[str, ...]
FieldMap = Mapping[str, tuple[Path, ...]]
"""Field → the paths to try; a number in a path is a place in a list."""

FIELDS = (
    "order_id", "amount", "currency", "email", "account_ref", "account_age_days", "account_created_at", "billing_country",
    "shipping_country", "shipping_speed", "items", "item_sku", "item_title", "item_quantity", "failed_payments", "placed_at",
)  # fmt: skip
"""What can be mapped. `item_…` are paths inside one of `items`; `amount` may hold value and currency together."""
REQUIRED = ("amount",)
DEFAULTS: FieldMap = {"order_id": (("order", "id"),)}

MAX_TEXT, MAX_ITEMS, MAX_COUNT = 500, 1000, 10**6
# It becomes part of addresses, resources and keys: it begins with a letter or a digit, and no part of it is "", "." or "..".
_ORDER_ID = re.compile(r"(?=.{1,100}$)[A-Za-z0-9][A-Za-z0-9._:@-]*(/[A-Za-z0-9_:@-][A-Za-z0-9._:@-]*)*", re.ASCII)
_ZERO = re.compile(r"0(\.0{1,6})?", re.ASCII)
_COUNT = re.compile(r"0|[1-9][0-9]{0,6}", re.ASCII)


def to_order(source: str, fields: FieldMap, payload: Mapping[str, Any]) -> Order:
    """The order of strictly read JSON. Raises `InvalidInput` for a missing order id or amount, and for wrong types."""
    read = _Reader(fields, payload)
    return Order(
        source=source,
        order_id=order_id(fields, payload),
        amount=read.money(),
        email=read.text("email"),
        account_ref=read.reference("account_ref"),
        account_age_days=read.count("account_age_days"),
        account_created_at=read.time("account_created_at"),
        billing_country=_upper(read.text("billing_country")),
        shipping_country=_upper(read.text("shipping_country")),
        shipping_speed=read.text("shipping_speed"),
        items=tuple(_item(fields, where, line) for where, line in read.lines()),
        failed_payments=read.count("failed_payments"),
        placed_at=read.time("placed_at"),
        raw=payload,
    )


def order_id(fields: FieldMap, payload: Mapping[str, Any]) -> str:
    """The order's id, text or a whole number. Raises `InvalidInput` naming the path that should hold it."""
    where, value = _Reader(fields, payload).find("order_id")
    if value is None:
        raise InvalidInput.of(where, "must be the order's id; it is missing")
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or not _ORDER_ID.fullmatch(text):
        raise InvalidInput.of(where, "must be a whole number or an identifier of at most 100 characters")
    return text


def read_paths(fields: FieldMap, payload: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(fact, path, value) of everything that the map finds in a payload, as it stands there."""
    read = _Reader(fields, payload)
    for name in FIELDS:
        where, value = read.find(name)
        if value is None or name.startswith("item_"):
            continue
        if name == "items" and isinstance(value, list):
            for place, line in enumerate(value):
                inside = _Reader(fields, line, f"{where}.{place}.") if isinstance(line, Mapping) else None
                found = [(part, inside.find(part)) for part in FIELDS if part.startswith("item_")] if inside else []
                yield from ((part, at, one) for part, (at, one) in found if one is not None)
        elif name == "amount" and isinstance(value, Mapping):
            yield from ((name, f"{where}.{part}", value[part]) for part in ("value", "currency") if part in value)
        else:
            yield name, where, value


def _item(fields: FieldMap, where: str, line: Any) -> Item:
    if not isinstance(line, Mapping):
        raise InvalidInput.of(where, "must be an object")
    read = _Reader(fields, line, where + ".")
    return Item(read.text("item_sku"), read.text("item_title"), read.count("item_quantity"))


class _Reader:
    """Typed access to one object; `prefix` is where it stands, for messages."""

    def __init__(self, fields: FieldMap, payload: Mapping[str, Any], prefix: str = "") -> None:
        self._fields, self._payload, self._prefix = fields, payload, prefix

    def find(self, field: str) -> tuple[str, Any]:
        """Where it was found, or would have been, and the value; None where there is nothing."""
        paths = self._fields.get(field, DEFAULTS.get(field, ()))
        for path in paths:
            value = at_path(self._payload, path)
            if value is not None and value != "":
                return self._prefix + ".".join(path), value
        return self._prefix + (".".join(paths[0]) if paths else field), None

    def text(self, field: str) -> str | None:
        where, value = self.find(field)
        if value is None:
            return None
        if not isinstance(value, str) or len(value) > MAX_TEXT or not _is_text(value):
            raise InvalidInput.of(where, f"must be text of at most {MAX_TEXT} characters")
        return value.strip() or None

    def reference(self, field: str) -> str | None:
        where, value = self.find(field)
        text = str(value) if type(value) is int else value
        if text is not None and not is_identifier(text, MAX_IDENTIFIER):
            raise InvalidInput.of(where, "must be a whole number or an identifier of at most 200 characters")
        return text

    def count(self, field: str) -> int | None:
        where, value = self.find(field)
        if isinstance(value, str) and _COUNT.fullmatch(value):
            value = int(value)
        if value is not None and (type(value) is not int or not 0 <= value <= MAX_COUNT):
            raise InvalidInput.of(where, f"must be a whole number from 0 to {MAX_COUNT}")
        return value

    def time(self, field: str) -> datetime | None:
        where, text = self.find(field)[0], self.text(field)
        if text is None:
            return None
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            found = None
        if found is None or found.tzinfo is None:
            raise InvalidInput.of(where, "must be an RFC 3339 time with its zone")
        return found

    def money(self) -> Money:
        where, value = self.find("amount")
        currency_at, currency = self.find("currency")
        if isinstance(value, Mapping):
            currency_at, currency = f"{where}.currency", value.get("currency", currency)
            where, value = f"{where}.value", value.get("value")
        if value is None:
            raise InvalidInput.of(where, "must be the order's amount; it is missing")
        if not isinstance(currency, str) or currency not in DIGITS:
            raise InvalidInput.of(currency_at, "must be an ISO 4217 code in capital letters")
        exact = _exact(value, DIGITS[currency])
        # Discounted to nothing, or a gift: an order all the same, though no money that the authority could decide about.
        if _is_zero(exact):
            return Money(0, currency)
        try:
            return parse_money(exact, currency)
        except InvalidInput as error:
            raise InvalidInput.of(where, next(iter(error.errors.values()))) from None

    def lines(self) -> list[tuple[str, Any]]:
        where, value = self.find("items")
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            raise InvalidInput.of(where, f"must be a list of at most {MAX_ITEMS}")
        return [(f"{where}.{place}", line) for place, line in enumerate(value)]


def at_path(value: Any, path: Path) -> Any:
    """What stands at a path; None where nothing does."""
    for key in path:
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def _exact(value: Any, digits: int) -> Any:
    """Without zeros beyond the currency's digits: "1000.00" yen are 1000 yen. Nothing else is changed."""
    text = format(value, "f") if isinstance(value, Decimal) else value
    if not isinstance(text, str) or "." not in text:
        return text
    whole, _, fraction = text.partition(".")
    if not fraction.isdecimal() or fraction[digits:].strip("0"):
        return text
    return f"{whole}.{fraction[:digits]}".rstrip(".")


def _is_zero(value: Any) -> bool:
    return (type(value) is int and value == 0) or (isinstance(value, str) and _ZERO.fullmatch(value) is not None)


def _upper(text: str | None) -> str | None:
    return None if text is None else text.upper()


def _is_text(text: str) -> bool:
    """Not half a surrogate pair, which no database and no other program takes; nor NUL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text

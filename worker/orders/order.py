"""The values of order review (order, facts, score, stored and claimed review), and mapping a payload to an order.

What a source did not send, or sent empty, is None ("unknown"), never zero: a rule that needs it says so instead of
guessing. A payload is mapped by the source's field map: each field has dotted paths, and the first that holds a value
is taken. A value of the wrong type raises `InvalidInput` naming the path: a wrong map must not look like an order with
unknown facts.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal

from msgspec import Struct

from sentinel.core.errors import InvalidInput
from sentinel.core.moments import moment_of
from sentinel.core.money import CURRENCY_RULE, DIGITS, Money, parse_money
from sentinel.core.operation import MAX_IDENTIFIER, is_identifier

# The values.

ACTION, AGENT_ID = "order.fulfill", "order-review"
MAX_SIGNAL_CHARS = 500
"""The maximum length of one signal's detail, in characters."""


_MAILBOX = re.compile(r"[^\s<>]+@(?P<domain>[\w-]{1,63}(?:\.[\w-]{1,63})*)\.?")


def mail_domain(email: str | None) -> str | None:
    """The domain of one plain mail address, which may stand in angle brackets behind a name; None for any other text."""
    written = (email or "").strip()
    if written.endswith(">"):
        written = written[:-1].rpartition("<")[2].strip()
    found = _MAILBOX.fullmatch(written)
    return found and found["domain"]


class Band(StrEnum):
    """The risk that a score found; `unknown` goes to a person."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    UNKNOWN = "unknown"


RANK = {Band.LOW: 0, Band.MEDIUM: 1, Band.UNKNOWN: 1, Band.HIGH: 2}
"""How strict a band is; an unknown one goes to a person like a medium one."""


class Lane(StrEnum):
    """How an order is reviewed: the authority's decision on `order.fulfill`; ALLOW is low, APPROVAL_REQUIRED medium, DENY high."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class ReviewStatus(StrEnum):
    """The status of a review; `lanes.py` has the table of transitions."""

    RECEIVED = "RECEIVED"
    SCORED = "SCORED"
    DECIDED = "DECIDED"
    STARTED = "STARTED"
    QUEUED = "QUEUED"
    FULFILLED = "FULFILLED"
    HELD = "HELD"
    REFUND_FILED = "REFUND_FILED"
    SHOP_REFUSED = "SHOP_REFUSED"
    """The shop refused to fulfil it: a person retries it, refunds it or has it held."""
    REFUND_REFUSED = "REFUND_REFUSED"
    """The refund that was filed was denied or failed: a person retries it or has the order held."""


@dataclass(frozen=True, slots=True)
class Item:
    """One line of an order."""

    sku: str | None
    title: str | None
    quantity: int | None


@dataclass(frozen=True, slots=True)
class Order:
    """One order as its source's field map read it; None is unknown."""

    source: str
    order_id: str
    amount: Money
    email: str | None = None
    account_ref: str | None = None
    account_age_days: int | None = None
    """As sent, until `as_received` bounds it by when the account was created and when the order was placed."""
    account_created_at: datetime | None = None
    billing_country: str | None = None
    shipping_country: str | None = None
    shipping_speed: str | None = None
    items: tuple[Item, ...] = ()
    failed_payments: int | None = None
    placed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Signal:
    """One risk signal: a stable code for the authority, a detail (≤ 500 characters) for people."""

    code: str
    detail: str


ModelAnswer = Literal["not_asked", "agreed", "raised", "fell_back"]


@dataclass(frozen=True, slots=True)
class Score:
    """The band, the signals that explain it, the model's part in it, and how long scoring took."""

    band: Band
    signals: tuple[Signal, ...] = ()
    model: ModelAnswer = "not_asked"
    latency_ms: int = 0


@dataclass(frozen=True, slots=True)
class KnownAccount:
    """The number and sum of an account's orders in the last 24 hours, the order that is scored not counted.

    Both are None where the order names no account. `amount_24h` is in the order's currency.
    """

    velocity_24h: int | None = None
    amount_24h: Money | None = None


def with_orders_beside(known: KnownAccount, order: Order, orders: Sequence[Order]) -> KnownAccount:
    """Add to `known` the orders of the same account among `orders`, which arrived in the same set; `order` itself is not counted."""
    account = (order.source, order.account_ref)
    others = [one for one in orders if (one.source, one.account_ref) == account and one is not order]
    if known.velocity_24h is None or not others:
        return known
    currency = order.amount.currency
    minor = sum(one.amount.amount_minor for one in others if one.amount.currency == currency)
    minor += known.amount_24h.amount_minor if known.amount_24h else 0
    return KnownAccount(known.velocity_24h + len(others), Money(minor, currency) if minor else None)


@dataclass(frozen=True, slots=True)
class Review:
    """One order's review as it is kept in `orders.reviews`; there is exactly one per tenant, source and order id, for ever."""

    review_id: uuid.UUID
    source: str
    order_id: str
    amount_minor: int
    currency: str
    status: ReviewStatus
    epoch: int
    account_ref: str | None = None
    lane: Lane | None = None
    band: Band | None = None
    signals: tuple[Signal, ...] = ()
    model: ModelAnswer = "not_asked"
    operation_id: uuid.UUID | None = None
    """The id of the authority's operation, which is sent to the shop as `Idempotency-Key`."""
    approval_id: str | None = None
    start_id: uuid.UUID | None = None
    decided_at: datetime | None = None

    @property
    def amount(self) -> Money:
        """The order's amount."""
        return Money(self.amount_minor, self.currency)


def order_key(source: str, order_id: str) -> str:
    """The authority's idempotency key, `order:{source}:{order_id}`: an order is fulfilled at most once, for ever."""
    return f"order:{source}:{order_id}"


def resource_of(source: str, order_id: str) -> str:
    """The authority's resource of an order."""
    return f"order/{source}/{order_id}"


_TIMES = ("placed_at", "account_created_at")
_PLAIN = (
    "email", "account_age_days", "billing_country", "shipping_country", "shipping_speed", "failed_payments",
)  # fmt: skip


def facts_of(order: Order) -> dict[str, Any]:
    """The order's facts as JSON, without id, amount and account, which have columns of their own. Unknown facts are left out."""
    found: dict[str, Any] = {name: getattr(order, name) for name in _PLAIN if getattr(order, name) is not None}
    for name in _TIMES:
        if (moment := getattr(order, name)) is not None:
            found[name] = moment.isoformat()
    if order.items:
        found["items"] = [[item.sku, item.title, item.quantity] for item in order.items]
    return found


def order_of(source: str, order_id: str, amount: Money, account_ref: str | None, facts: Mapping[str, Any]) -> Order:
    """Rebuild the order from its columns and the JSON of `facts_of`."""
    times: dict[str, Any] = {name: datetime.fromisoformat(facts[name]) if facts.get(name) else None for name in _TIMES}
    plain: dict[str, Any] = {name: facts.get(name) for name in _PLAIN}
    return Order(
        source=source, order_id=order_id, amount=amount, account_ref=account_ref,
        items=tuple(Item(*line) for line in facts.get("items", ())),
        **plain, **times,
    )  # fmt: skip


def as_received(order: Order, received_at: datetime) -> Order:
    """Set the account's age at the time of the order: the lower of the sent age and the age by its creation date.

    `received_at` (the database's clock) counts as the time of the order where the order names none, or one in the
    future.
    """
    if order.account_created_at is None:
        return order
    placed_at = min(order.placed_at or received_at, received_at)
    # The order itself may create the account, so the account can be slightly younger than the order: its age is then 0.
    made = max(0, (placed_at - order.account_created_at).days)
    told = order.account_age_days
    return replace(order, account_age_days=made if told is None else min(told, made))


def missing_facts(order: Order, always: Sequence[str]) -> tuple[str, ...]:
    """The names of the facts in `always` (those that its source always sends) that the order lacks."""
    return tuple(name for name in always if getattr(order, name) in (None, ()))


class ClaimedOrder(Struct, frozen=True, gc=False):
    """One claimed review, with the columns of `orders.work`. Every change of it names its `epoch`."""

    review_id: uuid.UUID
    source: str
    order_id: str
    amount_minor: int
    currency: str
    account_ref: str | None
    order_facts: Mapping[str, Any]
    status: str
    lane: str | None
    epoch: int
    attempts: int
    band: str | None
    signals: Sequence[Mapping[str, str]] | None
    model: str | None
    guard_params: Mapping[str, Any] | None
    operation_id: uuid.UUID | None
    decision_event_id: uuid.UUID | None
    decision: str | None
    reason_code: str | None
    approval_id: uuid.UUID | None
    start_id: uuid.UUID | None
    decided_at: datetime | None
    due_at: datetime | None
    resolution: str | None
    last_error: str | None
    tries: int | None
    """How many attempts of the fulfilment got no answer; None unless the review is STARTED."""
    seconds_since_try: float | None
    received_at: datetime
    """When its first delivery arrived, by the database's clock."""

    @property
    def amount(self) -> Money:
        """The order's amount."""
        return Money(self.amount_minor, self.currency)

    @property
    def order(self) -> Order:
        """The order, rebuilt from what is stored."""
        order = order_of(self.source, self.order_id, self.amount, self.account_ref, self.order_facts)
        return as_received(order, self.received_at)

    @property
    def review(self) -> Review:
        """The review as the shop and people see it."""
        return Review(
            review_id=self.review_id, source=self.source, order_id=self.order_id, amount_minor=self.amount_minor,
            currency=self.currency, status=ReviewStatus(self.status), epoch=self.epoch, account_ref=self.account_ref,
            lane=Lane(self.lane) if self.lane else None, band=Band(self.band) if self.band else None,
            signals=tuple(Signal(s["code"], s["detail"]) for s in self.signals or ()),
            model=self.model or "not_asked",  # type: ignore[arg-type]
            operation_id=self.operation_id, approval_id=str(self.approval_id) if self.approval_id else None,
            start_id=self.start_id, decided_at=self.decided_at,
        )  # fmt: skip

    @property
    def own_start_id(self) -> uuid.UUID:
        """The start id of its fulfilment: stored, or derived from the review id, so every process gets the same one."""
        return self.start_id or _start_id_of(self.review_id)


@lru_cache(1024)
def _start_id_of(review_id: uuid.UUID) -> uuid.UUID:
    return uuid.uuid5(review_id, "start")


# From a payload to an order.

Path = tuple[str, ...]
FieldMap = Mapping[str, tuple[Path, ...]]
"""Field → the paths to try in order; a number in a path is an index into a list."""

FIELDS = (
    "order_id", "amount", "currency", "email", "account_ref", "account_age_days", "account_created_at", "billing_country",
    "shipping_country", "shipping_speed", "items", "item_sku", "item_title", "item_quantity", "failed_payments", "placed_at",
)  # fmt: skip
"""The fields that a map may have. Paths of `item_…` are relative to one of `items`; `amount` may be an object of value and currency."""
REQUIRED = ("amount",)
DEFAULTS: FieldMap = {"order_id": (("order", "id"),)}

MAX_TEXT, MAX_ITEMS, MAX_COUNT = 500, 1000, 10**6
# An order id becomes part of URLs, resources and keys: it begins with a letter or a digit, and no part of it between
# slashes is "", "." or "..".
_ORDER_ID = re.compile(r"(?=.{1,100}$)[A-Za-z0-9][A-Za-z0-9._:@-]*(/[A-Za-z0-9_:@-][A-Za-z0-9._:@-]*)*", re.ASCII)
_ZERO = re.compile(r"0(\.0{1,6})?", re.ASCII)
_COUNT = re.compile(r"0|[1-9][0-9]{0,6}", re.ASCII)


def to_order(source: str, fields: FieldMap, payload: Mapping[str, Any]) -> Order:
    """Map a payload of strictly parsed JSON to an order.

    Raises `InvalidInput` for a missing order id or amount, and for wrong types.
    """
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
    """Yield (field, path, unparsed value) for everything that the map finds in a payload."""
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
    """Typed access to the mapped fields of one object; `prefix` is the object's own path, for error messages."""

    def __init__(self, fields: FieldMap, payload: Mapping[str, Any], prefix: str = "") -> None:
        self._fields, self._payload, self._prefix = fields, payload, prefix

    def find(self, field: str) -> tuple[str, Any]:
        """(path, value) of the first path that holds a value; (the first path to try, None) where none does."""
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
        if value is None:
            return None
        if (count := as_count(value)) is None:
            raise InvalidInput.of(where, f"must be a whole number from 0 to {MAX_COUNT}")
        return count

    def time(self, field: str) -> datetime | None:
        where, text = self.find(field)[0], self.text(field)
        return None if text is None else moment_of(text, where)

    def money(self) -> Money:
        where, value = self.find("amount")
        currency_at, currency = self.find("currency")
        if isinstance(value, Mapping):
            currency_at, currency = f"{where}.currency", value.get("currency", currency)
            where, value = f"{where}.value", value.get("value")
        if value is None:
            raise InvalidInput.of(where, "must be the order's amount; it is missing")
        if not isinstance(currency, str) or currency not in DIGITS:
            raise InvalidInput.of(currency_at, CURRENCY_RULE)
        exact = _exact(value, DIGITS[currency])
        # A gift or a full discount is a valid order; `parse_money` refuses zero, as the authority takes no such amount.
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


def as_count(value: Any) -> int | None:
    """A whole number from 0 to `MAX_COUNT`, which may be written as text; None for any other value."""
    if isinstance(value, str) and _COUNT.fullmatch(value):
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None


def at_path(value: Any, path: Path) -> Any:
    """The value at a path; None where there is none."""
    for key in path:
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def _exact(value: Any, digits: int) -> Any:
    """Drop zeros beyond the currency's digits ("1000.00" yen become "1000"); any other value is returned unchanged."""
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
    """Whether the text has no lone surrogate, which cannot be encoded as UTF-8, and no NUL, which PostgreSQL cannot store."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text

"""The inputs of a labelled case: row, order, flags against it, the customer's answer and the account's earlier refunds."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.core.errors import InvalidInput
from sentinel.core.money import DIGITS, parse_money
from sentinel.policy.errors import SourcePosition
from sentinel.policy.source import Listing, Node, Scalar, Source, plain
from worker.images import KINDS
from worker.refunds.workflow.routes import CHANNELS, MODES, SCENARIOS

SAME = "same"
"""Written instead of an amount, it means the requested amount."""

FLAGS = ("open_complaint", "delayed_shipment", "blacklisted", "refunded_before", "other_account", "duplicate")
CARDS = ("confirm", "decline", "silent", "late")
BOARDS = ("on", "halted", "master_off", "switch_off", "outside_canary")
AGO = ("today", "yesterday", "this_month", "older", "long_ago")
"""How long ago something happened, by the narrowest kind of window in which it still counts: a calendar day, a rolling
day, a calendar month, a longer rolling window, none. A number of days would mean different windows on the first of a
month."""

FIELDS = ("channel", "scenario", "mode", "currency", "amount", "paid", "order", "order_currency", "shipping_fee", "item_paid",
          "price_drop", "delivered", "reason", "note", "echoes", "flags", "images", "card", "before", "board", "suspicious",
          "attempts")  # fmt: skip
_TERM = re.compile(r"([0-9]{1,6})([dhms])", re.ASCII)
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_LONGEST_SECONDS = 36_500 * 86_400
"""An order is not older than a century: no date can be computed for much longer times."""


@dataclass(frozen=True, slots=True)
class EarlierRefund:
    """A refund that the account got before; `ago` is one of `AGO`."""

    amount_minor: int
    ago: str


@dataclass(frozen=True, slots=True)
class CaseInputs:
    """The inputs of one case; amounts are in minor units.

    `order` is known, unknown (named, but not in the directory) or missing (not named). `delivered_seconds` is the time
    from delivery to request. `echoes` is the number of other accounts that sent the same words before. `images` are
    labels as a recogniser would give them. `attempts` is the row's own count of the customer's attempts in 24 hours.
    """

    channel: str
    scenario: str | None
    mode: str | None
    currency: str
    amount_minor: int
    paid_minor: int
    order: str
    order_currency: str
    shipping_fee_minor: int | None
    item_paid_minor: int | None
    price_now_minor: int | None
    delivered_seconds: int
    reason: str | None
    note: str | None
    echoes: int
    flags: frozenset[str]
    images: tuple[Mapping[str, Any], ...]
    card: str
    before: tuple[EarlierRefund, ...]
    board: str
    suspicious: bool
    attempts: int | None


def read_inputs(source: Source, place: SourcePosition, nodes: Mapping[str, Node]) -> CaseInputs:
    """Read a case's fields, with defaults for those that are missing. Raises `PolicyError` with its position."""
    read = _Reader(source, place, nodes)
    currency = read.one_of("currency", DIGITS, None)
    amount = read.money("amount", currency, 0)
    assert amount is not None
    drop = read.money("price_drop", currency, amount)
    paid = read.money("paid", currency, amount)
    assert paid is not None
    item = read.money("item_paid", currency, amount, default=paid if drop is not None else None)
    return CaseInputs(
        channel=read.one_of("channel", CHANNELS, None),
        scenario=read.one_of("scenario", SCENARIOS, "") or None, mode=read.one_of("mode", MODES, "") or None,
        currency=currency, amount_minor=amount, paid_minor=paid, order=read.one_of("order", ("known", "unknown", "missing"), "known"),
        order_currency=read.one_of("order_currency", DIGITS, currency),
        shipping_fee_minor=read.money("shipping_fee", currency, amount, default=None), item_paid_minor=item,
        price_now_minor=None if drop is None or item is None else max(item - drop, 0),
        delivered_seconds=read.seconds("delivered", 86_400), reason=read.words("reason"), note=read.words("note"),
        echoes=read.whole("echoes", 0) or 0, flags=read.flags(), images=read.images(currency, amount),
        card=read.one_of("card", CARDS, "confirm"), before=read.before(currency), board=read.one_of("board", BOARDS, "on"),
        suspicious=read.truth("suspicious"), attempts=read.whole("attempts", None),
    )  # fmt: skip


class _Reader:
    """Typed access to the fields of one case."""

    def __init__(self, source: Source, place: SourcePosition, nodes: Mapping[str, Node]) -> None:
        self._source, self._place, self._nodes = source, place, nodes

    def one_of(self, name: str, known: Collection[str], default: str | None) -> str:
        node = self._nodes.get(name)
        if node is None:
            if default is None:
                raise self._source.error(self._place, f'the case has no "{name}"')
            return default
        return self._source.one_of(node, name, known)

    def money(self, name: str, currency: str, same: int, default: int | None = None) -> int | None:
        node = self._nodes.get(name)
        if node is None:
            if name in ("amount", "paid"):
                raise self._source.error(self._place, f'the case has no "{name}"')
            return default
        return self._minor(node, name, currency, same)

    def _minor(self, node: Node, name: str, currency: str, same: int | None) -> int:
        text = self._source.text(node, name)
        if text == SAME and same:
            return same
        if text.strip("0.") == "" and name != "amount":
            return 0
        try:
            return parse_money(text, currency).amount_minor
        except InvalidInput as error:
            raise self._source.error(node.place, f"{name}: {error.detail}") from error

    def seconds(self, name: str, default: int) -> int:
        node = self._nodes.get(name)
        if node is None:
            return default
        text = self._source.text(node, name)
        terms = [_TERM.fullmatch(term) for term in text.split("+")]
        if not all(terms):
            raise self._source.error(node.place, f'{name}: "{text}" is not a time such as 7d, 3h or 7d+1s')
        found = sum(int(term[1]) * _SECONDS[term[2]] for term in terms if term)
        if found > _LONGEST_SECONDS:
            raise self._source.error(node.place, f"{name}: {text} is more than a hundred years")
        return found

    def words(self, name: str) -> str | None:
        node = self._nodes.get(name)
        return None if node is None else self._source.text(node, name)

    def whole(self, name: str, default: int | None) -> int | None:
        node = self._nodes.get(name)
        return default if node is None else self._source.integer(node, name, least=0, most=20)

    def truth(self, name: str) -> bool:
        node = self._nodes.get(name)
        return False if node is None else self._source.boolean(node, name)

    def flags(self) -> frozenset[str]:
        node = self._nodes.get("flags")
        if node is None:
            return frozenset()
        items = node.items if isinstance(node, Listing) else self._source.listing(node, "flags")
        return frozenset(self._source.one_of(item, "a flag", FLAGS) for item in items)

    def images(self, currency: str, amount: int) -> tuple[Mapping[str, Any], ...]:
        node = self._nodes.get("images")
        if node is None:
            return ()
        items = node.items if isinstance(node, Listing) else self._source.listing(node, "images")
        return tuple(self._image(item, currency, amount) for item in items)

    def _image(self, node: Node, currency: str, amount: int) -> Mapping[str, Any]:
        """Read an image's label as in a file of labels, except that its amount is (minor units, currency)."""
        table = self._source.fields(node, "an image", known=("kind", "amount", "text"), required=("kind",))
        label: dict[str, Any] = {"kind": self._source.one_of(table.entries["kind"], "kind", (*KINDS, "none"))}
        if "amount" in table.entries:
            label["amount"] = (self._minor(table.entries["amount"], "an image: amount", currency, amount), currency)
        if "text" in table.entries:
            label["text"] = plain(self._source, table.entries["text"])
        return label

    def before(self, currency: str) -> tuple[EarlierRefund, ...]:
        node = self._nodes.get("before")
        if node is None:
            return ()
        return tuple(self._earlier(item, currency) for item in self._source.listing(node, "before"))

    def _earlier(self, node: Node, currency: str) -> EarlierRefund:
        table = self._source.fields(node, "before", known=("amount", "ago"), required=("amount", "ago"))
        entries = table.entries
        minor = self._minor(entries["amount"], "before: amount", currency, None)
        if minor == 0 or not isinstance(entries["amount"], Scalar):
            raise self._source.error(entries["amount"].place, "before: amount must be more than 0")
        return EarlierRefund(minor, self._source.one_of(entries["ago"], "before: ago", AGO))

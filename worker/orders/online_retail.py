"""Converts the Online Retail CSV to orders, and an order to the payload of one source. Pure functions.

Each invoice becomes an order with its own date and total; cancellations are skipped. Facts that the file does not have
(mail address, shipping country, age of the account) stay unknown.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import Any

from sentinel.core.money import Money, money_out
from worker.orders.order import DEFAULTS, FieldMap, Item, Order
from worker.refunds.online_retail import Imported, read_orders


def read_retail_orders(lines: Sequence[str], source: str) -> tuple[list[Order], Imported]:
    """(orders in the order of the file, the full result of reading it). Raises `WrongColumns`."""
    imported = read_orders(lines)
    details: dict[str, list[dict[str, str]]] = {}
    for cells in csv.DictReader(lines, strict=True):
        details.setdefault((cells["InvoiceNo"] or "").strip(), []).append(cells)
    orders = [
        Order(
            source=source, order_id=facts.order_ref, amount=Money(facts.paid_minor, facts.currency),
            account_ref=facts.account_ref, billing_country=details[facts.order_ref][0]["Country"].strip() or None,
            items=tuple(_item(cells) for cells in details[facts.order_ref]), placed_at=facts.ordered_at,
        )
        for facts in imported.orders
        # Skip invoices of free goods.
        if facts.paid_minor > 0
    ]  # fmt: skip
    return orders, imported


def _item(cells: Mapping[str, str]) -> Item:
    quantity = cells["Quantity"].strip()
    # A negative quantity is a correction: the quantity that was ordered is unknown.
    return Item(
        cells["StockCode"].strip(), cells["Description"].strip() or None, int(quantity) if quantity.isdigit() else None
    )


def payload_of(order: Order, fields: FieldMap) -> dict[str, Any]:
    """The payload as the source would send it: each known field at the first path of the source's map without list indexes."""
    body: dict[str, Any] = {}
    money = money_out(order.amount)
    known: dict[str, Any] = {
        "order_id": order.order_id, "email": order.email, "account_ref": order.account_ref,
        "account_age_days": order.account_age_days, "billing_country": order.billing_country,
        "shipping_country": order.shipping_country, "shipping_speed": order.shipping_speed,
        "failed_payments": order.failed_payments, "placed_at": order.placed_at and order.placed_at.isoformat(),
        "items": [_line(item, fields) for item in order.items] or None,
        "amount": str(money["value"]) if "currency" in fields else money, "currency": money["currency"],
    }  # fmt: skip
    for name, value in known.items():
        if value is not None:
            _put(body, fields.get(name) or DEFAULTS.get(name, ()), value)
    return body


def _line(item: Item, fields: FieldMap) -> dict[str, Any]:
    line: dict[str, Any] = {}
    for name, value in (("item_sku", item.sku), ("item_title", item.title), ("item_quantity", item.quantity)):
        if value is not None:
            _put(line, fields.get(name, ()), value)
    return line


def _put(body: dict[str, Any], paths: Sequence[Sequence[str]], value: Any) -> None:
    """Set a value at the first path without list indexes; a field that has only other paths is left out."""
    path = next((path for path in paths if not any(key.isdecimal() for key in path)), None)
    if path is None:
        return
    for key in path[:-1]:
        body = body.setdefault(key, {})
    body[path[-1]] = value

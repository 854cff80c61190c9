"""The Online Retail CSV → order facts and refund requests. Pure: text in, values out; the same text gives the same ids.

An invoice is an order: what it sums to was paid, by the customer, at its time. A cancellation (invoice number beginning
with C) is a refund request over the absolute total of its lines. Its order is the same customer's latest earlier invoice
that holds all its stock codes, where there is one.

What the import says about risk: a cancellation is booked once under its own number, has no free text, and was accepted
by the shop when it was booked; so the flags are handed in as false and the attempts as one. They matter only where the
ledger cannot know (no such order, no customer): for a known order, age and amount are taken from the order.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation

from sentinel.core.money import MAX_MINOR
from worker.refunds.rows import DEFAULT_AGENT, NewRow, OrderFacts

COLUMNS = ("InvoiceNo", "StockCode", "Description", "Quantity", "InvoiceDate", "UnitPrice", "CustomerID", "Country")
CURRENCY, CHANNEL = "GBP", "retail"
_MOST_PLACES = 12
_RISK = {"duplicate_refund": False, "stale_window": False, "suspicious_reason": False, "customer_attempts_24h": 1}


@dataclass(frozen=True, slots=True)
class BadInvoice:
    """An invoice or line that was left out. `line` counts from 1, the header being line 1."""

    line: int
    invoice: str
    rule: str


@dataclass(slots=True)
class Imported:
    """Everything a file holds; `source` is the shop whose orders they are, `agent_id` who asks for their refunds."""

    source: str = ""
    agent_id: str = DEFAULT_AGENT
    orders: list[OrderFacts] = field(default_factory=list)
    refunds: list[NewRow] = field(default_factory=list)
    refused: list[BadInvoice] = field(default_factory=list)


@dataclass(slots=True)
class _Invoice:
    number: str
    line: int
    issued_at: datetime
    customer: str | None
    total: Decimal = Decimal(0)
    codes: set[str] = field(default_factory=set)


class WrongColumns(Exception):
    """The columns are not those of the Online Retail data."""


def read_orders(lines: Iterable[str], source: str = "", agent_id: str = DEFAULT_AGENT) -> Imported:
    """Parse the file's orders and refund requests, all of one `source` and asked for by `agent_id`.

    Raises `WrongColumns`; single bad invoices are listed in `refused`.
    """
    found = Imported(source, agent_id)
    invoices = _invoices(lines, found.refused)
    orders = [invoice for invoice in invoices if not invoice.number.startswith("C")]
    for invoice in orders:
        _add_order(invoice, found)
    by_customer: dict[str, list[_Invoice]] = {}
    for invoice in orders:
        if invoice.customer is not None:
            by_customer.setdefault(invoice.customer, []).append(invoice)
    for invoice in invoices:
        if invoice.number.startswith("C"):
            _add_refund(invoice, by_customer.get(invoice.customer or "", ()), found)
    return found


def _invoices(lines: Iterable[str], refused: list[BadInvoice]) -> list[_Invoice]:
    reader = csv.DictReader(lines, strict=True)
    try:
        columns = tuple(reader.fieldnames or ())
    except csv.Error as error:
        raise WrongColumns(f"line 1: {error}") from error
    if columns != COLUMNS:
        raise WrongColumns(f"the first line must be {','.join(COLUMNS)}")
    invoices: dict[str, _Invoice] = {}
    spoilt: set[str] = set()
    for line, cells in _records(reader):
        number = (cells["InvoiceNo"] or "").strip()
        try:
            _add_line(invoices, number, line, cells)
        except ValueError as error:
            # Half an invoice is no order: it would look cheaper than it was.
            spoilt.add(number)
            refused.append(BadInvoice(line, number[:20], str(error)))
    return [invoice for number, invoice in invoices.items() if number not in spoilt]


def _records(reader: csv.DictReader[str]) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise WrongColumns(f"line {reader.line_num}: {error}") from error


def _add_line(invoices: dict[str, _Invoice], number: str, line: int, cells: dict[str, str]) -> None:
    if not (number.removeprefix("C").isascii() and number.removeprefix("C").isdigit() and len(number) <= 20):
        raise ValueError("InvoiceNo must be a number, with C in front for a cancellation")
    if None in cells.values() or None in cells:
        raise ValueError(f"must have {len(COLUMNS)} columns")
    issued_at, customer = _moment(cells["InvoiceDate"]), _customer(cells["CustomerID"])
    invoice = invoices.setdefault(number, _Invoice(number, line, issued_at, customer))
    invoice.total += _number(cells["Quantity"], "Quantity") * _number(cells["UnitPrice"], "UnitPrice")
    invoice.codes.add(cells["StockCode"].strip())


def _add_order(invoice: _Invoice, found: Imported) -> None:
    paid = _minor(invoice.total)
    if paid is None or not 0 <= paid <= MAX_MINOR:
        found.refused.append(
            BadInvoice(invoice.line, invoice.number, "its total is not an amount of whole pence in range")
        )
        return
    found.orders.append(
        OrderFacts(
            invoice.number,
            invoice.issued_at,
            paid,
            CURRENCY,
            _account(invoice.customer, found.source),
            CHANNEL,
            source=found.source,
        )
    )


def _add_refund(invoice: _Invoice, earlier: Sequence[_Invoice], found: Imported) -> None:
    amount = _minor(-invoice.total)
    if amount is None or not 0 < amount <= MAX_MINOR:
        found.refused.append(
            BadInvoice(invoice.line, invoice.number, "its total is not an amount that can be refunded")
        )
        return
    candidates = [o for o in earlier if o.issued_at <= invoice.issued_at and o.codes >= invoice.codes]
    order = max(candidates, key=lambda o: (o.issued_at, o.number), default=None)
    name = _numbered(invoice.number, found.source)
    found.refunds.append(
        NewRow(
            ledger_entry_id=f"lge_retail_{name}",
            refund_id=f"rf_retail_{name}",
            agent_id=found.agent_id,
            amount_minor=amount,
            currency=CURRENCY,
            channel=CHANNEL,
            account_ref=_account(invoice.customer, found.source),
            order_ref=order.number if order else None,
            source=found.source if order else "",
            requested_at=invoice.issued_at,
            risk=_RISK,
        )
    )


def _account(customer: str | None, source: str) -> str | None:
    return None if customer is None else f"retail-{_numbered(customer, source)}"


def _numbered(number: str, source: str) -> str:
    """Put the source in front, as two shops may use the same numbers. No number has a colon, so the last one ends the source."""
    return f"{source}:{number}" if source else number


def _customer(cell: str) -> str | None:
    """The file writes customer numbers as "14527.0"; empty means unknown."""
    number = cell.strip().removesuffix(".0")
    if not number:
        return None
    if not (number.isascii() and number.isdigit()):
        raise ValueError("CustomerID must be a number or empty")
    return number


def _moment(cell: str) -> datetime:
    try:
        return datetime.strptime(cell.strip(), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        raise ValueError("InvoiceDate must look like 2010-12-01 08:26:00") from None


def _number(cell: str, name: str) -> Decimal:
    try:
        value = Decimal(cell.strip())
    except InvalidOperation:
        raise ValueError(f"{name} must be a decimal number") from None
    # An exponent beyond these places would not be counted exactly, or at all.
    if not value.is_finite() or abs(value.adjusted()) > _MOST_PLACES or abs(value) > MAX_MINOR:
        raise ValueError(f"{name} must be a decimal number in range")
    return value


def _minor(total: Decimal) -> int | None:
    """Pounds → pence, exactly; None where there is a fraction of a penny: nothing is rounded."""
    pence = total * 100
    return int(pence) if pence == pence.to_integral_value() else None

"""Orders of our own making in the columns of the Online Retail data: invoices, and cancellations that name parts of them.

What the file holds is counted while it is made, not by the reader under test.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.corpora import public_orders

HEADER = "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country"
COUNTRIES = ("United Kingdom", "France", "Germany", "EIRE", "Spain")
WORDS = ("TIN", "LAMP", "GARDEN", "PAPER", "GLASS", "BLUE", "SMALL", "SET OF 3", '"OLD" STYLE', "ROSE, DRIED")
PERSON_ABOVE_PENCE = 15_000
"""A refund above this waits for a person in the tests' authority and in the shipped policy."""


@dataclass(slots=True)
class RetailFile:
    """The file's text, and what is in it; amounts in pence."""

    lines: list[str] = field(default_factory=lambda: [HEADER + "\n"])
    orders: int = 0
    free_orders: int = 0
    refunds: list[int] = field(default_factory=list)

    @property
    def paid_back(self) -> list[int]:
        """The refunds that need nobody."""
        return [pence for pence in self.refunds if pence <= PERSON_ABOVE_PENCE]


@dataclass(frozen=True, slots=True)
class _Line:
    code: str
    words: str
    quantity: int
    pence: int


def make_retail_file(invoices: int = 300, cancellations: int = 30, seed: int = 12) -> RetailFile:
    """The same file for the same numbers. Each invoice is cancelled in part at most once; some customers are unknown."""
    chance, made = random.Random(seed), RetailFile()
    known: list[tuple[str, list[_Line], datetime]] = []
    moment = datetime(2021, 3, 1, 8, 0)
    for number in range(100_000, 100_000 + invoices):
        moment += timedelta(minutes=chance.randint(1, 5))
        customer = "" if chance.random() < 0.1 else f"{chance.randint(20_000, 20_080)}.0"
        lines = [_line(chance, place) for place in range(chance.randint(1, 6))]
        if number % 97 == 0:
            lines = [_Line("GIFT", "FREE SAMPLE", 1, 0)]
            made.free_orders += 1
        _append(made, str(number), lines, moment, customer, chance.choice(COUNTRIES))
        made.orders += 1
        if customer and lines[0].pence:
            known.append((customer, lines, moment))
    for place, (customer, lines, ordered) in enumerate(chance.sample(known, cancellations)):
        back = lines if place % 3 == 0 else lines[:1]
        moment = ordered + timedelta(hours=chance.randint(1, 400))
        _append(made, f"C{200_000 + place}", back, moment, customer, "United Kingdom", sign=-1)
        made.refunds.append(sum(line.quantity * line.pence for line in back))
    return made


def _line(chance: random.Random, place: int) -> _Line:
    words = " ".join(chance.sample(WORDS, 2))
    return _Line(
        f"{chance.randint(10_000, 99_999)}{'ABC'[place % 3]}", words, chance.randint(1, 12), chance.randint(25, 1_495)
    )


def _append(
    made: RetailFile, number: str, lines: list[_Line], moment: datetime, customer: str, country: str, sign: int = 1
) -> None:
    for line in lines:
        words = '"' + line.words.replace('"', '""') + '"'
        price = f"{line.pence // 100}.{line.pence % 100:02}"
        made.lines.append(
            f"{number},{line.code},{words},{sign * line.quantity},{moment},{price},{customer},{country}\n"
        )


def retail_lines() -> list[Any]:
    """Parameters: the lines of our own file, and of the public one where it is."""
    public = [
        pytest.param(file.read_text("utf-8-sig").splitlines(keepends=True), id="public") for file in public_orders()
    ]
    return [pytest.param(make_retail_file().lines, id="own"), *public]

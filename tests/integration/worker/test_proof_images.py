"""Proof images of a batch: their bytes are fetched one image at a time, and only of those that nobody has read yet."""

from __future__ import annotations

from typing import Any

import pytest

from sentinel.core.money import Money
from tests.support.workflow_fixtures import PUBLIC_FEE, Shop
from worker.images import Recognised
from worker.refunds.ledger import Ledger

RECEIPT = Recognised("fee_receipt", Money(10_000, "USD"))


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each statement that brought bytes of images: of how many."""
    counts: list[int] = []
    real = Ledger._run

    def run(self: Ledger, *arguments: Any, **fields: Any) -> list[Any]:
        found = real(self, *arguments, **fields)
        images = sum(isinstance(one, bytes) or isinstance(getattr(one, "content", None), bytes) for one in found)
        if images:
            counts.append(images)
        return found

    monkeypatch.setattr(Ledger, "_run", run)
    return counts


def test_no_statement_brings_the_bytes_of_more_than_one_image(shop: Shop, fetched: list[int]) -> None:
    for n in range(4):
        shop.enter(PUBLIC_FEE, f"r{n}", image=RECEIPT)
    shop.run()
    assert {shop.stands(f"r{n}")[2] for n in range(4)} == {"awaiting_customer"}
    assert fetched == [1, 1, 1, 1]


def test_an_image_that_was_read_is_not_fetched_again(shop: Shop, fetched: list[int]) -> None:
    shop.enter(PUBLIC_FEE, image=RECEIPT)
    shop.run()
    fetched.clear()
    shop.answer("r")
    shop.run()
    assert shop.stands()[0] == "EXECUTED" and fetched == []

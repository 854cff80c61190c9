"""Proof images of a batch: fetched one at a time, and only where nobody has read them yet; read several at a time."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sentinel.core.money import Money
from tests.support.workflow_fixtures import PUBLIC_FEE, Eyes, Shop
from worker.images import ProofImage, Recognised
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


class EyesThatMeet(Eyes):
    """Reads an image as soon as so many are being read at the same time."""

    def __init__(self, together: int) -> None:
        super().__init__()
        self._all_there = threading.Barrier(together)

    def recognise(self, image: ProofImage) -> Any:
        self._all_there.wait(60)
        return super().recognise(image)


def test_images_of_several_rows_are_read_at_the_same_time(shop: Shop) -> None:
    """One that is read after the other row by row makes a batch wait for a slow recogniser longer than its claims last."""
    shop.eyes = EyesThatMeet(4)
    shop.settings["concurrency"] = 4
    for n in range(4):
        shop.enter(PUBLIC_FEE, f"r{n}", image=RECEIPT)
    shop.run()
    assert {shop.stands(f"r{n}")[2] for n in range(4)} == {"awaiting_customer"}


def test_each_row_gets_what_was_read_in_its_own_images(shop: Shop) -> None:
    kinds = {"a": "fee_receipt", "b": "other", "c": "fee_receipt"}
    for name, kind in kinds.items():
        shop.enter(PUBLIC_FEE, name, image=Recognised(kind, Money(10_000, "USD")))  # type: ignore[arg-type]
    shop.enter(PUBLIC_FEE, "none", has_image=False)
    shop.run()
    assert {name: shop.stands(name)[2] for name in (*kinds, "none")} == {
        "a": "awaiting_customer", "b": "image_mismatch", "c": "awaiting_customer", "none": "image_missing",
    }  # fmt: skip

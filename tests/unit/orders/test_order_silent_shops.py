"""A shop without connection or answer for some calls and some time is called by one order at a time, and only of its own source."""

from __future__ import annotations

from typing import Any

import pytest

from sentinel.platform.outbound.failures import FailureKind
from worker.orders.shop import ShopStatus
from worker.orders.silent_shops import SILENT_AFTER, SILENT_SECONDS, SilentShops
from worker.outbound.effects import EffectRefused, NoAnswer, Settled

TIMEOUT, UNREACHED = NoAnswer(str(FailureKind.TIMEOUT)), NoAnswer(str(FailureKind.NOT_SENT))
ANSWERS = [Settled("S-1"), EffectRefused("sold out"), ShopStatus("open"), NoAnswer("503"), NoAnswer("404 unknown")]


class Clock:
    """Seconds that a test sets."""

    seconds = 100.0

    def __call__(self) -> float:
        """Now."""
        return self.seconds


def heard(*answers: Any) -> tuple[SilentShops, Clock]:
    """What a shop of the source "a" answered so far."""
    clock = Clock()
    shops = SilentShops(clock)
    for answer in answers:
        shops.hear("a", answer)
    return shops, clock


@pytest.mark.parametrize("answer", [TIMEOUT, UNREACHED])
def test_after_some_calls_in_a_row_one_call_at_a_time_is_made(answer: NoAnswer) -> None:
    shops, clock = heard(*[answer] * (SILENT_AFTER - 1))
    assert [shops.may_be_asked("a") for _ in range(3)] == [True] * 3
    assert not shops.is_silent("a")
    shops.hear("a", answer)
    assert shops.is_silent("a") and not shops.is_silent("b")
    assert not shops.may_be_asked("a") and shops.may_be_asked("b")
    for _ in range(2):
        clock.seconds += SILENT_SECONDS
        assert [shops.may_be_asked("a") for _ in range(3)] == [True, False, False]
        shops.hear("a", answer)


@pytest.mark.parametrize("answer", ANSWERS)
def test_any_answer_at_all_ends_it(answer: Any) -> None:
    shops, clock = heard(*[TIMEOUT] * SILENT_AFTER, answer)
    clock.seconds += SILENT_SECONDS
    for _ in range(SILENT_AFTER - 1):
        shops.hear("a", TIMEOUT)
    assert [shops.may_be_asked("a") for _ in range(3)] == [True] * 3, "the calls before the answer no longer count"
    shops.hear("a", TIMEOUT)
    assert not shops.may_be_asked("a")


def test_a_shop_that_answers_looks_and_is_too_slow_for_the_rest_is_not_silent() -> None:
    shops, clock = heard()
    for _ in range(5):
        shops.hear("a", ShopStatus("open"))
        clock.seconds += SILENT_SECONDS / 2
        # Many effects at once, none of which is done in time.
        for _ in range(10 * SILENT_AFTER):
            shops.hear("a", TIMEOUT)
            assert shops.may_be_asked("a")


def test_sources_of_one_shop_find_out_with_one_call_at_a_time_between_them() -> None:
    clock = Clock()
    shops = SilentShops(clock, one_shop=True)
    for source in ("a", "b", "c"):
        assert shops.may_be_asked(source)
        shops.hear(source, TIMEOUT)
    assert not any(shops.may_be_asked(source) for source in ("a", "b", "c", "d"))
    clock.seconds += SILENT_SECONDS
    assert [shops.may_be_asked(source) for source in ("d", "a", "b")] == [True, False, False]
    shops.hear("d", Settled("S-1"))
    assert all(shops.may_be_asked(source) for source in ("a", "b", "c", "d"))

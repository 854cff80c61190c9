"""Look-ups of keys: bounded in number, and none is begun for which nobody waits any more."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from sentinel.authority.api import key_lookups
from sentinel.authority.api.key_lookups import KeyLookUps
from sentinel.core.errors import EngineUnavailable
from tests.support.harness import on_a_loop


def look_ups(find: Callable[[bytes], Any], *, most: int = 10) -> KeyLookUps:
    """One at a time."""
    return KeyLookUps(
        find, at_once=1, most=most, name="keys", refusal="too many", shared_seconds=0.8, clock=time.monotonic
    )


async def settled(made: KeyLookUps) -> None:
    while made.under_way:
        await asyncio.sleep(0.002)


def test_what_nobody_waits_for_any_more_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, speaks = list[bytes](), threading.Event()

    def silent(hashed: bytes) -> None:
        asked.append(hashed)
        speaks.wait(30)

    async def use() -> None:
        made = look_ups(silent)
        made.begin(b"a")
        while not asked:  # however late its thread is started
            await asyncio.sleep(0.002)
        monkeypatch.setattr(key_lookups, "LOOK_UP_SECONDS", 0.1)
        told = await asyncio.gather(*(made.find(key) for key in (b"a", b"b", b"a")), return_exceptions=True)
        assert {type(one) for one in told} == {EngineUnavailable}
        speaks.set()
        await settled(made)
        assert asked == [b"a"]

    on_a_loop(use())


def test_no_more_than_so_many_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_lookups, "LOOK_UP_SECONDS", 30)
    speaks = threading.Event()

    async def use() -> None:
        made = look_ups(lambda _: speaks.wait(30) and None, most=2)
        waiting = [asyncio.ensure_future(made.find(key)) for key in (b"a", b"b", b"a")]
        await asyncio.sleep(0)
        with pytest.raises(EngineUnavailable, match="too many"):
            await made.find(b"c")
        speaks.set()
        assert await asyncio.gather(*waiting) == [None, None, None]
        assert await made.find(b"c") is None, "one that comes later is looked up"

    on_a_loop(use())


def test_who_goes_away_takes_the_answer_from_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_lookups, "LOOK_UP_SECONDS", 30)
    speaks = threading.Event()

    async def use() -> None:
        made = look_ups(lambda hashed: speaks.wait(30) and hashed)
        gone, stays = (asyncio.ensure_future(made.find(b"a")) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        speaks.set()
        assert await stays == b"a"

    on_a_loop(use())

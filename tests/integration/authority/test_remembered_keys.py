"""Keys on the event loop: remembered for less than a second, looked up anew before that while they are in use."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest

from sentinel.authority.api import identity as keys_in_memory
from sentinel.authority.api import key_lookups
from sentinel.authority.api.identity import Identity
from sentinel.authority.keys import LIVE, find_key, make_secret, secret_hash
from sentinel.core.errors import EngineUnavailable, SentinelError, Unauthenticated
from sentinel.platform.http.rate_limit import SharedRateLimit
from tests.support.fixtures import Fixtures, guard_body
from tests.support.harness import on_a_loop


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Counted(Identity):
    """Counts how often the database is asked."""

    asked = 0

    def _find_anew(self, hashed: bytes) -> Any:
        self.asked += 1
        return super()._find_anew(hashed)


def identity(fixtures: Fixtures, clock: Clock) -> Counted:
    limit = SharedRateLimit(per_second=1000, burst=1000)
    return Counted(fixtures.authority.pool, limit, clock=clock)


async def settled(made: Counted) -> None:
    while made._known_look_ups.under_way:
        await asyncio.sleep(0.002)


def test_a_key_in_use_is_looked_up_before_it_is_too_old_and_no_request_waits(fixtures: Fixtures) -> None:
    async def use() -> None:
        clock = Clock()
        made, environ = identity(fixtures, clock), {"HTTP_X_API_KEY": fixtures.key}
        assert made.remembered_caller("guard", dict(environ)) is None, "nobody asked the database yet"
        found = await made.caller_async("guard", dict(environ))
        for _ in range(20):
            clock.now += 0.3
            assert made.remembered_caller("guard", dict(environ)) == found
            await settled(made)
        assert 5 < made.asked <= 11
        clock.now += 0.9
        assert made.remembered_caller("guard", dict(environ)) is None, (
            "an answer of almost a second ago is nobody's any more"
        )

    on_a_loop(use())


def test_a_revoked_key_is_refused_within_a_second_however_busy_it_is(fixtures: Fixtures) -> None:
    async def use() -> None:
        clock = Clock()
        made, environ = identity(fixtures, clock), {"HTTP_X_API_KEY": fixtures.key}
        caller = await made.caller_async("guard", dict(environ))
        fixtures.admin.execute("update sentinel.agent_keys set revoked_at = clock_timestamp()")
        revoked_at = clock.now
        with contextlib.suppress(Unauthenticated):
            while clock.now < revoked_at + 5:
                assert made.remembered_caller("guard", dict(environ)) == caller
                await settled(made)
                clock.now += 0.05
        assert clock.now - revoked_at < 1.0

    on_a_loop(use())


def test_while_the_database_is_away_a_key_is_soon_unknown_and_not_refused(fixtures: Fixtures) -> None:
    async def use() -> None:
        clock = Clock()
        made, environ = identity(fixtures, clock), {"HTTP_X_API_KEY": fixtures.key}
        caller = await made.caller_async("guard", dict(environ))
        fixtures.admin.execute("alter table sentinel.agent_keys rename to away")
        clock.now += 0.5
        assert made.remembered_caller("guard", dict(environ)) == caller
        await settled(made)
        clock.now += 0.5
        assert made.remembered_caller("guard", dict(environ)) is None

    on_a_loop(use())


def made_up() -> dict[str, Any]:
    """The headers of somebody whose key is well formed and none."""
    return {"HTTP_X_API_KEY": make_secret(LIVE)}


async def refusal(made: Counted, environ: dict[str, Any]) -> str:
    """The code that the key is refused with; "" where it is accepted."""
    try:
        await made.caller_async("guard", environ)
    except SentinelError as error:
        return error.code
    return ""


def test_made_up_keys_take_no_accepted_key_s_place(fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_in_memory, "_REMEMBER_MOST", 5)

    async def use() -> None:
        made, environ = identity(fixtures, Clock()), {"HTTP_X_API_KEY": fixtures.key}
        caller = await made.caller_async("guard", dict(environ))
        for _ in range(20):
            assert await refusal(made, made_up()) == Unauthenticated.code
        assert made.remembered_caller("guard", dict(environ)) == caller
        assert len(made._unknown) <= 5

    on_a_loop(use())


def test_nobody_with_a_key_waits_for_who_makes_keys_up(fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, honest = threading.Event(), secret_hash(fixtures.key)

    def slow(pool: Any, hashed: bytes) -> Any:
        if hashed != honest:
            go_on.wait(150)
        return find_key(pool, hashed)

    monkeypatch.setattr(keys_in_memory, "find_key", slow)
    monkeypatch.setattr(key_lookups, "LOOK_UP_SECONDS", 150)  # whoever makes them up is waited for here, not refused

    async def use() -> None:
        clock = Clock()
        made, environ = identity(fixtures, clock), {"HTTP_X_API_KEY": fixtures.key}
        caller = await made.caller_async("guard", dict(environ))
        flood = [asyncio.ensure_future(refusal(made, made_up())) for _ in range(200)]
        await asyncio.sleep(0.05)
        clock.now += 0.9
        assert await asyncio.wait_for(made.caller_async("guard", dict(environ)), 60) == caller
        at_once = asyncio.to_thread(made.caller, "guard", dict(environ))
        assert await asyncio.wait_for(at_once, 60) == caller
        assert await asyncio.wait_for(refusal(made, made_up()), 60) == EngineUnavailable.code
        accepted = {**environ, keys_in_memory.KEY_HASH: honest}
        fixtures.admin.execute("update sentinel.agent_keys set revoked_at = clock_timestamp()")
        for _ in range(2):  # looked up as revoked, and once more when that is forgotten
            clock.now += 0.9
            assert await asyncio.wait_for(made.is_usable(accepted, "guard"), 60) is False
        go_on.set()
        refused = await asyncio.gather(*flood)
        assert refused.count(EngineUnavailable.code) == 200 - 64
        assert refused.count(Unauthenticated.code) == 64
        assert await refusal(made, made_up()) == Unauthenticated.code, "one that comes later is looked up again"

    try:
        on_a_loop(use())
    finally:
        go_on.set()


def test_a_made_up_key_in_a_thread_waits_a_moment_at_most(fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_in_memory, "_NEW_PATIENCE_SECONDS", 0.05)
    made = identity(fixtures, Clock())
    with made._new, made._new, pytest.raises(EngineUnavailable):
        made.caller("guard", made_up())
    with pytest.raises(Unauthenticated):
        made.caller("guard", made_up())


def test_while_the_database_is_silent_who_has_a_key_is_refused_in_time_and_asks_it_once(
    fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: each request of a key that was too old asked by itself, without a deadline, in a line without end."""
    silent, speaks = threading.Event(), threading.Event()

    def find(pool: Any, hashed: bytes) -> Any:
        if silent.is_set():
            speaks.wait(60)
        return find_key(pool, hashed)

    monkeypatch.setattr(keys_in_memory, "find_key", find)
    monkeypatch.setattr(key_lookups, "LOOK_UP_SECONDS", 2.0)  # as it is shipped

    async def use() -> None:
        clock = Clock()
        made, environ = identity(fixtures, clock), {"HTTP_X_API_KEY": fixtures.key}
        caller = await made.caller_async("guard", dict(environ))
        silent.set()
        clock.now += 0.9
        asking = [asyncio.ensure_future(refusal(made, dict(environ))) for _ in range(300)]
        try:
            await asyncio.wait(asking, timeout=40)
            assert {one.result() for one in asking} == {EngineUnavailable.code}
            assert made.asked == 2, "as it was made known, and once for all who asked then"
        finally:
            silent.clear()
            speaks.set()
        await settled(made)
        assert await made.caller_async("guard", dict(environ)) == caller

    on_a_loop(use())


def test_nobody_is_given_what_was_asked_so_long_ago_that_the_key_may_be_revoked(
    fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up under way is shared with those who come soon after it began; who comes later has the key looked up once more."""
    read, go_on = threading.Event(), threading.Event()

    def late_response(pool: Any, hashed: bytes) -> Any:
        row = find_key(pool, hashed)
        read.set()
        go_on.wait(90)
        return row

    monkeypatch.setattr(keys_in_memory, "find_key", late_response)

    async def use() -> None:
        clock = Clock()
        made, environ = identity(fixtures, clock), {"HTTP_X_API_KEY": fixtures.key}
        first, soon = (asyncio.ensure_future(refusal(made, dict(environ))) for _ in range(2))
        await asyncio.to_thread(read.wait, 30)
        fixtures.admin.execute("update sentinel.agent_keys set revoked_at = clock_timestamp()")
        clock.now += 0.9
        late = asyncio.ensure_future(refusal(made, dict(environ)))
        await asyncio.sleep(0)
        go_on.set()
        assert await asyncio.gather(first, soon, late) == ["", "", Unauthenticated.code]
        assert made.asked == 2

    on_a_loop(use())


def test_what_a_request_waits_for_its_key_counts_into_the_time_in_which_it_is_committed(
    fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[float] = []
    arrived: list[float] = []
    decisions = fixtures.authority.decisions
    add = decisions.add

    def find(pool: Any, hashed: bytes) -> Any:
        looked_up.append(time.monotonic())
        return find_key(pool, hashed)

    def noted(row: Any, done: Any, *at: Any) -> None:
        arrived.extend(at)
        add(row, done, *at)

    monkeypatch.setattr(keys_in_memory, "find_key", find)
    monkeypatch.setattr(decisions, "add", noted)
    assert fixtures.guard(guard_body())["decision"] == "ALLOW"
    assert len(looked_up) == len(arrived) == 1 and arrived[0] < looked_up[0]

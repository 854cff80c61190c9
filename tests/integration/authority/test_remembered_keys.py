"""Keys on the event loop: remembered for less than a second, looked up anew before that while they are in use."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from sentinel.authority.api.identity import Identity
from sentinel.core.errors import Unauthenticated
from sentinel.platform.http.rate_limit import SharedRateLimit
from tests.support.fixtures import Fixtures
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
    while made._refreshing:
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

"""When a key was last used: written once a minute by the housekeeper, never with a decision, and never waited for."""

from __future__ import annotations

import time
import uuid
from typing import Any

import psycopg
import pytest

from sentinel.authority.housekeeping import Housekeeper
from sentinel.authority.keys import KeyUses, revoke_key
from sentinel.core.errors import SentinelError
from tests.support.busy import in_time
from tests.support.fixtures import Fixtures, guard_body
from tests.support.harness import caller_of
from tests.support.ledger_fixtures import wait_until

WHEN = "select clock_timestamp() - last_used_at from sentinel.agent_keys where key_id = %s"


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def version(fixtures: Fixtures, key_id: uuid.UUID) -> Any:
    """Another one after each write of the key's row."""
    return fixtures.one("select xmin::text || ctid::text from sentinel.agent_keys where key_id = %s", key_id)


def test_a_use_is_written_beside_decisions_and_at_most_once_a_minute(fixtures: Fixtures) -> None:
    key = caller_of(fixtures)
    never = version(fixtures, key.key_id)
    for _ in range(5):
        fixtures.guard(guard_body(value=10))
    assert version(fixtures, key.key_id) == never, "no decision writes the key"

    clock, pool = Clock(), fixtures.authority.pool
    uses = KeyUses(clock)
    uses.note(key.tenant_id, key.key_id)
    clock.now += 30
    assert uses.write(pool) == 1
    assert 30 <= fixtures.one(WHEN, key.key_id).total_seconds() < 45, "when it was used, not when it was written"
    written = version(fixtures, key.key_id)
    for _ in range(59):
        clock.now += 1
        uses.note(key.tenant_id, key.key_id)
        assert uses.write(pool) == 0
    assert version(fixtures, key.key_id) == written
    clock.now += 1
    assert uses.write(pool) == 1, "what was noted meanwhile is not lost"
    assert fixtures.one(WHEN, key.key_id).total_seconds() < 15
    newest = version(fixtures, key.key_id)

    # Another process that knows of an older use does not turn it back; nor is anything waited for.
    other = KeyUses(clock)
    other.note(key.tenant_id, key.key_id)
    clock.now += 500
    other.write(pool)
    assert version(fixtures, key.key_id) == newest
    with psycopg.connect(fixtures.url) as held:
        held.execute("select from sentinel.agent_keys for update")
        took = []
        for _ in range(3):  # who stands still does so once, who waits for a lock each time
            late = KeyUses(clock)
            late.note(key.tenant_id, key.key_id)
            begun = time.monotonic()
            late.write(pool)
            took.append(time.monotonic() - begun)
        assert in_time(min(took), 1.5)


def test_a_running_authority_notes_keys_that_it_takes_and_no_others(fixtures: Fixtures) -> None:
    unused, revoked = fixtures.new_key(), fixtures.new_key(agent_id="gone")
    gone = fixtures.one("select key_id from sentinel.agent_keys where agent_id = 'gone'")
    revoke_key(fixtures.console_pool, fixtures.tenant_id, gone)
    keeper = Housekeeper(fixtures.authority)
    keeper.start()
    try:
        fixtures.guard(guard_body(value=10))
        assert fixtures.post("action/guard", guard_body(value=10), key=revoked).status_code == 401
        wait_until(lambda: fixtures.one("select count(*) from sentinel.agent_keys where last_used_at is not null"))
    finally:
        keeper.stop()
    assert fixtures.one("select count(*) from sentinel.agent_keys where last_used_at is not null") == 1
    assert fixtures.one(WHEN, caller_of(fixtures).key_id) is not None
    assert fixtures.one(WHEN, caller_of(fixtures, unused).key_id) is None
    assert fixtures.one(WHEN, gone) is None


def test_uses_that_could_not_be_written_are_written_later(fixtures: Fixtures) -> None:
    key, uses = caller_of(fixtures), KeyUses()
    uses.note(key.tenant_id, key.key_id)
    fixtures.admin.execute("revoke update (last_used_at) on sentinel.agent_keys from sentinel_authority")
    with pytest.raises((SentinelError, psycopg.Error)):
        uses.write(fixtures.authority.pool)
    fixtures.admin.execute("grant update (last_used_at) on sentinel.agent_keys to sentinel_authority")
    assert uses.write(fixtures.authority.pool) == 1
    assert fixtures.one(WHEN, key.key_id) is not None

"""Each of the housekeeper's steps is done whatever becomes of the others; the feed of a restored database goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from sentinel.authority import housekeeping
from sentinel.authority.halts import set_halt
from sentinel.authority.housekeeping import Housekeeper, sequence_events
from sentinel.authority.metrics import FIGURES, read_figures
from sentinel.core.errors import EngineUnavailable
from sentinel.store.ids import first_id_at
from tests.conftest import at
from tests.support.fixtures import Fixtures, guard_body
from tests.support.harness import actor, let_permits_expire
from tests.support.ledger_fixtures import wait_until

HELD = "select count(*) from sentinel.reservations where state = 'held'"
POSITIONS = "select array_agg(event_id order by position) from sentinel.feed where tenant_id = %s"


@pytest.mark.parametrize("failure", [EngineUnavailable("away"), ValueError("a defect")], ids=["refused", "a defect"])
def test_permits_run_out_although_events_get_no_position(
    fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fail(*_: object) -> int:
        raise failure

    fixtures.guard(guard_body(value=10))
    let_permits_expire(fixtures)
    monkeypatch.setattr(housekeeping, "sequence_events", fail)
    keeper = Housekeeper(fixtures.authority)
    keeper.start()
    try:
        wait_until(lambda: fixtures.one(HELD) == 0)
    finally:
        keeper.stop()
    assert fixtures.one(HELD) == 0


@pytest.mark.parametrize(("broken", "other"), [("clock", "mark_keys_at_limits"), ("run_housekeeping", "key_uses")])
def test_no_step_waits_for_another_to_succeed(
    fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch, broken: str, other: str
) -> None:
    authority, done = fixtures.authority, threading.Event()
    steps: dict[str, tuple[object, str]] = {
        "clock": (authority.clock, "refresh"), "key_uses": (authority.key_uses, "write"),
        **{name: (housekeeping, name) for name in ("mark_keys_at_limits", "run_housekeeping")},
    }  # fmt: skip

    def fail(*_: object) -> None:
        raise EngineUnavailable("it cannot be done")

    monkeypatch.setattr(*steps[broken], fail)
    monkeypatch.setattr(*steps[other], lambda *_: done.set())
    keeper = Housekeeper(authority)
    keeper.start()
    try:
        assert done.wait(60)
    finally:
        keeper.stop()


def test_events_that_were_restored_keep_their_positions_when_the_new_cluster_comes_to_their_transactions(
    fixtures: Fixtures,
) -> None:
    """A dump keeps the old cluster's transaction ids; in the new one they begin again below them."""
    for _ in range(3):
        fixtures.guard(guard_body(value=10))
    fixtures.run_housekeeping()
    placed = fixtures.one(POSITIONS, fixtures.tenant_id)
    fixtures.admin.execute("update sentinel.sequencer set transaction_id = '1'")
    assert read_figures(fixtures.authority.pool).feed_lag_seconds == 0, "they are behind the mark and have their places"
    while sequence_events(fixtures.authority.pool, 2):
        pass
    assert fixtures.one(POSITIONS, fixtures.tenant_id) == placed, "each of them was placed before"
    later = fixtures.guard(guard_body(value=10))["decision_event_id"]
    assert sequence_events(fixtures.authority.pool, 2) == 1
    found = fixtures.one(POSITIONS, fixtures.tenant_id)
    assert found[:-1] == placed and str(found[-1]) == later
    assert fixtures.broken_invariants() == []


MADE_LONG_AGO = """
insert into sentinel.event_rows (tenant_id, event_id, kind, body, hash, occurred_at)
select %s, overlay(gen_random_uuid()::text placing '0100' from 1)::uuid, 'drill', '{}', sentinel.hash_bytes(sentinel.sha256_text('{}')), clock_timestamp() - interval '1 hour'
from generate_series(1, %s)
"""


@pytest.mark.fresh_database  # counts what is read
def test_how_long_the_feed_stands_is_told_and_read_from_one_event_however_many_wait(fixtures: Fixtures) -> None:
    fixtures.run_housekeeping()
    with psycopg.connect(at(fixtures.url, "postgres")) as elsewhere:
        elsewhere.execute("select pg_current_xact_id()")
        read = []
        for number in (50, 5000):
            fixtures.admin.execute(MADE_LONG_AGO, [fixtures.tenant_id, number])
            fixtures.run_housekeeping()
            fixtures.admin.execute("analyze sentinel.event_rows, sentinel.feed")
            assert read_figures(fixtures.authority.pool).feed_lag_seconds > 3500
            read.append(blocks(fixtures, FIGURES))
        assert read[1] <= 2 * read[0], read
    fixtures.run_housekeeping()
    assert read_figures(fixtures.authority.pool).feed_lag_seconds == 0


def blocks(fixtures: Fixtures, statement: str) -> int:
    """Blocks of tables and indexes that the statement looks at."""
    recent = first_id_at(datetime.now(UTC) - timedelta(hours=2))
    filled = statement.replace("%(most)s", "1").replace("%(recent)s", f"'{recent}'::uuid")
    told = fixtures.one(f"explain (analyze, buffers, format json) {filled}")[0]["Plan"]
    return int(told["Shared Hit Blocks"] + told["Shared Read Blocks"])


def test_events_that_were_restored_without_a_position_get_theirs_once(fixtures: Fixtures) -> None:
    made = [fixtures.guard(guard_body(value=10))["decision_event_id"] for _ in range(3)]
    fixtures.admin.execute("update sentinel.sequencer set transaction_id = '9000000000'")
    assert sequence_events(fixtures.authority.pool) > 0
    assert sequence_events(fixtures.authority.pool) == 0
    assert [str(one) for one in fixtures.one(POSITIONS, fixtures.tenant_id)][-3:] == made
    assert fixtures.broken_invariants() == []


RESTORED = """
insert into sentinel.event_rows (tenant_id, event_id, kind, body, hash, occurred_at, transaction_id)
select %s, overlay(gen_random_uuid()::text placing '0100' from 1)::uuid, 'drill', '{}', sentinel.hash_bytes(sentinel.sha256_text('{}')),
  clock_timestamp() - interval '1 hour', (9000000000 + n)::text::xid8
from generate_series(1, %s) as n
"""
IN_A_RESTORE_BEFORE = "update sentinel.sequencer set restart_at = '9500000000', restored_upto = '9400000000'"


@pytest.mark.parametrize("before", ["select", IN_A_RESTORE_BEFORE], ids=["a dump", "a dump while a restore was placed"])
def test_what_was_restored_is_gone_through_in_portions(fixtures: Fixtures, before: str) -> None:
    """The finding: it was one statement, which a log of a few million events never finished in the time that a statement has."""
    pool = fixtures.authority.pool
    for _ in range(5):
        fixtures.guard(guard_body(value=10))
    fixtures.run_housekeeping()
    placed = fixtures.one(POSITIONS, fixtures.tenant_id)
    fixtures.admin.execute(RESTORED, [fixtures.tenant_id, 7])
    fixtures.admin.execute("update sentinel.sequencer set transaction_id = '9000000000'")
    fixtures.admin.execute(before.encode())
    early, rounds = fixtures.guard(guard_body(value=10))["decision_event_id"], []
    while went := sequence_events(pool, 2):
        rounds.append(went)
        if len(rounds) == 2:
            late = fixtures.guard(guard_body(value=10))["decision_event_id"]
        assert fixtures.broken_invariants() == []
    assert max(rounds) <= 4 and sum(rounds) >= 13, "the largest transaction is that of the fixtures"
    while sequence_events(pool, 2):
        pass
    found = fixtures.one(POSITIONS, fixtures.tenant_id)
    restored = fixtures.one("select array_agg(event_id order by transaction_id) from sentinel.event_rows where kind = 'drill'")  # fmt: skip
    assert [*map(str, found)] == [*map(str, placed), early, *map(str, restored), late]
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize("before", ["select", IN_A_RESTORE_BEFORE], ids=["a dump", "a dump while a restore was placed"])
def test_the_doctor_finds_nothing_in_what_is_recorded_before_a_restored_feed_goes_on(
    fixtures: Fixtures, before: str
) -> None:
    """The runbook sets a halt and runs the doctor before the authority runs, whose housekeeping gives the positions."""
    fixtures.guard(guard_body(value=10))
    fixtures.run_housekeeping()
    fixtures.admin.execute("update sentinel.sequencer set transaction_id = '9000000000'")
    fixtures.admin.execute(before.encode())
    set_halt(fixtures.console_pool, actor(fixtures, "admin"), scope="tenant", target="", reason="restored")
    assert fixtures.broken_invariants() == []
    fixtures.run_housekeeping()
    assert fixtures.broken_invariants() == []


def test_each_step_that_begins_to_fail_is_logged_once_and_one_cause_of_several_once(
    fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: a step of each second was logged each second, and beside another that failed not at all."""
    told: list[str] = []
    monkeypatch.setattr(housekeeping, "SEQUENCE_SECONDS", 0.01)
    monkeypatch.setattr(housekeeping, "HOUSEKEEPING_SECONDS", 0.03)
    monkeypatch.setattr(housekeeping.log, "warning", lambda event, cause: told.append(cause), raising=False)
    rounds = threading.Semaphore(0)

    def fail(cause: str) -> Callable[..., None]:
        def failing(*_: object) -> None:
            rounds.release()
            raise EngineUnavailable(cause)

        return failing

    monkeypatch.setattr(housekeeping, "mark_keys_at_limits", fail("a lock"))
    monkeypatch.setattr(housekeeping, "run_housekeeping", fail("no time"))
    keeper = Housekeeper(fixtures.authority, each_round=[fail("a lock")])
    keeper.start()
    try:
        assert all(rounds.acquire(timeout=60) for _ in range(40))
    finally:
        keeper.stop()
    assert told == ["a lock", "no time"]

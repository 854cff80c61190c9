"""G51: locks are taken in one order, told by the rows themselves, and waited for no longer than two seconds."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from sentinel.authority.housekeeping import run_housekeeping
from sentinel.authority.in_doubt import resolve_in_doubt
from sentinel.core.errors import SentinelError, StillDeciding
from tests import mutants
from tests.support.busy import overload
from tests.support.fixtures import Fixtures, guard_body, make_fixtures, unique
from tests.support.harness import (
    Desk,
    actor,
    at_once,
    decide,
    desks,
    let_approvals_expire,
    let_permits_expire,
    scaled,
    seeded,
)
from tests.support.lifecycle import pending
from tests.support.served_programs import eventually

PROMISED = 2.0
"""Seconds: how long a caller waits for what others hold."""


def slack() -> float:
    """The seconds by which an answer may come late: what a busy machine adds to a thread's turn is not the lock's."""
    return overload()


# Whoever touches what is held of a budget must hold its lock; the subject is the end of the limit's key.
MUST_HOLD = """
create function sentinel.must_hold() returns trigger language plpgsql security definer as $$
declare
  wanted bigint := sentinel.budget_lock(new.tenant_id,
    coalesce(to_jsonb(new) ->> 'subject', sentinel.subject_of(to_jsonb(new) ->> 'limit_key')));
begin
  if not exists (select from pg_catalog.pg_locks l where l.locktype = 'advisory' and l.pid = pg_backend_pid() and l.granted
                   and l.objsubid = 1 and (l.classid::bigint << 32) | l.objid::bigint = wanted) then
    raise exception 'the budget % is touched without its lock', to_jsonb(new);
  end if;
  return new;
end $$;
create trigger must_hold before insert or update on sentinel.budgets for each row execute function sentinel.must_hold();
create trigger must_hold before insert or update on sentinel.usage_parts for each row execute function sentinel.must_hold();
"""


def deadlocks(fixtures: Fixtures) -> int:
    """How many transactions PostgreSQL ended in this database because they waited in a circle."""
    fixtures.admin.execute("select pg_stat_clear_snapshot()")
    return int(fixtures.one("select deadlocks from pg_stat_database where datname = current_database()"))


def quietly(call: Callable[[], Any]) -> Callable[[], Any]:
    """`call`, whose refusals are as good an answer as any."""

    def tried() -> Any:
        try:
            return call()
        except StillDeciding:
            raise
        except SentinelError as error:
            return error

    return tried


def slow_approvals(fixtures: Fixtures, seconds: float) -> None:
    """Whoever updates an approval dawdles, so that others come to the state behind it meanwhile."""
    run = fixtures.admin.execute
    run("create function sentinel.dawdle() returns trigger language plpgsql as"
        f" $$ begin perform pg_sleep({seconds}); return new; end $$")  # fmt: skip
    run("create trigger dawdle before update on sentinel.approvals for each row execute function sentinel.dawdle()")
    run("grant execute on function sentinel.dawdle() to public")


def held_up_approvals(fixtures: Fixtures) -> None:
    """Whoever updates an approval goes on once somebody waits for a lock, or after half a minute."""
    run = fixtures.admin.execute
    run("""create function sentinel.hold_up() returns trigger language plpgsql as $$ begin
      for turn in 1..1500 loop
        exit when exists (select from pg_catalog.pg_locks where not granted);
        perform pg_sleep(0.02);
      end loop;
      return new;
    end $$""")
    run("create trigger hold_up before update on sentinel.approvals for each row execute function sentinel.hold_up()")
    run("grant execute on function sentinel.hold_up() to public")


def somebody_is_held_up(fixtures: Fixtures) -> bool:
    """Whether a transaction of this database is inside that trigger."""
    return bool(fixtures.one(
        "select count(*) from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database()"))  # fmt: skip


def race_at_expiry(fixtures: Fixtures, bench: list[Desk], dice: random.Random, number: int) -> None:
    """`number` questions run out; agents ask again, people decide and the housekeeper sweeps, all at one moment."""
    bodies = [pending(fixtures) for _ in range(number)]
    let_approvals_expire(fixtures)
    jobs: list[Callable[[], Any]] = []
    for place, (body, asked) in enumerate(bodies):
        jobs.append(quietly(lambda body=body, desk=bench[place % len(bench)]: desk.guard(body)))
        jobs.append(quietly(lambda asked=asked: decide(fixtures, asked["approval_id"])))
    jobs += [lambda: run_housekeeping(fixtures.authority.pool, 300) for _ in range(3)]
    dice.shuffle(jobs)
    wrong = [
        answer
        for answer in at_once(jobs)
        if isinstance(answer, BaseException) and not isinstance(answer, SentinelError)
    ]
    assert wrong == []


def test_replays_resolutions_and_the_housekeeper_never_wait_in_a_circle(fixtures: Fixtures) -> None:
    rounds, number = scaled(10), 8
    dice = seeded(51, rounds * number)
    slow_approvals(fixtures, 0.02)
    with desks(fixtures, 4) as bench:
        for _ in range(rounds):
            race_at_expiry(fixtures, bench, dice, number)
    time.sleep(1.1)  # a backend tells its figures once a second
    assert deadlocks(fixtures) == 0
    assert fixtures.broken_invariants() == []


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("who", ["housekeeper", "person"])
def test_mutant_that_takes_the_approval_before_the_state_meets_a_replay_in_a_circle(
    fixtures: Fixtures, who: str
) -> None:
    """The race is made, not hoped for."""
    body, asked = pending(fixtures)
    if who == "housekeeper":
        mutants.cut(
            fixtures, "sentinel.expire_due_approvals", "for update of s skip locked", "for update of a skip locked"
        )
        other: Callable[[], Any] = lambda: run_housekeeping(fixtures.authority.pool, 300)  # noqa: E731
    else:
        mutants.cut(
            fixtures, "sentinel.resolve_approval",
            "perform from sentinel.operation_states where tenant_id = tenant and operation_id = a.operation_id for update;",
        )  # fmt: skip
        other = quietly(lambda: decide(fixtures, asked["approval_id"]))
    let_approvals_expire(fixtures)
    held_up_approvals(fixtures)
    with desks(fixtures, 1) as (desk,):
        replay = quietly(lambda: desk.guard(body))
        at_once([other, lambda: (eventually(lambda: somebody_is_held_up(fixtures), within=10, every=0.01), replay())])
    assert eventually(lambda: deadlocks(fixtures) > 0, within=10, every=0.2)


# budgets ---------------------------------------------------------------------------------------------------------------


def touch_every_budget(fixtures: Fixtures, desk: Desk) -> None:
    """Every way that a held budget goes: held, kept, given back by time, by a renewal, by a person, captured."""
    account = unique("acct")

    def ask(**over: Any) -> dict[str, Any]:
        return guard_body(value=1, params={"account_ref": account}, **over)

    plain, silent, undone, renewed = ask(), ask(), ask(), ask()
    for body in (plain, silent, undone):
        desk.start(body, desk.guard(body))
    desk.report(plain)
    for body, executed in ((silent, True), (undone, False)):
        desk.report(body, "error")
        operation = fixtures.one(
            "select operation_id from sentinel.operations where idempotency_key = %s", body["idempotency_key"]
        )
        resolve_in_doubt(
            fixtures.console_pool,
            actor(fixtures, "admin"),
            uuid.UUID(str(operation)),
            executed=executed,
            evidence="seen",
        )
    desk.guard(renewed)
    let_permits_expire(fixtures)
    desk.guard(renewed)
    desk.guard(ask())
    let_permits_expire(fixtures)
    fixtures.run_housekeeping()
    batch = [ask(start_id=str(uuid.uuid4())) for _ in range(3)]
    for body in batch:
        desk.guard(body)
    at_once([lambda body=body: desk.report(body) for body in batch])


def test_whoever_touches_a_budget_holds_its_lock(fixtures: Fixtures) -> None:
    fixtures.admin.execute(MUST_HOLD)
    fixtures.admin.execute("grant execute on function sentinel.must_hold() to public")
    with desks(fixtures, 1) as (desk,):
        touch_every_budget(fixtures, desk)
    assert fixtures.one("select count(distinct state) from sentinel.reservations") == 2
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize(
    ("function", "fence", "instead"),
    [
        ("sentinel.record_batch", "locks := sentinel.locks_of_batch(terms, batch, rates);", ""),
        ("sentinel.locks_of_batch", "budget_lock(a.tenant_id, one.subject) from a", "budget_lock(a.tenant_id, '') from a"),
        ("sentinel.record_one", "perform sentinel.take_locks(locks, deadline);", ""),
        ("sentinel.record_one", "locks bigint[] := own_locks || total_locks", "locks bigint[] := total_locks"),
        ("sentinel.report_outcomes", "where a.outcome = 'success'", "where false"),
        ("sentinel.resolve_in_doubt", "perform sentinel.take_held_locks(tenant, operation)", "perform 1"),
    ],
    ids=["decisions take none", "a limit's lock is left out", "one alone takes none", "one alone leaves a limit's out", "reports take none", "a person takes none"],
)  # fmt: skip
def test_mutants_that_leave_a_lock_out_are_caught(database_url: str, function: str, fence: str, instead: str) -> None:
    fixtures = make_fixtures(database_url)
    try:
        mutants.cut(fixtures, function, fence, instead)
        if function in ("sentinel.record_batch", "sentinel.locks_of_batch"):
            mutants.without_the_plain_way_alone(fixtures.admin)
        fixtures.admin.execute(MUST_HOLD)
        fixtures.admin.execute("grant execute on function sentinel.must_hold() to public")
        with desks(fixtures, 1) as (desk,), pytest.raises(SentinelError):
            touch_every_budget(fixtures, desk)
    finally:
        fixtures.close()


# two seconds -----------------------------------------------------------------------------------------------------------


@contextmanager
def held(fixtures: Fixtures, statement: str, *arguments: Any) -> Iterator[None]:
    """What `statement` locks stays locked for the block."""
    with psycopg.connect(fixtures.url) as holder:
        assert holder.execute(statement.encode(), arguments).fetchall()
        yield
        holder.rollback()


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """(seconds, answer or refusal)"""
    began = time.monotonic()
    try:
        answer = call()
    except SentinelError as error:
        answer = error
    return time.monotonic() - began, answer


def asked_in_time(ask: Callable[[], list[Any]]) -> list[Any]:
    """What is answered, with the seconds that it took: who stands still is late once, and then all are asked again."""
    for _ in range(3):
        answers = ask()
        if all(seconds < PROMISED + slack() for seconds, _ in answers):
            break
    return answers


def answered(desk: Desk) -> tuple[float, Any]:
    """`timed` of a decision that nobody's lock holds; on a busy machine it may come late, and is asked for again."""
    body = guard_body()
    for _ in range(1 + round(overload())):
        seconds, answer = timed(lambda: desk.guard(body))
        if not isinstance(answer, StillDeciding):
            break
    return seconds, answer


LOCKED_BUDGET = "select 1 from sentinel.budgets where tenant_id = %s and subject like %s for update"


@pytest.mark.parametrize("callers", [1, 3, 24])
def test_a_locked_budget_holds_each_caller_two_seconds_and_nobody_else(fixtures: Fixtures, callers: int) -> None:
    account = unique("acct")
    with desks(fixtures, 1) as (desk,):
        desk.guard(guard_body(params={"account_ref": account}))
        stuck = [lambda: timed(lambda: desk.guard(guard_body(params={"account_ref": account}))) for _ in range(callers)]
        free = [lambda: answered(desk) for _ in range(callers)]
        with held(fixtures, LOCKED_BUDGET, fixtures.tenant_id, f"%{account}%"):
            answers = asked_in_time(lambda: at_once(stuck + free))
        assert desk.guard(guard_body(params={"account_ref": account})).decision == "ALLOW"
    for seconds, answer in answers[:callers]:
        assert isinstance(answer, StillDeciding), answer
        assert seconds < PROMISED + slack()
    for seconds, answer in answers[callers:]:
        assert getattr(answer, "decision", None) == "ALLOW", answer
        assert seconds < PROMISED + slack()
    print(f"N={callers}: longest {max(seconds for seconds, _ in answers):.2f} s")
    assert fixtures.broken_invariants() == []


def test_callers_that_keep_coming_are_told_in_time_too(fixtures: Fixtures) -> None:
    account = unique("acct")
    number = scaled(40)

    def one(place: int) -> tuple[float, Any]:
        time.sleep(place * 0.05)
        return timed(lambda: desk.guard(guard_body(params={"account_ref": account})))

    with desks(fixtures, 1) as (desk,):
        desk.guard(guard_body(params={"account_ref": account}))
        with held(fixtures, LOCKED_BUDGET, fixtures.tenant_id, f"%{account}%"):
            answers = asked_in_time(lambda: at_once([lambda place=place: one(place) for place in range(number)]))
    print(f"N={number}: longest {max(seconds for seconds, _ in answers):.2f} s")
    assert all(isinstance(answer, StillDeciding) and seconds < PROMISED + slack() for seconds, answer in answers), (
        answers
    )


def test_over_http_it_is_a_409_that_says_when_to_come_back(fixtures: Fixtures) -> None:
    account = unique("acct")
    fixtures.guard(guard_body(params={"account_ref": account}))
    with held(fixtures, LOCKED_BUDGET, fixtures.tenant_id, f"%{account}%"):
        refused = fixtures.post("action/guard", guard_body(params={"account_ref": account}))
    assert (refused.status_code, refused.get_json()["type"]) == (409, "urn:sentinel:problem:still-deciding")
    assert int(refused.headers["Retry-After"]) >= 1


def test_two_locks_one_after_the_other_are_two_seconds_together(fixtures: Fixtures) -> None:
    """Who waited for an advisory lock has so much less time for the row behind it."""
    account = unique("acct")

    def hold_the_lock(is_held: threading.Event, let_go: threading.Event) -> None:
        with held(
            fixtures, "select pg_advisory_xact_lock(sentinel.budget_lock(%s, %s))", fixtures.tenant_id, f"{account}|USD"
        ):
            is_held.set()
            let_go.wait(1.2)

    def asked_behind_both() -> list[tuple[float, Any]]:
        is_held, let_go = threading.Event(), threading.Event()
        holder = threading.Thread(target=hold_the_lock, args=(is_held, let_go))
        holder.start()
        assert is_held.wait(60)
        found = timed(lambda: desk.guard(guard_body(params={"account_ref": account})))
        let_go.set()
        holder.join()
        return [found]

    with desks(fixtures, 1) as (desk,):
        desk.guard(guard_body(params={"account_ref": account}))
        with held(fixtures, LOCKED_BUDGET, fixtures.tenant_id, f"%{account}%"):
            ((seconds, answer),) = asked_in_time(asked_behind_both)
    assert isinstance(answer, StillDeciding)
    assert PROMISED - 0.5 < seconds < PROMISED + slack()


def test_starts_and_reports_wait_for_a_locked_operation_no_longer_either(fixtures: Fixtures) -> None:
    bodies = [guard_body() for _ in range(3)]
    with desks(fixtures, 1) as (desk,):
        permits = [desk.guard(body) for body in bodies]
        with held(
            fixtures, "select 1 from sentinel.operation_states where tenant_id = %s for update", fixtures.tenant_id
        ):
            jobs = [lambda b=b, p=p: timed(lambda: desk.start(b, p)) for b, p in zip(bodies, permits, strict=True)]
            jobs += [lambda b=b: timed(lambda: desk.report(b)) for b in bodies]
            answers = asked_in_time(lambda: at_once(jobs))
    assert all(isinstance(answer, StillDeciding) and seconds < PROMISED + slack() for seconds, answer in answers), (
        answers
    )


@pytest.mark.parametrize("had", [[2], [2, None]], ids=["named", "with one that has none"])
def test_a_late_lock_that_another_holds_is_never_done_without(fixtures: Fixtures, had: list[int | None]) -> None:
    """A denied operation has no once-key, so what was taken before names nothing there."""
    take = "select sentinel.take_late_locks(array[777]::bigint[], %s::bigint[])"
    with psycopg.connect(fixtures.url) as one, psycopg.connect(fixtures.url) as other:
        one.execute(take, [had])
        assert one.execute(
            "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
        ).fetchone() == (1,)
        with pytest.raises(psycopg.errors.DeadlockDetected):
            other.execute(take, [had])

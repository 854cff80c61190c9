"""G12: from its commit on a halt stops every decision and every permit that is not redeemed, whatever is in flight."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from sentinel.authority.actor import local_administrator
from sentinel.authority.halts import lift_halt, set_halt
from tests import mutants
from tests.integration.authority.test_batches import rows_of
from tests.support.commits import record_decisions
from tests.support.fixtures import ACTION, AGENT, Fixtures, add_tenant, guard_body, make_fixtures, start_body, unique
from tests.support.harness import PATIENT_SECONDS, Desk, at_once, desks, dump, scaled
from tests.support.ledger_fixtures import wait_until
from tests.support.lost_connections import LosesConnection

pytestmark = pytest.mark.usefixtures("patient")
SCOPES = [
    ("global", ""),
    ("tenant", ""),
    ("agent", AGENT),
    ("action", ACTION),
    ("action", "refund.*"),
    ("scenario", "demo"),
]


def halt(fixtures: Fixtures, scope: str, target: str, level: str = "kill") -> Any:
    return set_halt(
        fixtures.console_pool,
        local_administrator(fixtures.tenant_id),
        scope=scope,
        target=target,
        level=level,
        reason="drill",
    ).halt_id


def lift(fixtures: Fixtures, halt_id: Any) -> None:
    lift_halt(fixtures.console_pool, local_administrator(fixtures.tenant_id), halt_id, reason="over")


def body_of(**over: Any) -> dict[str, Any]:
    return guard_body(value=1, params={"account_ref": unique("acct"), "scenario": "demo"}, **over)


class Load:
    """Threads that guard and start, apart or in one, without pause; what they met besides refusals of a halt is kept."""

    def __init__(self, bench: list[Desk], threads: int) -> None:
        self.bench = bench
        self.stop = threading.Event()
        self.unexpected: list[BaseException] = []
        self.threads = [threading.Thread(target=self._run, args=(place,), daemon=True) for place in range(threads)]

    def _run(self, place: int) -> None:
        desk, turn = self.bench[place % len(self.bench)], itertools.count(place)
        while not self.stop.is_set():
            body = body_of()
            starts_at_once = next(turn) % 2
            try:
                decision = desk.guard({**body, "start_id": str(uuid.uuid4())} if starts_at_once else body)
                if decision.permit_id is not None and not starts_at_once:
                    desk.start(body, decision)
            except BaseException as error:
                if getattr(error, "code", "") != "permit-refused":
                    self.unexpected.append(error)

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(60)


PASSED = """
select array[count(*) filter (where kind = 'start'), count(*) filter (where body::json->>'decision' = 'ALLOW')]
from sentinel.events where kind in ('start', 'decision')
"""


def passed_a_halt(fixtures: Fixtures, rounds: int, *, threads: int = 6) -> list[str]:
    """Sets and lifts halts of every scope under load; what was committed while one was in force. The checker of G12."""
    found = []
    with desks(fixtures, 2) as bench, Load(bench, threads) as load:
        for turn in range(rounds):
            time.sleep(0.05)
            wait_until(lambda turn=turn: fixtures.one(PASSED)[0] > turn or load.unexpected, 60)
            halt_id = halt(fixtures, *SCOPES[turn % len(SCOPES)])
            at_first = fixtures.one(PASSED)
            time.sleep(0.06)
            starts, allowed = (later - first for later, first in zip(fixtures.one(PASSED), at_first, strict=True))
            lift(fixtures, halt_id)
            found += ["a start was committed under a halt"] * starts + ["an ALLOW was committed under a halt"] * allowed
    found += [repr(error) for error in load.unexpected]
    if at_first[0] < rounds:
        found.append("nothing ran")
    return found + started_after_a_halt(fixtures) + fixtures.broken_invariants()


def started_after_a_halt(fixtures: Fixtures) -> list[str]:
    """Starts and allowed decisions whose transaction is between that of a halt and that of its end."""
    events = fixtures.admin.execute(
        "select kind, body::json from sentinel.events order by transaction_id, occurred_at, event_id"
    ).fetchall()
    found, in_force = [], set[str]()
    for kind, body in events:
        if kind == "halt_set":
            # The policy's own breaker may have paused the agent by now; a halt of the same scope takes its place.
            in_force = in_force - {body.get("replaces", "")} | {body["halt_id"]}
        elif kind == "halt_lifted":
            in_force.discard(body["halt_id"])
        elif in_force and (kind == "start" or body.get("decision") == "ALLOW"):
            found.append(f"a {kind} came between a halt and its end")
    return found


def test_nothing_starts_or_is_allowed_after_a_halts_commit_under_load(fixtures: Fixtures) -> None:
    rounds = scaled(12)
    print(f"N={rounds} flips")
    assert passed_a_halt(fixtures, rounds) == []


WAITS = """
select a.backend_xid::text is null from pg_locks l join pg_stat_activity a using (pid)
where l.locktype = 'advisory' and not l.granted and a.datname = current_database()
"""


def waits_without_a_number(fixtures: Fixtures) -> bool:
    """Once somebody waits for an advisory lock: whether its transaction has no number yet, so nothing written.

    Read again once it is seen to wait: a statement that finds the lock may have read the number before, and before the first write.
    """

    def waiting() -> list[Any]:
        return fixtures.admin.execute(WAITS.encode()).fetchall()

    wait_until(lambda: bool(waiting()), 60)
    return waiting() == [(True,)]


def decided_behind_a_halt(fixtures: Fixtures, rows: int) -> list[str]:
    """Has operations of new terms wait for the end of a halt; what stands otherwise in the log. A checker of G12."""
    halt_id = halt(fixtures, "tenant", "")
    with psycopg.connect(fixtures.url) as other, ThreadPoolExecutor(1) as thread:
        other.execute("select sentinel.take_halt_lock()")
        asked = thread.submit(
            record_decisions,
            fixtures.authority.pool,
            rows_of(fixtures, [body_of() for _ in range(rows)]),
            PATIENT_SECONDS,
        )
        found = [] if waits_without_a_number(fixtures) else ["something was written before the halt lock was taken"]
        other.execute(
            "select sentinel.lift_halt(%s, %s, 'who', 'over', gen_random_uuid())", [fixtures.tenant_id, halt_id]
        )
        other.commit()
        assert {one.decision for one in asked.result(60)} == {"ALLOW"}
    return found + started_after_a_halt(fixtures) + fixtures.broken_invariants()


@pytest.mark.parametrize("rows", [1, 3], ids=["alone", "in a set"])
def test_what_waits_for_the_end_of_a_halt_comes_behind_it_in_the_log(fixtures: Fixtures, rows: int) -> None:
    """The feed has transactions in the order of their numbers, and one gets its number with its first write."""
    assert decided_behind_a_halt(fixtures, rows) == []


def test_mutant_that_writes_new_terms_before_the_halt_lock_is_caught(fixtures: Fixtures) -> None:
    known = "sentinel.known_terms(terms)"
    mutants.cut(fixtures, "sentinel.record_decisions", known, f"sentinel.put_in_terms({known})")
    assert decided_behind_a_halt(fixtures, 1) == [
        "something was written before the halt lock was taken",
        "a decision came between a halt and its end",
    ]


WAITING = """
select count(*) from pg_locks l join pg_stat_activity a using (pid)
where l.locktype = 'advisory' and not l.granted and a.datname = current_database()
"""


def decided_beside_a_halt(fixtures: Fixtures) -> list[str]:
    """The log of a question that comes alone, waits for its full budget and has to be decided as a set, while a halt waits for it."""
    body = guard_body(value=150)
    fixtures.guard(body)
    fixtures.guard(guard_body(value=150, params={"account_ref": body["params"]["account_ref"]}))
    budget = fixtures.one("select holds[1] from sentinel.operation_states limit 1")
    full = guard_body(value=150, params={"account_ref": body["params"]["account_ref"]})
    with psycopg.connect(fixtures.url) as other, ThreadPoolExecutor(2) as threads:
        other.execute("select pg_advisory_xact_lock(%s)", [budget])
        asked = threads.submit(record_decisions, fixtures.authority.pool, rows_of(fixtures, [full]), PATIENT_SECONDS)
        wait_until(lambda: fixtures.one(WAITING) == 1)
        halted = threads.submit(halt, fixtures, "tenant", "")
        wait_until(lambda: fixtures.one(WAITING) == 2)
        other.commit()
        asked.result(60), halted.result(60)
    log: list[str] = fixtures.one(
        "select array_agg(coalesce(body::json ->> 'reason_code', kind) order by transaction_id, occurred_at, event_id)"
        " from sentinel.events where kind in ('decision', 'halt_set')"
    )
    return log[2:]


def test_what_is_decided_in_a_second_try_keeps_a_halt_waiting_from_the_first_on(fixtures: Fixtures) -> None:
    """Its first try gave it its place in the log: what a halt refused would stand before the halt."""
    assert decided_beside_a_halt(fixtures) == ["limit_exceeded", "halt_set"]
    assert fixtures.broken_invariants() == []


def test_mutant_whose_first_try_has_the_halt_lock_to_itself_is_caught(fixtures: Fixtures) -> None:
    taken = "perform pg_advisory_xact_lock_shared(sentinel.halt_lock());"
    mutants.cut(fixtures, "sentinel.record_decisions", taken)
    mutants.cut(
        fixtures,
        "sentinel.record_one",
        "perform sentinel.take_locks(locks",
        f"{taken} perform sentinel.take_locks(locks",
    )
    assert decided_beside_a_halt(fixtures) == ["halted", "halt_set"]


def test_a_start_that_waits_for_the_halt_lock_has_written_nothing(fixtures: Fixtures) -> None:
    body = body_of()
    permit = fixtures.guard(body)
    with psycopg.connect(fixtures.url) as other, ThreadPoolExecutor(1) as thread:
        other.execute("select sentinel.take_halt_lock()")
        asked = thread.submit(fixtures.start, body, permit)
        assert waits_without_a_number(fixtures)
        other.commit()
        assert asked.result(60).status_code == 200


def test_mutant_that_starts_without_the_halt_lock_starts_under_a_halt_and_is_caught(database_url: str) -> None:
    fixtures = make_fixtures(database_url)
    try:
        mutants.without_locks(fixtures, "pg_advisory_xact_lock_shared")
        mutants.meet_before(fixtures.admin, "sentinel.judge_start", "e := sentinel.start_event(")

        def halt_meanwhile() -> int:
            mutants.wait_for_arrivals(fixtures, 1)
            halt(fixtures, "tenant", "")
            starts: int = fixtures.one(PASSED)[0]
            mutants.arrive(fixtures)
            return starts

        with desks(fixtures, 1) as (desk,):
            body = body_of()
            permit = desk.guard(body)
            started, before = at_once([lambda: desk.start(body, permit), halt_meanwhile])
        assert getattr(started, "result", started) == "started"
        assert fixtures.one(PASSED)[0] == before + 1, "a start was committed under a halt"
    finally:
        fixtures.close()


@pytest.mark.parametrize("scope, target", SCOPES)
def test_a_halt_of_every_scope_refuses_guard_start_renewal_and_replay_until_it_is_lifted(
    fixtures: Fixtures, scope: str, target: str
) -> None:
    waiting, fresh = body_of(), body_of()
    permit = fixtures.guard(waiting)
    halt_id = halt(fixtures, scope, target)

    refused = fixtures.guard(fresh)
    assert (refused["decision"], refused["status"], refused["reason_code"]) == ("DENY", "denied", "halted")
    assert "permit_token" not in refused
    start = fixtures.start(waiting, permit)
    assert (start.status_code, start.get_json()["type"]) == (403, "urn:sentinel:problem:permit-refused")
    replay = fixtures.guard(waiting)
    assert (replay["decision"], replay["reason_code"], "permit_token" in replay) == ("DENY", "halted", False)
    check = fixtures.post("action/check", {k: waiting[k] for k in ("agent_id", "action", "params")}).get_json()
    assert (check["decision"], check["reason_code"]) == ("DENY", "halted")

    lift(fixtures, halt_id)
    again = fixtures.guard(waiting)
    assert (again["status"], again["permit_token"]) == ("allowed", permit["permit_token"])
    assert fixtures.start(waiting, again).status_code == 200
    assert fixtures.guard(fresh)["status"] == "denied", "what was denied stays denied for its key"
    assert fixtures.guard(body_of())["decision"] == "ALLOW"
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize(
    "scope, target, heartbeat", [("tenant", "", "KILL"), ("agent", AGENT, "KILL"), ("action", ACTION, "OK")]
)
def test_the_heartbeat_mirrors_what_covers_the_whole_agent(
    fixtures: Fixtures, scope: str, target: str, heartbeat: str
) -> None:
    assert fixtures.get(f"heartbeat?agent_id={AGENT}").get_json() == {"status": "OK"}
    halt(fixtures, scope, target, "pause")
    wanted = "PAUSE" if heartbeat == "KILL" else "OK"
    assert fixtures.get(f"heartbeat?agent_id={AGENT}").get_json()["status"] == wanted
    halt(fixtures, scope, target)
    assert fixtures.get(f"heartbeat?agent_id={AGENT}").get_json()["status"] == heartbeat


OTHERS = [
    ("agent", "another-agent"),
    ("action", "refund.creat"),
    ("action", "refun.*"),
    ("action", "refun_.*"),
    ("action", "refund.create.*"),
    ("action", "refund_create"),
    ("scenario", "other"),
]


@pytest.mark.parametrize("scope, target", OTHERS)
def test_a_halt_covers_nothing_but_its_target(fixtures: Fixtures, scope: str, target: str) -> None:
    halt(fixtures, scope, target)
    body = body_of()
    assert fixtures.start(body, fixtures.guard(body)).status_code == 200


def test_a_tenants_halt_leaves_other_tenants_alone_and_a_global_one_does_not(fixtures: Fixtures) -> None:
    _, key, _ = add_tenant(fixtures.url, unique("tenant").replace("_", "-"))
    halt(fixtures, "tenant", "")
    assert fixtures.post("action/guard", body_of(), key=key).get_json()["decision"] == "ALLOW"
    halt(fixtures, "global", "")
    assert fixtures.post("action/guard", body_of(), key=key).get_json()["reason_code"] == "halted"


def test_a_pause_stops_as_much_as_a_kill(fixtures: Fixtures) -> None:
    halt(fixtures, "agent", AGENT, "pause")
    assert fixtures.guard(body_of())["reason_code"] == "halted"


def test_a_kill_replaces_a_pause_without_a_gap_and_both_are_recorded(fixtures: Fixtures) -> None:
    first, second = halt(fixtures, "agent", AGENT, "pause"), halt(fixtures, "agent", AGENT, "kill")
    assert first != second
    assert halt(fixtures, "agent", AGENT, "kill") == second, "a second one finds the first"
    assert halt(fixtures, "agent", AGENT, "pause") == second, "a pause does not weaken a kill"
    assert fixtures.one("select count(*) from sentinel.halts where lifted_at is null") == 1
    assert fixtures.one("select count(*) from sentinel.events where kind = 'halt_set'") == 2


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_halt_whose_answer_was_lost_is_told_as_set_now(fixtures: Fixtures, is_committed: bool) -> None:
    """The finding: the second try found the first one's halt, and who had set it was told that nothing changed."""
    lost = LosesConnection(fixtures.console_pool, is_committed=is_committed)
    admin = local_administrator(fixtures.tenant_id)
    done = set_halt(lost, admin, scope="agent", target=AGENT, reason="drill")  # type: ignore[arg-type]
    assert fixtures.admin.execute("select halt_id from sentinel.halts").fetchall() == [(done.halt_id,)]
    assert not done.already
    again = set_halt(fixtures.console_pool, admin, scope="agent", target=AGENT, reason="drill")
    assert (again.halt_id, again.already) == (done.halt_id, True)


def test_a_started_operation_reports_under_a_halt(fixtures: Fixtures) -> None:
    body = body_of()
    answer = fixtures.guard(body)
    request = start_body(body, answer)
    assert fixtures.post("action/guard/start", request).status_code == 200
    halt(fixtures, "tenant", "")
    assert fixtures.post("action/guard/start", request).get_json()["duplicate"] is True
    assert fixtures.report(body).status_code == 200
    assert fixtures.broken_invariants() == []


def test_a_caller_without_a_start_step_gets_nothing_under_a_halt(fixtures: Fixtures) -> None:
    from tests.support.fixtures import four_keys

    body = four_keys(body_of())
    halt(fixtures, "action", "refund.*")
    assert fixtures.guard(body)["reason_code"] == "halted"
    assert fixtures.one("select count(*) from sentinel.events where kind = 'start'") == 0


def test_an_agent_key_has_no_way_to_set_or_lift_a_halt(fixtures: Fixtures) -> None:
    halt_id = halt(fixtures, "agent", "another-agent")
    before = dump(fixtures.admin)
    for path in ("halts", "halts/set", f"halts/{halt_id}/lift", "action/halt"):
        assert fixtures.post(path, {"scope": "tenant"}).status_code == 404
    assert dump(fixtures.admin) == before

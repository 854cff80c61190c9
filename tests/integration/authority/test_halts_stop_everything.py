"""G12: from its commit on a halt stops every decision and every permit that is not redeemed, whatever is in flight."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from typing import Any

import pytest

from sentinel.authority.actor import local_administrator
from sentinel.authority.halts import lift_halt, set_halt
from tests import twins
from tests.support.harness import Desk, at_once, desks, dump, scaled
from tests.support.world import ACTION, AGENT, World, add_tenant, guard_body, make_world, start_body, unique

SCOPES = [
    ("global", ""),
    ("tenant", ""),
    ("agent", AGENT),
    ("action", ACTION),
    ("action", "refund.*"),
    ("scenario", "demo"),
]


def halt(world: World, scope: str, target: str, level: str = "kill") -> Any:
    return set_halt(
        world.console_pool,
        local_administrator(world.tenant_id),
        scope=scope,
        target=target,
        level=level,
        reason="drill",
    ).halt_id


def lift(world: World, halt_id: Any) -> None:
    lift_halt(world.console_pool, local_administrator(world.tenant_id), halt_id, reason="over")


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
            thread.join(30)


PASSED = """
select array[count(*) filter (where kind = 'start'), count(*) filter (where body::json->>'decision' = 'ALLOW')]
from sentinel.events where kind in ('start', 'decision')
"""


def passed_a_halt(world: World, rounds: int, *, threads: int = 6) -> list[str]:
    """Sets and lifts halts of every scope under load; what was committed while one was in force. The checker of G12."""
    found = []
    with desks(world, 2) as bench, Load(bench, threads) as load:
        for turn in range(rounds):
            time.sleep(0.05)
            halt_id = halt(world, *SCOPES[turn % len(SCOPES)])
            at_first = world.one(PASSED)
            time.sleep(0.06)
            starts, allowed = (later - first for later, first in zip(world.one(PASSED), at_first, strict=True))
            lift(world, halt_id)
            found += ["a start was committed under a halt"] * starts + ["an ALLOW was committed under a halt"] * allowed
    found += [repr(error) for error in load.unexpected]
    if at_first[0] < rounds:
        found.append("nothing ran")
    return found + started_after_a_halt(world) + world.broken_invariants()


def started_after_a_halt(world: World) -> list[str]:
    """Starts and allowed decisions whose transaction is between that of a halt and that of its end."""
    events = world.admin.execute(
        "select kind, body::json->>'decision' from sentinel.events order by transaction_id, kind"
    ).fetchall()  # fmt: skip
    found, in_force = [], 0
    for kind, decision in events:
        in_force += (kind == "halt_set") - (kind == "halt_lifted")
        if in_force > 0 and (kind == "start" or decision == "ALLOW"):
            found.append(f"a {kind} came between a halt and its end")
    return found


def test_nothing_starts_or_is_allowed_after_a_halts_commit_under_load(world: World) -> None:
    rounds = scaled(12)
    print(f"N={rounds} flips")
    assert passed_a_halt(world, rounds) == []


def test_twin_that_starts_without_the_halt_lock_starts_under_a_halt_and_is_caught(database_url: str) -> None:
    world = make_world(database_url)
    try:
        twins.without_locks(world, "pg_advisory_xact_lock_shared")
        twins.meet_before(world.admin, "sentinel.start_operation", "e := sentinel.start_event(")

        def halt_meanwhile() -> int:
            twins.wait_for_arrivals(world, 1)
            halt(world, "tenant", "")
            starts: int = world.one(PASSED)[0]
            twins.arrive(world)
            return starts

        with desks(world, 1) as (desk,):
            body = body_of()
            permit = desk.guard(body)
            started, before = at_once([lambda: desk.start(body, permit), halt_meanwhile])
        assert getattr(started, "result", started) == "started"
        assert world.one(PASSED)[0] == before + 1, "a start was committed under a halt"
    finally:
        world.close()


@pytest.mark.parametrize("scope, target", SCOPES)
def test_a_halt_of_every_scope_refuses_guard_start_renewal_and_replay_until_it_is_lifted(
    world: World, scope: str, target: str
) -> None:
    waiting, fresh = body_of(), body_of()
    permit = world.guard(waiting)
    halt_id = halt(world, scope, target)

    refused = world.guard(fresh)
    assert (refused["decision"], refused["status"], refused["reason_code"]) == ("DENY", "denied", "halted")
    assert "permit_token" not in refused
    start = world.start(waiting, permit)
    assert (start.status_code, start.get_json()["type"]) == (403, "urn:sentinel:problem:permit-refused")
    replay = world.guard(waiting)
    assert (replay["decision"], replay["reason_code"], "permit_token" in replay) == ("DENY", "halted", False)
    check = world.post("action/check", {k: waiting[k] for k in ("agent_id", "action", "params")}).get_json()
    assert (check["decision"], check["reason_code"]) == ("DENY", "halted")

    lift(world, halt_id)
    again = world.guard(waiting)
    assert (again["status"], again["permit_token"]) == ("allowed", permit["permit_token"])
    assert world.start(waiting, again).status_code == 200
    assert world.guard(fresh)["status"] == "denied", "what was denied stays denied for its key"
    assert world.guard(body_of())["decision"] == "ALLOW"
    assert world.broken_invariants() == []


@pytest.mark.parametrize(
    "scope, target, heartbeat", [("tenant", "", "KILL"), ("agent", AGENT, "KILL"), ("action", ACTION, "OK")]
)
def test_the_heartbeat_mirrors_what_covers_the_whole_agent(
    world: World, scope: str, target: str, heartbeat: str
) -> None:
    assert world.get(f"heartbeat?agent_id={AGENT}").get_json() == {"status": "OK"}
    halt(world, scope, target, "pause")
    wanted = "PAUSE" if heartbeat == "KILL" else "OK"
    assert world.get(f"heartbeat?agent_id={AGENT}").get_json()["status"] == wanted
    halt(world, scope, target)
    assert world.get(f"heartbeat?agent_id={AGENT}").get_json()["status"] == heartbeat


OTHERS = [
    ("agent", "another-agent"),
    ("action", "refund.creat"),
    ("action", "refun.*"),
    ("action", "refund.create.*"),
    ("action", "refund_create"),
    ("scenario", "other"),
]


@pytest.mark.parametrize("scope, target", OTHERS)
def test_a_halt_covers_nothing_but_its_target(world: World, scope: str, target: str) -> None:
    halt(world, scope, target)
    body = body_of()
    assert world.start(body, world.guard(body)).status_code == 200


def test_a_tenants_halt_leaves_other_tenants_alone_and_a_global_one_does_not(world: World) -> None:
    _, key, _ = add_tenant(world.url, unique("tenant").replace("_", "-"))
    halt(world, "tenant", "")
    assert world.post("action/guard", body_of(), key=key).get_json()["decision"] == "ALLOW"
    halt(world, "global", "")
    assert world.post("action/guard", body_of(), key=key).get_json()["reason_code"] == "halted"


def test_a_pause_stops_as_much_as_a_kill(world: World) -> None:
    halt(world, "agent", AGENT, "pause")
    assert world.guard(body_of())["reason_code"] == "halted"


def test_a_kill_replaces_a_pause_without_a_gap_and_both_are_recorded(world: World) -> None:
    first, second = halt(world, "agent", AGENT, "pause"), halt(world, "agent", AGENT, "kill")
    assert first != second
    assert halt(world, "agent", AGENT, "kill") == second, "a second one finds the first"
    assert halt(world, "agent", AGENT, "pause") == second, "a pause does not weaken a kill"
    assert world.one("select count(*) from sentinel.halts where lifted_at is null") == 1
    assert world.one("select count(*) from sentinel.events where kind = 'halt_set'") == 2


def test_a_started_operation_reports_under_a_halt(world: World) -> None:
    body = body_of()
    answer = world.guard(body)
    request = start_body(body, answer)
    assert world.post("action/guard/start", request).status_code == 200
    halt(world, "tenant", "")
    assert world.post("action/guard/start", request).get_json()["duplicate"] is True
    assert world.report(body).status_code == 200
    assert world.broken_invariants() == []


def test_a_caller_without_a_start_step_gets_nothing_under_a_halt(world: World) -> None:
    from tests.support.world import four_keys

    body = four_keys(body_of())
    halt(world, "action", "refund.*")
    assert world.guard(body)["reason_code"] == "halted"
    assert world.one("select count(*) from sentinel.events where kind = 'start'") == 0


def test_an_agent_key_has_no_way_to_set_or_lift_a_halt(world: World) -> None:
    halt_id = halt(world, "agent", "another-agent")
    before = dump(world.admin)
    for path in ("halts", "halts/set", f"halts/{halt_id}/lift", "action/halt"):
        assert world.post(path, {"scope": "tenant"}).status_code == 404
    assert dump(world.admin) == before

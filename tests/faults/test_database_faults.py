"""G18, G21, G22: a failing database never yields an ALLOW that is not committed, and loses none that was given."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sentinel.authority.api import identity
from sentinel.authority.app import build_authority, create_app
from sentinel.authority.settings import Settings
from sentinel.core.errors import EngineUnavailable
from sentinel.platform.http.rate_limit import SharedRateLimit
from sentinel.platform.resources import policies_dir
from sentinel.policy.library import ReloadablePolicies
from sentinel.store import database
from sentinel.store.database import AUTHORITY, Pool, with_role
from sentinel.store.embedded import Embedded
from sentinel.store.queries import changed
from sentinel.store.safety import database_status
from tests import mutants
from tests.faults.database_proxy import DatabaseProxy, proxied
from tests.support.asgi_client import InProcessApp
from tests.support.fixtures import SECRET, Fixtures, four_keys, guard_body, make_fixtures, start_body, unique
from tests.support.harness import at_once, decide, scaled
from tests.support.kept_sessions import SESSIONS
from tests.support.scripted_server import SLACK
from tests.support.served_programs import eventually

Body = dict[str, Any]


def fresh(**over: Any) -> Body:
    return guard_body(value=1, params={"account_ref": unique("acct")}, **over)


@contextmanager
def seated(fixtures: Fixtures, url: str, **over: Any) -> Iterator[Fixtures]:
    """The fixtures, its authority now reaching the database by another way."""
    settings = Settings(database_url=url, secret_keys=(SECRET,), **{"pool_size": 8, **over})
    authority = build_authority(settings, ReloadablePolicies(policies_dir()))
    kept = fixtures.authority, fixtures.app, fixtures.client
    limit = SharedRateLimit(per_second=100_000, burst=100_000)
    fixtures.authority, fixtures.app = authority, InProcessApp(create_app(settings, authority, limit))
    fixtures.client = fixtures.app.test_client()
    try:
        yield fixtures
    finally:
        fixtures.app.close()
        fixtures.authority, fixtures.app, fixtures.client = kept
        authority.pool.close()


@pytest.fixture
def behind(fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Fixtures, DatabaseProxy]]:
    """A set of fixtures whose authority reaches the database through a proxy, warmed up so that the next query is the one meant.

    A key that was found stays known, however slow the machine: looking it up anew would use up what the proxy was ordered.
    """
    monkeypatch.setattr(identity, "_REMEMBER_SECONDS", math.inf)
    monkeypatch.setattr(identity, "_REFRESH_SECONDS", math.inf)
    with proxied(fixtures.url) as proxy, seated(fixtures, proxy.url(fixtures.url)):
        fixtures.guard(fresh())
        yield fixtures, proxy


UNCHANGING = "update sentinel.sequencer set restart_at = restart_at"
"""A write, for its own sake."""


def ask(fixtures: Fixtures, body: Body, path: str = "action/guard") -> Any:
    return fixtures.app.test_client().post(f"/api/sentinel/{path}", json=body, headers={"X-API-Key": fixtures.key})


def is_closed(answer: Any) -> bool:
    """Whether an answer is the 503 that a careless client reads as a DENY."""
    told = answer.get_json()
    return (
        answer.status_code == 503 and answer.headers["Retry-After"] == "1" and answer.mimetype == "application/problem+json"
        and (told["decision"], told["reason_code"], told["retryable"]) == ("DENY", "engine_unavailable", True)
        and "ALLOW" not in answer.text and "permit" not in answer.text and "/tmp" not in answer.text
    )  # fmt: skip


def decisions_of(admin: psycopg.Connection[Any], body: Body) -> int:
    """How many operations and decisions a key has: 0 or 1, whatever happened."""
    row = admin.execute(
        "select count(*) from sentinel.operations o join sentinel.events e using (tenant_id, operation_id)"
        " where o.idempotency_key like %s and e.kind = 'decision'", [body["idempotency_key"] + "%"]).fetchone()  # fmt: skip
    assert row is not None
    return int(row[0])


def reconnect(fixtures: Fixtures) -> None:
    """The test's own connection, after its server was killed."""
    fixtures.admin.close()
    fixtures.admin = psycopg.connect(fixtures.url, autocommit=True)


def kill_and_wait(victim: Embedded, fixtures: Fixtures) -> None:
    """The server and all its backends gone; an orphaned backend may finish, and commit, what it has in hand."""
    pids = [
        pid
        for (pid,) in fixtures.admin.execute("select pid from pg_stat_activity where backend_type = 'client backend'")
    ]
    victim.kill()
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), within=10), (
        "a backend outlived its server"
    )


# The server goes away


def test_every_route_is_closed_while_the_server_is_dead_and_opens_by_itself(doomed: Fixtures, victim: Embedded) -> None:
    before, body = fresh(), fresh()
    permit = doomed.guard(before)
    kill_and_wait(victim, doomed)
    answers = [ask(doomed, body), doomed.start(before, permit), doomed.report(before)]
    answers.append(ask(doomed, {k: body[k] for k in ("agent_id", "action", "params")}, "action/check"))
    assert [is_closed(answer) for answer in answers] == [True] * 4, [answer.text for answer in answers]
    victim.start()
    assert doomed.guard(body)["decision"] == "ALLOW"
    assert doomed.guard(before)["permit_token"] == permit["permit_token"]
    assert doomed.start(before, permit).status_code == 200
    reconnect(doomed)
    assert decisions_of(doomed.admin, body) == 1
    assert doomed.broken_invariants() == []


def acknowledged(fixtures: Fixtures, victim: Embedded, least: int, bodies: list[Body]) -> dict[str, Body]:
    """Guards from eight threads; the server is killed once `least` were answered. The decisions that were given out, by key."""
    given: dict[str, Body] = {}
    wrong: list[str] = []
    killed = threading.Event()

    def run(mine: list[Body]) -> None:
        for body in mine:
            answer = ask(fixtures, body)
            if answer.status_code == 200:
                given[body["idempotency_key"]] = answer.get_json()
            elif not is_closed(answer):
                wrong.append(answer.text)
            if answer.status_code == 503 and killed.is_set():
                return

    threads = [threading.Thread(target=run, args=(bodies[place::8],), daemon=True) for place in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(given) >= least, within=20, every=0.005)
    killed.set()
    victim.kill()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    return given


def lost_after_kills(fixtures: Fixtures, victim: Embedded, cycles: int) -> tuple[int, int]:
    """(given out, of these gone or different after the restart), over some kills of the server under load."""
    total = lost = 0
    for cycle in range(cycles):
        bodies = [fresh() for _ in range(4000)]
        given = acknowledged(fixtures, victim, 40 + 17 * cycle, bodies)
        victim.start()
        with psycopg.connect(fixtures.url, autocommit=True) as admin:
            kept = {key: (str(event), decision) for key, event, decision in admin.execute(
                "select o.idempotency_key, s.decision_event_id, e.body::json->>'decision' from sentinel.operations o"
                " join sentinel.operation_states s using (tenant_id, operation_id)"
                " join sentinel.events e on e.tenant_id = s.tenant_id and e.event_id = s.decision_event_id")}  # fmt: skip
        total += len(given)
        lost += sum(kept.get(key) != (told["decision_event_id"], told["decision"]) for key, told in given.items())
    print(f"N={total} decisions given out, {cycles} kills")
    return total, lost


def test_no_decision_that_was_given_out_is_lost_when_the_server_is_killed_under_load(
    doomed: Fixtures, victim: Embedded
) -> None:
    total, lost = lost_after_kills(doomed, victim, scaled(3))
    assert lost == 0
    assert total >= 40 * scaled(3)
    reconnect(doomed)
    assert doomed.broken_invariants() == []
    assert doomed.guard(fresh())["decision"] == "ALLOW"


def test_mutant_that_does_not_wait_for_the_disk_loses_decisions_and_is_caught(
    doomed: Fixtures, victim: Embedded
) -> None:
    doomed.admin.execute(f"alter database {doomed.admin.info.dbname} set synchronous_commit = off".encode())
    with seated(doomed, doomed.url):
        for _ in range(6):
            if lost_after_kills(doomed, victim, 1)[1]:
                return
    pytest.fail("six kills with synchronous_commit = off lost nothing: the test cannot see a loss")


def test_connections_ended_under_load_cost_nobody_a_wrong_answer(fixtures: Fixtures) -> None:
    bodies = [fresh() for _ in range(scaled(240))]
    stop, ended = threading.Event(), [0]

    def shoot() -> None:
        while not stop.wait(0.03):
            shot = fixtures.admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'sentinel'"
            )
            ended[0] += shot.rowcount

    shooter = threading.Thread(target=shoot)
    shooter.start()
    try:
        answers = at_once(
            [lambda mine=bodies[place::8]: [(body, ask(fixtures, body)) for body in mine] for place in range(8)]
        )
    finally:
        stop.set()
        shooter.join()
    assert ended[0] > 0
    pairs = [pair for answer in answers for pair in answer]  # type: ignore[union-attr]
    given = {body["idempotency_key"]: answer.get_json() for body, answer in pairs if answer.status_code == 200}
    assert [answer.text for _, answer in pairs if answer.status_code != 200 and not is_closed(answer)] == []
    recorded = {key: str(event) for key, event in fixtures.admin.execute(
        "select o.idempotency_key, s.decision_event_id from sentinel.operations o join sentinel.operation_states s using (tenant_id, operation_id)")}  # fmt: skip
    assert {key: told["decision_event_id"] for key, told in given.items()}.items() <= recorded.items()
    for body, answer in pairs:
        if answer.status_code == 503:
            assert fixtures.guard(body)["decision"] == "ALLOW"
    assert fixtures.broken_invariants() == []


# The server refuses


def test_a_read_only_database_is_a_refusal_until_it_writes_again(fixtures: Fixtures) -> None:
    """The finding: connections that began meanwhile stayed read-only, and with them the authority, until a restart."""
    name = fixtures.admin.info.dbname
    body, before = fresh(), fresh()
    permit = fixtures.guard(before)
    fixtures.admin.execute(f"alter database {name} set default_transaction_read_only = on".encode())
    fixtures.admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'sentinel'")
    assert is_closed(ask(fixtures, body))
    assert is_closed(fixtures.start(before, permit))
    fixtures.admin.execute("set default_transaction_read_only = off")
    fixtures.admin.execute(f"alter database {name} reset default_transaction_read_only".encode())
    assert fixtures.guard(body)["decision"] == "ALLOW"
    assert fixtures.start(before, permit).status_code == 200
    assert decisions_of(fixtures.admin, body) == 1


@pytest.mark.parametrize(
    "use", [lambda pool: database_status(pool, AUTHORITY).writable, lambda pool: changed(pool, UNCHANGING, {}) == 1],
    ids=["readiness", "a write"],
)  # fmt: skip
def test_a_pool_that_connected_while_the_database_was_read_only_writes_after_it(
    fixtures: Fixtures, use: Callable[[Pool], bool]
) -> None:
    name = fixtures.admin.info.dbname
    pool = Pool(with_role(fixtures.url, AUTHORITY), size=1)
    SESSIONS.forget(name)  # or the pool would get one that began before
    fixtures.admin.execute(f"alter database {name} set default_transaction_read_only = on".encode())
    with suppress(EngineUnavailable):
        assert not use(pool)
    fixtures.admin.execute("set default_transaction_read_only = off")
    fixtures.admin.execute(f"alter database {name} reset default_transaction_read_only".encode())
    assert use(pool)
    pool.close()


def test_a_statement_that_takes_too_long_is_a_refusal_and_leaves_nothing(fixtures: Fixtures) -> None:
    mutants.slow_events(fixtures, 6)
    body = fresh()
    began = time.monotonic()
    assert is_closed(ask(fixtures, body))
    assert time.monotonic() - began < 9 + SLACK
    assert decisions_of(fixtures.admin, body) == 0
    fixtures.admin.execute("drop trigger dawdle on sentinel.event_rows")
    assert fixtures.guard(body)["decision"] == "ALLOW"
    assert fixtures.broken_invariants() == []


def test_a_key_that_somebody_else_holds_is_asked_again_later_and_others_go_on(fixtures: Fixtures) -> None:
    body = fresh()
    first = fixtures.guard(body)
    with psycopg.connect(fixtures.url) as other:
        other.execute("select from sentinel.operation_states for update")
        began = time.monotonic()
        waiting, free = at_once([lambda: ask(fixtures, body), lambda: ask(fixtures, fresh())])
        assert 1.5 < time.monotonic() - began < 6 + SLACK
    assert (waiting.status_code, waiting.get_json()["type"]) == (409, "urn:sentinel:problem:still-deciding")  # type: ignore[union-attr]
    assert waiting.headers["Retry-After"] == "1"  # type: ignore[union-attr]
    assert free.status_code == 200  # type: ignore[union-attr]
    assert fixtures.guard(body)["permit_token"] == first["permit_token"]


def test_a_table_that_cannot_be_written_is_no_permission(fixtures: Fixtures) -> None:
    body = fresh()
    with psycopg.connect(fixtures.url) as other:
        other.execute("lock table sentinel.event_rows in exclusive mode")
        answer = ask(fixtures, body)
    assert (answer.status_code, answer.get_json()["type"]) == (409, "urn:sentinel:problem:still-deciding")
    assert answer.headers["Retry-After"] == "1"
    assert "ALLOW" not in answer.text
    assert decisions_of(fixtures.admin, body) == 0
    assert fixtures.guard(body)["decision"] == "ALLOW"


@pytest.mark.parametrize("damage", [
    "revoke insert on sentinel.event_rows from sentinel_authority",
    "drop function sentinel.record_decisions",
    "alter table sentinel.event_rows add constraint never check (false) not valid",
    "alter table sentinel.budgets rename to used",
])  # fmt: skip
def test_a_damaged_schema_is_a_refusal_without_a_decision(fixtures: Fixtures, damage: str) -> None:
    fixtures.admin.execute(damage.encode())
    body = fresh()
    assert is_closed(ask(fixtures, body))
    assert decisions_of(fixtures.admin, body) == 0


# The way to the server


def test_a_lost_reply_to_a_commit_is_resolved_by_reading_the_key_again(behind: tuple[Fixtures, DatabaseProxy]) -> None:
    fixtures, proxy = behind
    for _ in range(scaled(5)):
        body = fresh()
        proxy.lose_replies = 1
        answer = ask(fixtures, body)
        assert (answer.status_code, answer.get_json()["decision"]) == (200, "ALLOW")
        assert decisions_of(fixtures.admin, body) == 1
    assert proxy.lost == scaled(5)
    assert fixtures.broken_invariants() == []


def by_itself(fixtures: Fixtures, body: Body) -> Any:
    return ask(fixtures, body).get_json()


def among_others(fixtures: Fixtures, body: Body) -> Any:
    answers = ask(fixtures, {"requests": [four_keys(fresh()), body]}, "action/guard/batch").get_json()
    return answers["answers"][1]["body"]


@pytest.mark.parametrize("asked", [by_itself, among_others])
@pytest.mark.parametrize("value", [1, 200])
def test_a_lost_reply_to_what_is_also_the_start_gives_the_permission_once(
    behind: tuple[Fixtures, DatabaseProxy], asked: Callable[[Fixtures, Body], Any], value: int
) -> None:
    """The finding: the second try found the start of the first, and `already_started` was the first answer ever: nobody had the permission."""
    fixtures, proxy = behind
    body = four_keys(guard_body(value=value, params={"account_ref": unique("acct")}))
    if value > 100:
        decide(fixtures, fixtures.guard(body)["approval_id"])
    proxy.lose_replies = 1
    told = asked(fixtures, body)
    assert proxy.lost == 1
    assert (told["status"], "permit_token" in told) == ("approved" if value > 100 else "allowed", True)
    assert asked(fixtures, body)["status"] == "already_started", "whoever asks again is another request"
    assert fixtures.one("select count(*) from sentinel.events where kind = 'start' and operation_id = %s", told["operation_id"]) == 1  # fmt: skip
    assert fixtures.report(body).status_code == 200
    assert fixtures.broken_invariants() == []


def test_a_lost_reply_to_an_evaluation_leaves_it_true_once(behind: tuple[Fixtures, DatabaseProxy]) -> None:
    fixtures, proxy = behind
    body = fresh()
    asked = {
        "subject": {"type": "agent", "id": body["agent_id"]}, "action": {"name": body["action"], "properties": body["params"]},
        "resource": {"type": "refund", "id": body["resource"]}, "context": {"idempotency_key": body["idempotency_key"]},
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {fixtures.key}"}
    proxy.lose_replies = 1
    told = [fixtures.client.post("/access/v1/evaluation", json=asked, headers=headers).json for _ in range(2)]
    assert [(one["decision"], one["context"]["status"]) for one in told] == [(True, "allowed"), (False, "already_started")]  # fmt: skip
    assert proxy.lost == 1


def test_a_commit_whose_every_reply_is_lost_is_refused_and_found_by_the_next_request(
    behind: tuple[Fixtures, DatabaseProxy],
) -> None:
    fixtures, proxy = behind
    body = fresh()
    proxy.lose_replies = 2
    assert is_closed(ask(fixtures, body))
    assert decisions_of(fixtures.admin, body) == 1, "it was committed all the same"
    again = ask(fixtures, body)
    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (200, "true")
    assert decisions_of(fixtures.admin, body) == 1
    assert fixtures.broken_invariants() == []


def test_mutant_that_does_not_know_the_key_decides_twice_after_a_lost_reply_and_is_caught(database_url: str) -> None:
    fixtures = make_fixtures(database_url)
    try:
        mutants.forgets_keys(fixtures)
        with proxied(fixtures.url) as proxy, seated(fixtures, proxy.url(fixtures.url)):
            fixtures.guard(fresh())
            body = fresh()
            proxy.lose_replies = 1
            assert is_closed(ask(fixtures, body)), "neither new nor known: nothing is told to be decided that way"
            assert decisions_of(fixtures.admin, body) == 1, "committed, and its reply lost"
            ask(fixtures, body)
            assert decisions_of(fixtures.admin, body) == 2
    finally:
        fixtures.close()


@pytest.mark.parametrize("order", ["lose_requests", "garble_replies"])
def test_a_request_or_reply_broken_on_the_way_leaves_one_decision_or_none(
    behind: tuple[Fixtures, DatabaseProxy], order: str
) -> None:
    fixtures, proxy = behind
    for times in (1, 2):
        body = fresh()
        setattr(proxy, order, times)
        answer = ask(fixtures, body)
        assert is_closed(answer) or (times == 1 and answer.get_json()["decision"] == "ALLOW"), answer.text
        setattr(proxy, order, 0)
        assert fixtures.guard(body)["decision"] == "ALLOW"
        assert decisions_of(fixtures.admin, body) == 1
    assert fixtures.broken_invariants() == []


def test_a_lost_reply_to_a_start_or_a_report_gives_the_same_receipt(behind: tuple[Fixtures, DatabaseProxy]) -> None:
    fixtures, proxy = behind
    body = fresh()
    request = start_body(body, fixtures.guard(body))
    proxy.lose_replies = 1
    started = ask(fixtures, request, "action/guard/start")
    assert started.status_code == 200, started.text
    proxy.lose_replies = 1
    assert fixtures.report(body).status_code == 200
    assert proxy.lost == 2
    again = ask(fixtures, request, "action/guard/start").get_json()
    assert again["start_event_id"] == started.get_json()["start_event_id"]
    assert fixtures.one("select count(*) from sentinel.events where kind = 'start'") == 1
    assert fixtures.one("select count(*) from sentinel.events where kind = 'outcome'") == 1
    assert fixtures.broken_invariants() == []


def test_a_server_that_falls_silent_is_a_refusal_within_bounds(
    behind: tuple[Fixtures, DatabaseProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    fixtures, proxy = behind
    body = fresh()
    with monkeypatch.context() as shipped:
        shipped.setattr(database, "SILENCE_SECONDS", 7.0)  # as it is
        proxy.black_hole.set()
        began = time.monotonic()
        answers = at_once([lambda: ask(fixtures, body), lambda: ask(fixtures, fresh())], seconds=120)
        took = time.monotonic() - began
        proxy.black_hole.clear()
    assert [is_closed(answer) for answer in answers] == [True, True], answers
    assert took < 20 + SLACK, "seven seconds, twice for who waited behind the first"
    assert fixtures.guard(body)["decision"] == "ALLOW"


def test_no_free_connection_is_a_refusal_within_seconds(fixtures: Fixtures) -> None:
    with seated(fixtures, fixtures.url, pool_size=1), fixtures.authority.pool.connection():
        began = time.monotonic()
        assert is_closed(ask(fixtures, fresh()))
        assert time.monotonic() - began < 5 + SLACK

"""G53: one agent cannot drain the till. A declared rate halts it by itself, totals stop what is slower, and only a person goes on."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sentinel.authority.actor import Actor
from sentinel.authority.decisions import Recorded
from sentinel.authority.engine import Caller
from sentinel.authority.guard import decided_row
from sentinel.authority.halts import heartbeat_status, lift_halt, list_halts, set_halt
from sentinel.authority.keys import DEFAULT_SCOPES, WORKER_SCOPES
from sentinel.authority.policies import declare_policies
from sentinel.core.operation import build_operation
from tests import mutants
from tests.integration.authority.test_halts_stop_everything import waits_without_a_number
from tests.support.commits import record_decisions
from tests.support.fixtures import AGENT, Fixtures, guard_body, make_fixtures, unique
from tests.support.harness import PATIENT_SECONDS, let_permits_expire
from tests.support.ledger_fixtures import wait_until
from tests.support.verbs import guarded

pytestmark = pytest.mark.usefixtures("patient")
POLICY = """\
policy: rated
label: Rated
version: rated-v1
actions: [refund.create, refund.other]
facts:
  amount:  {type: money, from: params.amount, vouched_by: agent}
  account: {type: string, from: params.account_ref, vouched_by: worker}
rules:
  - {id: small, says: The amount is small., when: amount_minor <= 15000, then: ALLOW, reason: small_amount}
limits:
  - {id: agent_hour, says: What one agent pays in an hour., window: rolling 1h, per: [agent, currency], cap: {USD: "%(hour)s"}, then: APPROVAL_REQUIRED, reason: total_exceeded}
  - {id: tenant_day, says: What all agents pay in a day., window: calendar_day, per: [tenant, currency], cap: {USD: "100000.00"}, then: DENY, reason: total_exceeded}
  - {id: key_day, says: What one key pays in a day., window: calendar_day, per: [key, currency], cap: {USD: "%(key)s"}, then: DENY, reason: key_exceeded}
breakers:
  - {id: agent_velocity, per: agent, window: 5m, count: %(count)s, amount: {USD: "%(amount)s"}, then: halt}
approval: {expires: 30m, role: approver, people: 1}
"""


def rated(
    folder: Path, *, count: int = 10, amount: str = "90000.00", hour: str = "90000.00", key: str = "90000.00"
) -> Path:
    (folder / "rated.yaml").write_text(POLICY % {"count": count, "amount": amount, "hour": hour, "key": key})
    return folder


def without_limits(*, count: int) -> str:
    """No budget's lock stands beside the breaker's."""
    lines = (POLICY % {"count": count, "amount": "90000.00", "hour": "1", "key": "1"}).splitlines(keepends=True)
    return "".join(
        line for line in lines if "window: rolling" not in line and "calendar_day" not in line and line != "limits:\n"
    )


@pytest.fixture
def ten(database_url: str, tmp_path: Path) -> Iterator[Fixtures]:
    """A set of fixtures whose agents may do ten operations in five minutes."""
    fixtures = make_fixtures(database_url, policies=rated(tmp_path))
    yield fixtures
    fixtures.close()


def callers(fixtures: Fixtures, scopes: tuple[str, ...] = WORKER_SCOPES) -> Caller:
    return Caller(fixtures.tenant_id, uuid.uuid4(), uuid.uuid4(), None, frozenset(scopes), None)


def operation(agent: str = AGENT, value: Any = "150.00", action: str = "refund.create") -> Any:
    """A refund of its own: a fresh key, account and refund id."""
    body = guard_body(value=value)
    return build_operation(
        agent_id=agent, action=action, idempotency_key=body["idempotency_key"], resource=body["resource"],
        risk_class="standard", params=body["params"],
    )  # fmt: skip


def ask(fixtures: Fixtures, caller: Caller | None = None, **over: Any) -> Recorded:
    return guarded(fixtures.authority, caller or callers(fixtures), operation(**over))


def verdicts(answers: list[Recorded]) -> list[tuple[str, str]]:
    return [(one.decision, one.reason_code) for one in answers]


def lift(fixtures: Fixtures, halt_id: uuid.UUID) -> None:
    person = Actor(fixtures.tenant_id, fixtures.operators["admin"], "admin@example.test", "admin", "test")
    lift_halt(fixtures.console_pool, person, halt_id=halt_id, reason="looked at it")


def test_sixty_refunds_to_fresh_accounts_from_one_key_are_stopped_by_the_shipped_policy(fixtures: Fixtures) -> None:
    """The finding: 60 ALLOWs, 9,000.00 in 2.5 s. N = 60."""
    answers = [fixtures.guard(guard_body(value="150.00")) for _ in range(60)]
    allowed = [answer for answer in answers if answer["decision"] == "ALLOW"]
    assert len(allowed) == 33, "5,000.00 in five minutes is declared: 33 of 150.00 fit"
    assert (answers[33]["decision"], answers[33]["reason_code"]) == ("DENY", "velocity_halted")
    assert {(one["decision"], one["reason_code"]) for one in answers[34:]} == {("DENY", "halted")}
    (halt,) = list_halts(fixtures.console_pool, fixtures.tenant_id)
    assert (halt.scope, halt.target, halt.level) == ("agent", AGENT, "pause")
    assert halt.set_by == "velocity breaker retail-refund/agent_velocity"
    assert halt.reason == "the next would pass 300 operations or 5000.00 USD in 5 minutes"
    assert heartbeat_status(fixtures.console_pool, fixtures.tenant_id, AGENT) == "PAUSE"
    assert fixtures.get(f"heartbeat?agent_id={AGENT}").get_json() == {"status": "PAUSE"}
    assert fixtures.broken_invariants() == []


def test_exactly_the_declared_count_passes_and_the_next_halts(ten: Fixtures) -> None:
    assert verdicts([ask(ten) for _ in range(12)]) == (
        [("ALLOW", "small_amount")] * 10 + [("DENY", "velocity_halted"), ("DENY", "halted")]
    )
    assert ten.one("select count(*) from sentinel.events where kind = 'halt_set'") == 1
    event = ten.one("select body from sentinel.events where kind = 'halt_set'")
    assert "velocity breaker rated/agent_velocity" in event
    assert ten.broken_invariants() == []


def test_exactly_the_declared_amount_passes_and_a_minor_unit_more_halts(database_url: str, tmp_path: Path) -> None:
    fixtures = make_fixtures(database_url, policies=rated(tmp_path, count=1000, amount="300.00"))
    try:
        assert verdicts([ask(fixtures, value=v) for v in ("150.00", "149.99", "0.01", "0.01")]) == (
            [("ALLOW", "small_amount")] * 3 + [("DENY", "velocity_halted")]
        )
    finally:
        fixtures.close()


@pytest.fixture
def two_currencies(database_url: str, tmp_path: Path) -> Iterator[Fixtures]:
    """A set of fixtures whose agents may do ten operations and pay 300.00 USD and 300.00 EUR in five minutes."""
    file = rated(tmp_path, amount="300.00") / "rated.yaml"
    file.write_text(re.sub(r'\{USD: ("[\d.]+")\}', r"{USD: \1, EUR: \1}", file.read_text()))
    with closing(make_fixtures(database_url, policies=tmp_path)) as fixtures:
        yield fixtures


def in_one_batch(fixtures: Fixtures, *amounts: tuple[str, str], agent: str = AGENT) -> list[tuple[str, str]]:
    """The verdicts on operations that come in one batch, in the order of their keys."""
    rows = []
    for place, (value, currency) in enumerate(amounts):
        body = guard_body(value=value)
        asked = build_operation(
            agent_id=agent, action="refund.create", idempotency_key=f"{place:02}_{unique('k')}", risk_class="standard",
            params=body["params"] | {"amount": {"value": value, "currency": currency}},
        )  # fmt: skip
        rows.append(decided_row(fixtures.authority, callers(fixtures), asked, has_start_step=True, elapsed_ms=0))
    return verdicts(list(record_decisions(fixtures.authority.pool, rows)))


def test_two_currencies_of_a_batch_share_the_declared_count(two_currencies: Fixtures) -> None:
    allowed, small = ("ALLOW", "small_amount"), [("1.00", "USD"), ("1.00", "EUR")]
    assert in_one_batch(two_currencies, *small * 4) == [allowed] * 8
    assert in_one_batch(two_currencies, *small * 2) == [allowed] * 2 + [("DENY", "velocity_halted"), ("DENY", "halted")]
    assert two_currencies.broken_invariants() == []


def test_each_currency_of_a_batch_has_the_declared_amount(two_currencies: Fixtures) -> None:
    allowed = ("ALLOW", "small_amount")
    assert in_one_batch(two_currencies, ("150.00", "USD"), ("150.00", "EUR"), ("149.99", "EUR")) == [allowed] * 3
    assert in_one_batch(two_currencies, ("0.01", "EUR"), ("150.00", "USD"), ("0.01", "EUR")) == (
        [allowed] * 2 + [("DENY", "velocity_halted")]
    )
    assert two_currencies.broken_invariants() == []


def test_another_agent_goes_on(ten: Fixtures) -> None:
    for _ in range(11):
        ask(ten)
    assert ask(ten, agent="other-agent").decision == "ALLOW"


def test_what_is_refused_or_asked_of_a_person_is_no_rate(database_url: str, tmp_path: Path) -> None:
    fixtures = make_fixtures(database_url, policies=rated(tmp_path, count=3, hour="100.00"))
    try:
        assert {one.decision for one in [ask(fixtures) for _ in range(20)]} == {"APPROVAL_REQUIRED"}
        assert list_halts(fixtures.console_pool, fixtures.tenant_id) == []
    finally:
        fixtures.close()


def test_a_replay_counts_once(ten: Fixtures) -> None:
    same = operation()
    caller = callers(ten)
    for _ in range(30):
        assert guarded(ten.authority, caller, same).decision == "ALLOW"
    assert ten.one("select sum(operations) from sentinel.velocity") == 1


def collected(fixtures: Fixtures, *, rounds: int, each: int) -> list[dict[str, Any]]:
    """So many operations in each of so many windows of five minutes, allowed one by one and left to run out."""
    bodies = []
    for _ in range(rounds):
        for _ in range(each):
            bodies.append(guard_body(value="1.00"))
            assert fixtures.guard(bodies[-1])["decision"] == "ALLOW"
        let_permits_expire(fixtures)
        fixtures.run_housekeeping()
        # In two steps: rows of one breaker would meet each other on the way.
        for table, column, passed in (
            ("velocity", "bucket", "-1000 days"), ("velocity", "bucket", "1000 days 10 minutes"), ("operation_rows", "created_at", "10 minutes"),
            ("event_rows", "occurred_at", "10 minutes"),
        ):  # fmt: skip
            fixtures.admin.execute(
                f"set session_replication_role = replica; update sentinel.{table} set {column} = {column} - interval '{passed}';"
                " reset session_replication_role".encode()
            )
    return bodies


def renewed_and_started(fixtures: Fixtures, bodies: list[dict[str, Any]]) -> int:
    """How many of them are started when all are asked for again at once."""
    return sum(
        fixtures.post("action/guard", {**body, "start_id": str(uuid.uuid4())}).get_json().get("start") is not None
        for body in bodies
    )


def test_what_was_collected_over_an_hour_is_not_set_in_motion_at_once(database_url: str, tmp_path: Path) -> None:
    """The finding: nine of three in five minutes."""
    fixtures = make_fixtures(database_url, policies=rated(tmp_path, count=3))
    try:
        bodies = collected(fixtures, rounds=3, each=3)
        assert renewed_and_started(fixtures, bodies) == 3
        (halt,) = list_halts(fixtures.console_pool, fixtures.tenant_id)
        assert halt.set_by == "velocity breaker rated/agent_velocity"
        answer = fixtures.guard(bodies[-1])
        assert (answer["decision"], answer["reason_code"]) == ("DENY", "halted")
        lift(fixtures, halt.halt_id)
        assert renewed_and_started(fixtures, bodies[3:]) == 3, (
            "after a person lifted it the others may be asked for again"
        )
        assert fixtures.broken_invariants() == ["proof_altered"], (
            "the decisions whose time was set back here, and nothing else"
        )
    finally:
        fixtures.close()


def test_mutant_that_renews_without_counting_is_caught(database_url: str, tmp_path: Path) -> None:
    fixtures = make_fixtures(database_url, policies=rated(tmp_path, count=3))
    try:
        mutants.cut(
            fixtures,
            "sentinel.renew_permit",
            "if s.approval_id is null then\n    ask.breakers",
            "if false then\n    ask.breakers",
        )
        assert renewed_and_started(fixtures, collected(fixtures, rounds=3, each=3)) == 9
    finally:
        fixtures.close()


def test_a_permit_renewed_while_its_decision_still_counts_is_counted_once(ten: Fixtures) -> None:
    body = guard_body(value="1.00")
    for _ in range(15):
        assert ten.guard(body)["decision"] == "ALLOW"
        let_permits_expire(ten)
    assert ten.one("select sum(operations) from sentinel.velocity") == 1


def aged(fixtures: Fixtures, minutes: int) -> None:
    """All that breakers have counted so far, and what was decided, was so many minutes earlier."""
    passed = f"interval '{minutes} minutes'"
    fixtures.admin.execute(
        "set session_replication_role = replica;"
        # In two steps: rows of one breaker would meet each other on the way.
        " update sentinel.velocity set bucket = bucket + interval '1000 days';"
        f" update sentinel.velocity set bucket = bucket - interval '1000 days' - {passed};"
        f" update sentinel.operation_rows set created_at = created_at - {passed};"
        f" update sentinel.event_rows set occurred_at = occurred_at - {passed};"
        " update sentinel.operation_states set counted_at = (select jsonb_object_agg(key, value::timestamptz - "
        f"{passed}) from jsonb_each_text(counted_at)); reset session_replication_role".encode()
    )


def renewed(fixtures: Fixtures, body: dict[str, Any], times: int) -> int:
    """What breakers have counted once its permit ran out and was renewed so often."""
    for _ in range(times):
        let_permits_expire(fixtures)
        assert fixtures.guard(body)["decision"] == "ALLOW"
    return int(fixtures.one("select sum(operations) from sentinel.velocity"))


def test_a_permit_that_is_renewed_often_is_counted_once_in_each_window(database_url: str, tmp_path: Path) -> None:
    """The finding: once its decision had left the window each renewal counted, and halted an agent that set nothing in motion."""
    fixtures = make_fixtures(database_url, policies=rated(tmp_path, count=3))
    try:
        body = guard_body(value="1.00")
        assert fixtures.guard(body)["decision"] == "ALLOW"
        for window in (1, 2, 3):
            assert renewed(fixtures, body, 5) == window
            aged(fixtures, 10)
        assert list_halts(fixtures.console_pool, fixtures.tenant_id) == []
    finally:
        fixtures.close()


def test_each_breaker_has_its_own_last_count_of_a_permit(database_url: str, tmp_path: Path) -> None:
    """What the shorter window counted again is in the longer one from its decision on, and no longer."""
    longer = '  - {id: hourly, per: agent, window: 60m, count: 100, amount: {USD: "90000.00"}, then: halt}\napproval:'
    text = (rated(tmp_path) / "rated.yaml").read_text()
    (tmp_path / "rated.yaml").write_text(text.replace("approval:", longer))
    fixtures = make_fixtures(database_url, policies=tmp_path)
    try:
        body = guard_body(value="1.00")
        assert fixtures.guard(body)["decision"] == "ALLOW"
        counted = []
        for minutes in (50, 20):
            aged(fixtures, minutes)
            renewed(fixtures, body, 2)
            counted.append(dict(fixtures.admin.execute(
                "select split_part(breaker_key, '|', 1), sum(operations)::int from sentinel.velocity group by 1"
            ).fetchall()))  # fmt: skip
        assert counted == [
            {"rated/agent_velocity": 2, "rated/hourly": 1},
            {"rated/agent_velocity": 3, "rated/hourly": 2},
        ]
    finally:
        fixtures.close()


@contextmanager
def before_the_breaker(database_url: str, folder: Path) -> Iterator[tuple[Fixtures, Callable[[], None]]]:
    """Under a policy that has no breaker yet, and what puts the one that has it in force."""
    text = (rated(folder, count=3) / "rated.yaml").read_text()
    (folder / "rated.yaml").write_text(text.partition("breakers:")[0] + "approval:" + text.partition("approval:")[2])
    fixtures = make_fixtures(database_url, policies=folder)
    try:
        yield fixtures, lambda: reload_as(fixtures, folder, text.replace("rated-v1", "rated-v2"))
    finally:
        fixtures.close()


def test_what_was_renewed_under_a_policy_without_the_breaker_before_counts_once(
    database_url: str, tmp_path: Path
) -> None:
    with before_the_breaker(database_url, tmp_path) as (fixtures, begin):
        body = guard_body(value="1.00")
        assert fixtures.guard(body)["decision"] == "ALLOW"
        begin()
        assert renewed(fixtures, body, 5) == 1


def started_after_a_lift(fixtures: Fixtures) -> int:
    """How many of three permissions that ran out unused and of three new ones start, once a person has lifted the breaker's halt."""
    bodies = [guard_body(value="1.00") for _ in range(3)]
    assert [fixtures.guard(body)["decision"] for body in bodies] == ["ALLOW"] * 3
    assert fixtures.guard(guard_body(value="1.00"))["reason_code"] == "velocity_halted"
    (halt,) = list_halts(fixtures.console_pool, fixtures.tenant_id)
    lift(fixtures, halt.halt_id)
    let_permits_expire(fixtures)
    return renewed_and_started(fixtures, bodies + [guard_body(value="1.00") for _ in range(3)])


def test_what_was_decided_before_a_lift_counts_when_it_is_renewed_after_it(database_url: str, tmp_path: Path) -> None:
    """Counting began anew: what was counted before is counted nowhere any more."""
    fixtures = make_fixtures(database_url, policies=rated(tmp_path, count=3))
    try:
        assert started_after_a_lift(fixtures) == 3
        assert fixtures.one("select sum(operations) from sentinel.velocity") == 3
        assert [halt.set_by for halt in list_halts(fixtures.console_pool, fixtures.tenant_id)] == [
            "velocity breaker rated/agent_velocity"
        ]
        assert fixtures.broken_invariants() == []
    finally:
        fixtures.close()


def test_a_lift_for_another_agent_counts_nothing_again(ten: Fixtures) -> None:
    body = guard_body(value="1.00")
    assert ten.guard(body)["decision"] == "ALLOW"
    person = Actor(ten.tenant_id, ten.operators["admin"], "admin@example.test", "admin", "test")
    for scope, target in (("agent", "another-agent"), ("action", "refund.create"), ("tenant", "")):
        set_halt(ten.console_pool, person, scope=scope, target=target, reason="look")
        lift(ten, list_halts(ten.console_pool, ten.tenant_id)[0].halt_id)
    let_permits_expire(ten)
    assert ten.guard(body)["decision"] == "ALLOW"
    assert ten.one("select sum(operations) from sentinel.velocity") == 1


def test_what_waited_for_a_lift_and_was_counted_after_it_is_not_counted_again(ten: Fixtures) -> None:
    """It was asked before the lift, and counted behind it: what the lift took away was not its count."""
    for _ in range(3):
        body, got = asked_while_a_halt_is_lifted(ten)
        # Who stood still in the queue for longer than one waits for a lock is told to come back, and counts for nothing.
        if got["type"] != "urn:sentinel:problem:still-deciding":
            break
    assert got["decision"] == "ALLOW"
    let_permits_expire(ten)
    assert ten.guard(body)["decision"] == "ALLOW"
    assert ten.one("select sum(operations) from sentinel.velocity") == 1


def asked_while_a_halt_is_lifted(ten: Fixtures) -> tuple[dict[str, Any], dict[str, Any]]:
    """A question that waits for the lift of a halt, and its answer; "type" is a refusal's."""
    person = Actor(ten.tenant_id, ten.operators["admin"], "admin@example.test", "admin", "test")
    halt = set_halt(ten.console_pool, person, scope="agent", target=AGENT, reason="look")
    body, got = guard_body(value="1.00"), dict[str, Any]()

    def ask() -> None:
        got.update({"type": "", **ten.post("action/guard", body).get_json()})

    with psycopg.connect(ten.url) as lifting:
        lifting.execute("select sentinel.take_halt_lock()")
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        waits = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        wait_until(lambda: ten.one(waits) or got, 60)
        lifting.execute(
            "select sentinel.lift_halt(%s, %s, 'a person', 'looked', gen_random_uuid())", [ten.tenant_id, halt.halt_id]
        )
    asking.join(60)
    return body, got


def reload_as(fixtures: Fixtures, folder: Path, text: str) -> None:
    """The policy has this text from now on."""
    (folder / "rated.yaml").write_text(text)
    fixtures.authority.policies.reload()
    declare_policies(fixtures.authority)


def test_what_was_decided_before_there_was_a_breaker_counts_when_it_is_renewed(
    database_url: str, tmp_path: Path
) -> None:
    with before_the_breaker(database_url, tmp_path) as (fixtures, begin):
        bodies = [guard_body(value="1.00") for _ in range(5)]
        assert [fixtures.guard(body)["decision"] for body in bodies] == ["ALLOW"] * 5
        begin()
        let_permits_expire(fixtures)
        assert renewed_and_started(fixtures, bodies) == 3
        assert fixtures.broken_invariants() == []


def test_a_renewal_under_another_text_with_the_same_breaker_is_counted_once(database_url: str, tmp_path: Path) -> None:
    fixtures = make_fixtures(database_url, policies=rated(tmp_path, count=3))
    try:
        body = guard_body(value="1.00")
        assert fixtures.guard(body)["decision"] == "ALLOW"
        text = (tmp_path / "rated.yaml").read_text()
        reload_as(fixtures, tmp_path, text.replace("rated-v1", "rated-v2"))
        let_permits_expire(fixtures)
        assert fixtures.guard(body)["decision"] == "ALLOW"
        assert fixtures.one("select sum(operations) from sentinel.velocity") == 1
    finally:
        fixtures.close()


def test_mutant_that_counts_no_renewal_after_a_lift_is_caught(database_url: str, tmp_path: Path) -> None:
    fixtures = make_fixtures(database_url, policies=rated(tmp_path, count=3))
    try:
        mutants.cut(fixtures, "sentinel.breakers_without", "h.lifted_at >= counted.at", "false")
        assert started_after_a_lift(fixtures) == 6
    finally:
        fixtures.close()


def test_permits_that_are_out_are_stopped_too(database_url: str, tmp_path: Path) -> None:
    fixtures = make_fixtures(database_url, policies=rated(tmp_path, count=1))
    try:
        body = guard_body(value="10.00")
        answer = fixtures.guard(body)
        assert fixtures.guard(guard_body(value="10.00"))["reason_code"] == "velocity_halted"
        assert fixtures.start(body, answer).status_code == 403
    finally:
        fixtures.close()


def test_only_a_person_lets_it_go_on_and_counting_begins_anew(ten: Fixtures) -> None:
    for _ in range(11):
        ask(ten)
    ten.run_housekeeping()
    assert ask(ten).reason_code == "halted", "time alone lifts nothing"
    (halt,) = list_halts(ten.console_pool, ten.tenant_id)
    with ten.as_role("sentinel_authority") as machine, pytest.raises(Exception, match="permission denied"):
        machine.execute("select sentinel.lift_halt(%s, %s, 'x', 'y', gen_random_uuid())", [ten.tenant_id, halt.halt_id])
    with ten.as_role("sentinel_authority") as machine, pytest.raises(Exception, match="permission denied"):
        machine.execute("update sentinel.halts set lifted_at = now(), lifted_by = 'x'")
    lift(ten, halt.halt_id)
    assert verdicts([ask(ten) for _ in range(11)])[-2:] == [("ALLOW", "small_amount"), ("DENY", "velocity_halted")]
    assert len(list_halts(ten.console_pool, ten.tenant_id)) == 1
    assert ten.broken_invariants() == []


def flood(fixtures: Fixtures, *, threads: int, batches: int, rows: int) -> list[Recorded]:
    """Batches from many connections at once, each row its own refund; every answer."""
    caller, answers, gate = callers(fixtures), [], threading.Barrier(threads)

    def one() -> None:
        gate.wait()
        for _ in range(batches):
            asked = [decided_row(fixtures.authority, caller, operation(value="1.00"), has_start_step=True, elapsed_ms=0)
                     for _ in range(rows)]  # fmt: skip
            answers.extend(record_decisions(fixtures.authority.pool, asked, PATIENT_SECONDS))

    workers = [threading.Thread(target=one) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return answers


def test_under_concurrency_never_more_than_declared_and_one_halt(database_url: str, tmp_path: Path) -> None:
    """N = 8 connections × 6 batches × 5 rows = 240 questions a round, 3 rounds."""
    fixtures = make_fixtures(database_url, policies=rated(tmp_path, count=50))
    try:
        for _ in range(3):
            answers = flood(fixtures, threads=8, batches=6, rows=5)
            assert len(answers) == 240
            assert sum(one.decision == "ALLOW" for one in answers) == 50
            assert sum(one.reason_code == "velocity_halted" for one in answers) == 1
            (halt,) = list_halts(fixtures.console_pool, fixtures.tenant_id)
            lift(fixtures, halt.halt_id)
        assert fixtures.broken_invariants() == []
    finally:
        fixtures.close()


def test_who_trips_a_breaker_waits_to_be_alone_in_a_transaction_that_wrote_nothing(ten: Fixtures) -> None:
    """What its first attempt wrote gave it a place in the log: before what is lifted or halted while it waits."""
    caller = callers(ten)
    rows = [decided_row(ten.authority, caller, operation(), has_start_step=True, elapsed_ms=0) for _ in range(12)]
    with psycopg.connect(ten.url) as other, ThreadPoolExecutor(1) as thread:
        other.execute("select pg_advisory_xact_lock_shared(sentinel.halt_lock())")
        asked = thread.submit(record_decisions, ten.authority.pool, rows, PATIENT_SECONDS)
        assert waits_without_a_number(ten)
        other.commit()
        assert [one.reason_code for one in asked.result(60)].count("velocity_halted") == 1
    assert ten.broken_invariants() == []


FEED = """
select array_agg(coalesce(e.body::json->>'decision', e.kind) order by f.position)
from sentinel.feed f join sentinel.events e using (tenant_id, event_id) where e.kind in ('decision', 'start', 'halt_set')
"""


def feed_of_a_batch_that_trips(fixtures: Fixtures) -> list[str]:
    """The log of twelve rows at once. Rows are decided in the order of their keys; their events' ids are made the other way round."""
    asked = sorted((operation() for _ in range(12)), key=lambda one: one.idempotency_key, reverse=True)
    caller = callers(fixtures)
    rows = [
        decided_row(fixtures.authority, caller, one, has_start_step=True, elapsed_ms=0, start_id=uuid.uuid4())
        for one in asked
    ]
    record_decisions(fixtures.authority.pool, rows)
    fixtures.run_housekeeping()
    feed: list[str] = fixtures.one(FEED)
    return feed


BEFORE_THE_HALT = ["ALLOW", "start"] * 10 + ["DENY", "halt_set", "DENY"]


def test_what_a_batch_allowed_before_it_tripped_a_breaker_stands_before_the_halt(ten: Fixtures) -> None:
    assert feed_of_a_batch_that_trips(ten) == BEFORE_THE_HALT


def test_mutant_that_has_a_transactions_events_in_the_order_of_their_ids_is_caught(ten: Fixtures) -> None:
    mutants.cut(
        ten, "sentinel.place_events", "e.transaction_id, e.occurred_at, e.event_id", "e.transaction_id, e.event_id"
    )
    assert feed_of_a_batch_that_trips(ten) != BEFORE_THE_HALT


@pytest.mark.parametrize(
    ("function", "fence", "instead", "meet"),
    [
        ("locks_of_batch", "from unnest(rates) as b", "from unnest(array[]::sentinel.rate_sum[]) as b", mutants.meet_in_set),
        ("record_one", "locks || sentinel.velocity_lock(b.tenant_id, b.breaker_key)", "locks", mutants.meet_alone),
    ],
    ids=["in a set", "alone"],
)  # fmt: skip
def test_mutant_that_counts_without_the_lock_passes_the_rate_and_is_caught(
    database_url: str, tmp_path: Path, function: str, fence: str, instead: str, meet: Callable[[Any], None]
) -> None:
    (rated(tmp_path, count=1) / "rated.yaml").write_text(without_limits(count=1))
    fixtures = make_fixtures(database_url, policies=tmp_path)
    try:
        mutants.cut(fixtures, f"sentinel.{function}", fence, instead)
        if function == "record_one":  # one of two first ones would be stopped by it
            mutants.without_constraint(fixtures, "sentinel.velocity", "velocity_pkey")
        meet(fixtures.admin)
        answers = flood(fixtures, threads=4, batches=1, rows=1)
        assert sum(one.decision == "ALLOW" for one in answers) > 1
    finally:
        fixtures.close()


def test_a_total_of_the_key_stops_whoever_changes_its_agents_name(database_url: str, tmp_path: Path) -> None:
    fixtures = make_fixtures(database_url, policies=rated(tmp_path, count=1000, key="450.00"))
    try:
        caller = callers(fixtures)
        found = verdicts([ask(fixtures, caller, agent=unique("agent").replace("_", "-")) for _ in range(4)])
        assert found == [("ALLOW", "small_amount")] * 3 + [("DENY", "key_exceeded")]
        assert ask(fixtures).decision == "ALLOW", "another key has a total of its own"
        assert fixtures.broken_invariants() == []
    finally:
        fixtures.close()


def after_they_ran_out(fixtures: Fixtures) -> list[tuple[str, str]]:
    """Three permissions fill the key's total of 450.00; the fourth comes before their permits ran out, the fifth after."""
    caller = callers(fixtures)
    for _ in range(3):
        assert ask(fixtures, caller).decision == "ALLOW"
    full = ask(fixtures, caller)
    let_permits_expire(fixtures)
    return verdicts([full, ask(fixtures, caller)])


def test_what_run_out_permits_hold_of_a_total_is_given_back_to_who_needs_it(database_url: str, tmp_path: Path) -> None:
    fixtures = make_fixtures(database_url, policies=rated(tmp_path, count=1000, key="450.00"))
    try:
        assert after_they_ran_out(fixtures) == [("DENY", "key_exceeded"), ("ALLOW", "small_amount")]
        assert fixtures.one("select count(*) from sentinel.reservations where state = 'held'") == 1
        assert fixtures.broken_invariants() == []
    finally:
        fixtures.close()


def test_mutant_that_looks_for_no_total_is_caught(database_url: str, tmp_path: Path) -> None:
    fixtures = make_fixtures(database_url, policies=rated(tmp_path, count=1000, key="450.00"))
    try:
        mutants.cut(fixtures, "sentinel.release_expired_of_totals", "if cardinality(totals) = 0", "if true")
        assert after_they_ran_out(fixtures)[1] == ("DENY", "key_exceeded")
    finally:
        fixtures.close()


def test_the_words_of_an_agents_own_key_only_tighten(fixtures: Fixtures) -> None:
    plain = fixtures.new_key(scopes=DEFAULT_SCOPES)
    told = fixtures.post("action/guard", guard_body(value=40), key=plain).get_json()
    assert (told["decision"], told["reason_code"]) == ("APPROVAL_REQUIRED", "fact_not_vouched")
    against = guard_body(value=40)
    against["params"]["risk"]["suspicious_reason"] = True
    assert fixtures.post("action/guard", against, key=plain).get_json()["reason_code"] == "suspicious_reason"
    assert fixtures.guard(guard_body(value=40))["decision"] == "ALLOW", "the same from the worker's key"

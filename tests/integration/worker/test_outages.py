"""An outage costs no row: away for an hour of pauses, in every way there is, nothing ends and everything is done after (G59)."""

from __future__ import annotations

import contextlib
import json
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from unittest.mock import patch

import psycopg
import pytest
import urllib3
from click.testing import CliRunner

from sentinel.store import database
from sentinel.store.database import WORKER, Pool, with_role
from sentinel.store.migrate import SchemaNotReady
from tests.faults.database_proxy import DatabaseProxy, proxied
from tests.mutants import counts_outages
from tests.support.busy import overload
from tests.support.fake_authority import FakeAuthority
from tests.support.fake_exchange import Exchange
from tests.support.fake_faults import always
from tests.support.ledger_fixtures import LedgerFixtures, looping, new_row, wait_until, worker_process
from tests.support.logins import program_url
from tests.support.ports import free_port
from tests.support.scripted_server import SLACK
from worker.cli import main
from worker.refunds import transitions
from worker.refunds.agent import BatchResult, RowLimit
from worker.refunds.ledger import Ledger, LedgerUnavailable, default_tenant
from worker.refunds.metrics import WorkerMetrics
from worker.refunds.rows import ReleaseLease
from worker.settlement.effects import Effects

HOUR = 3600.0
LONGEST = 60.0
"""As shipped (`WORKER_BACKOFF_MAX_SECONDS`)."""
DEAD = "http://127.0.0.1:9"
GUARD, START = "action/guard", "action/guard/start"

Answer = Callable[[Exchange], None]


def problem(status: int, code: str, **headers: str) -> Answer:
    """A problem document."""
    return lambda exchange: exchange.problem(status, code, **headers) if headers else exchange.problem(status, code)


WAYS: dict[str, Answer] = {
    "401": problem(401, "unauthenticated"),
    "403 of the key": problem(403, "forbidden"),
    "404 of another server": problem(404, "not-found"),
    "429": lambda exchange: exchange.answer(429, {}, Retry_After="1"),
    "500": lambda exchange: exchange.answer(500, {}),
    "503": lambda exchange: exchange.answer(503, {}, Retry_After="1"),
    "closes at once": lambda exchange: exchange.hang_up(),
}


class Clock:
    """An hour of pauses without the hour: what a row would wait is added up, and then it is due."""

    def __init__(self, fixtures: LedgerFixtures) -> None:
        self._fixtures, self.waited = fixtures, 0.0

    def pass_by(self) -> None:
        """The longest pause there is now goes by."""
        pause = self._fixtures.one(
            "select coalesce(max(extract(epoch from greatest(next_attempt_at, coalesce(lease_until, next_attempt_at))"
            " - clock_timestamp())), 0)::float8 from refunds.ledger_entries where status not in ('EXECUTED', 'ERROR')"
        )
        self.waited += max(float(pause), 0.0)
        self._fixtures.make_due()


def an_hour_of(fixtures: LedgerFixtures, url: str, longest: float = 900.0) -> int:
    """Run after run while nobody answers, for an hour of pauses; returns how many runs that were."""
    clock, runs = Clock(fixtures), 0
    while clock.waited < HOUR and runs < 400:
        with fixtures.agent(
            url, max_attempts=3, backoff_seconds=30, backoff_max_seconds=longest, guard_timeout_seconds=0.3
        ) as agent:
            outcome = agent.run_once()
        runs += 1
        assert outcome.why_outside is not None
        assert not outcome.row_failed
        clock.pass_by()
    assert clock.waited >= HOUR
    return runs


def attempts(fixtures: LedgerFixtures) -> int:
    return int(fixtures.one("select coalesce(sum(attempts), 0) from refunds.ledger_entries"))


def in_error(fixtures: LedgerFixtures) -> int:
    return int(fixtures.one("select count(*) from refunds.ledger_entries where status = 'ERROR'"))


def all_done(fixtures: LedgerFixtures, url: str) -> None:
    with fixtures.agent(url) as agent:
        assert not agent.run_once().failed
    assert set(fixtures.states().values()) == {"EXECUTED"}


def test_an_hour_without_an_authority_costs_no_row(ledger_fixtures: LedgerFixtures, authority: FakeAuthority) -> None:
    ledger_fixtures.add(*(new_row(f"r{n}") for n in range(3)))
    runs = an_hour_of(ledger_fixtures, DEAD, LONGEST)
    assert (in_error(ledger_fixtures), attempts(ledger_fixtures)) == (0, 0)
    all_done(ledger_fixtures, authority.url)
    print(f"0 of 3 rows lost in {runs} runs")


@pytest.mark.parametrize("call", [GUARD, START])
@pytest.mark.parametrize("way", WAYS)
def test_an_hour_of_refusals_that_say_nothing_about_the_row_costs_none(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, way: str, call: str
) -> None:
    ledger_fixtures.add_with_orders(new_row("r"), new_row("second"))
    authority.misbehave = always(WAYS[way], call)
    runs = an_hour_of(ledger_fixtures, authority.url)
    assert (in_error(ledger_fixtures), attempts(ledger_fixtures), ledger_fixtures.executions()) == (0, 0, 0)
    authority.misbehave = lambda exchange: False
    all_done(ledger_fixtures, authority.url)
    print(f"0 of 2 rows lost in {runs} runs of {way} at {call}")


def test_a_row_that_waits_again_for_the_same_adds_no_trail(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    """The finding: an outage is tried each minute for each row, and each try kept its steps for ever."""
    ledger_fixtures.add_with_orders(new_row("r"))
    trails = []
    for way in ("401", "401", "401", "403 of the key", "403 of the key"):
        authority.misbehave = always(WAYS[way], GUARD)
        with ledger_fixtures.agent(authority.url, max_attempts=3) as agent:
            agent.run_once()
        trails.append(ledger_fixtures.one("select count(*) from refunds.step_trails"))
        ledger_fixtures.make_due()
    assert trails == [1, 1, 1, 2, 2]
    authority.misbehave = lambda exchange: False
    all_done(ledger_fixtures, authority.url)
    assert ledger_fixtures.one("select count(*) from refunds.step_trails") == 3


def test_a_worker_that_counts_outages_loses_the_rows(
    ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: the same hour must show it."""
    monkeypatch.setattr(transitions, "after_no_answer", counts_outages.after_no_answer)
    ledger_fixtures.add(*(new_row(f"r{n}") for n in range(3)))
    for _ in range(4):
        with ledger_fixtures.agent(DEAD, max_attempts=3) as agent:
            agent.run_once()
        ledger_fixtures.make_due()
    assert in_error(ledger_fixtures) == 3


def test_what_may_have_started_keeps_asking_with_the_same_ids(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    """The start is recorded and its receipt lost; then a key that is refused, a dead port, an hour of it."""
    ledger_fixtures.add_with_orders(new_row("r"))
    authority.misbehave = lambda exchange: exchange.path.endswith(START) and lose_receipt(authority, exchange)
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    started = ledger_fixtures.one("select start_id from refunds.ledger_entries")
    assert authority.operations["refund:r"].start_id == str(started)
    authority.misbehave = always(WAYS["401"], GUARD)
    ledger_fixtures.make_due()
    an_hour_of(ledger_fixtures, authority.url)
    an_hour_of(ledger_fixtures, DEAD)
    assert ledger_fixtures.state("r") == "GUARDING"
    assert ("GUARDING", "put_back", "NEW") not in ledger_fixtures.all(
        "select from_status, event, to_status from refunds.ledger_events"
    )
    authority.misbehave = lambda exchange: False
    all_done(ledger_fixtures, authority.url)
    assert ledger_fixtures.one("select start_id from refunds.executions") == started


def lose_receipt(authority: FakeAuthority, exchange: Exchange) -> bool:
    """Record the start, say nothing."""
    authority.operations[(exchange.body or {})["idempotency_key"]].start_id = (exchange.body or {})["start_id"]
    exchange.hang_up()
    return True


def test_rows_are_asked_about_within_seconds_when_the_authority_is_back(ledger_fixtures: LedgerFixtures) -> None:
    """However long their pauses had grown, and without a restart."""
    ledger_fixtures.add(*(new_row(f"r{n}") for n in range(5)))
    fake, port = FakeAuthority(), free_port()
    with (
        ledger_fixtures.agent(f"http://127.0.0.1:{port}", backoff_seconds=0.05, backoff_max_seconds=600) as agent,
        looping(agent),
    ):
        wait_until(lambda: ("authority_unreachable",) in ledger_fixtures.all("select status from refunds.workers"))
        ledger_fixtures.admin.execute(
            "update refunds.ledger_entries set waits = 30, next_attempt_at = clock_timestamp() + interval '10 minutes'"
            " where status = 'NEW'"
        )
        with fake.running(port):
            wait_until(lambda: ledger_fixtures.executions() == 5, 15)


# The worker's own database


def test_a_loop_says_once_that_its_database_is_away_and_once_that_it_is_back(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    """The finding: each of its threads said so at each attempt, and one whose log nobody read for seconds stood still for good."""
    caplog.set_level("INFO", "worker.loop")  # as the program sets it, and no other of its loggers
    told = lambda text: [line for line in caplog.messages if text in line]  # noqa: E731
    with ledger_fixtures.agent(authority.url, poll_seconds=0.02) as agent, looping(agent):
        wait_until(lambda: ledger_fixtures.all("select 1 from refunds.workers"))
        with database_away(ledger_fixtures):
            wait_until(lambda: told("does not answer"))
            time.sleep(1.0)
        ledger_fixtures.add(new_row("r"))
        wait_until(lambda: ledger_fixtures.executions() == 1 and told("answers again"))
    away = told("does not answer")
    assert len(away) == len(set(away)), "one line for each cause"
    assert len(told("answers again")) == 1
    assert not told("dropped")


@contextlib.contextmanager
def database_away(fixtures: LedgerFixtures) -> Iterator[None]:
    """No new connection gets in, and those there are end."""
    name = fixtures.one("select current_database()")
    fixtures.admin.close()
    with psycopg.connect(fixtures.url, autocommit=True, dbname="postgres") as admin:
        admin.execute(f'alter database "{name}" with allow_connections false'.encode())
        admin.execute("select pg_terminate_backend(pid, 60000) from pg_stat_activity where datname = %s", [name])
        try:
            yield
        finally:
            admin.execute(f'alter database "{name}" with allow_connections true'.encode())
    fixtures.admin = psycopg.connect(fixtures.url, autocommit=True)


def wait_for_an_old_server(fixtures: LedgerFixtures, seconds: int) -> None:
    """Of a server that came up within a claim nobody is blamed."""
    old = f"select clock_timestamp() - pg_postmaster_start_time() > interval '{seconds} seconds'"
    wait_until(lambda: fixtures.one(old), seconds + 8)


def test_a_database_away_with_rows_in_hand_costs_them_no_attempt(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    rounds, lease = 4, 10
    wait_for_an_old_server(ledger_fixtures, lease + 2)
    ledger_fixtures.add(*(new_row(f"r{n}") for n in range(3)))
    for _ in range(rounds):
        holder = ledger_fixtures.ledger_of("worker-1", lease_seconds=lease)
        assert len(holder.claim(5)) == 3
        with database_away(ledger_fixtures):
            with pytest.raises(LedgerUnavailable):
                holder.now()
        assert len(ledger_fixtures.all("select 1 from refunds.ledger_entries where status = 'GUARDING'")) == 3
        ledger_fixtures.make_due()
        taken = holder.claim(5)
        assert [row.attempts for row in taken] == [0, 0, 0]
        holder.release_leases([ReleaseLease(row, "x", 0.0) for row in taken])
    ledger_fixtures.make_due()
    all_done(ledger_fixtures, authority.url)
    print(f"0 of {3 * rounds} claims counted an attempt")


@contextlib.contextmanager
def only_reads(fixtures: LedgerFixtures) -> Iterator[None]:
    """Every connection of the block only reads, as those of a replica that is not promoted yet; `fixtures.admin` writes."""
    name = fixtures.one("select current_database()")

    def end_connections() -> None:
        others = "select pg_terminate_backend(pid, 60000) from pg_stat_activity where datname = %s and pid <> pg_backend_pid()"
        fixtures.admin.execute(others, [name])

    fixtures.admin.execute(f'alter database "{name}" set default_transaction_read_only = on'.encode())
    end_connections()
    try:
        yield
    finally:
        fixtures.admin.execute(f'alter database "{name}" reset default_transaction_read_only'.encode())
        end_connections()


def test_a_database_that_only_reads_with_rows_in_hand_costs_them_no_attempt(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    lease = 10
    wait_for_an_old_server(ledger_fixtures, lease + 2)
    ledger_fixtures.add(*(new_row(f"r{n}") for n in range(3)))
    holder = ledger_fixtures.ledger_of("worker-1", lease_seconds=lease)
    ids = [row.ledger_entry_id for row in holder.claim(5)]
    with only_reads(ledger_fixtures):
        for call in (partial(holder.extend, ids), partial(holder.claim, 5)):
            with pytest.raises(LedgerUnavailable, match="read-only transaction"):
                call()
    ledger_fixtures.make_due()
    assert [row.attempts for row in holder.claim(5)] == [0, 0, 0]
    ledger_fixtures.make_due()
    all_done(ledger_fixtures, authority.url)


IN_A_DATABASE_THAT_ONLY_READS = {
    "a single run": ("run", "--once"),
    "a row tried again": ("retry", "r", "--reason", "x"),
    "a row handled elsewhere": ("handled", "r", "--reference", "CASE-7", "--reason", "x"),
    "reports discarded": ("reports", "discard", str(uuid.uuid4()), "--reason", "x"),
}


@pytest.mark.parametrize("words", IN_A_DATABASE_THAT_ONLY_READS.values(), ids=IN_A_DATABASE_THAT_ONLY_READS)
def test_a_command_on_a_database_that_only_reads_ends_with_3_and_no_traceback(
    ledger_fixtures: LedgerFixtures, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_DATABASE_URL", program_url(ledger_fixtures.url, WORKER))
    monkeypatch.setenv("SENTINEL_REFUND_AGENT_API_KEY", "key")
    monkeypatch.setenv("SENTINEL_URL", DEAD)
    ledger_fixtures.add(new_row("r"))
    with only_reads(ledger_fixtures):
        ended = CliRunner().invoke(main, words)
    assert (ended.exit_code, type(ended.exception)) == (3, SystemExit), ended.output
    assert ended.stderr.startswith("error: ") and ended.stderr.count("\n") == 1
    assert "read-only transaction" in ended.stderr


def test_a_single_run_prints_what_it_did_before_its_database_was_away(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: of rows that had been executed nothing was printed but the error."""
    real, answers = Ledger.claim, iter([True])

    def claim(self: Ledger, *args: Any) -> Any:
        if next(answers, False):
            return real(self, *args)
        raise LedgerUnavailable("away")

    monkeypatch.setattr(Ledger, "claim", claim)
    monkeypatch.setenv("WORKER_DATABASE_URL", program_url(ledger_fixtures.url, WORKER))
    monkeypatch.setenv("SENTINEL_REFUND_AGENT_API_KEY", "key")
    monkeypatch.setenv("SENTINEL_URL", authority.url)
    monkeypatch.setenv("WORKER_BATCH", "1")
    monkeypatch.setenv("WORKER_LANES", "1")
    ledger_fixtures.add(new_row("one"), new_row("other"))
    ended = CliRunner().invoke(main, ["run", "--once", "--json"])
    assert (ended.exit_code, ended.stderr) == (3, "error: away\n")
    told = json.loads(ended.stdout)
    assert [row["status"] for row in told["rows"]] == ["EXECUTED"]
    assert (told["open"], told["trouble"], told["failed"]) == (None, "away", True)


def test_rows_are_told_as_done_although_their_reports_could_not_be_recorded_as_received(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    """The finding: the batch was dropped, so that nothing was printed or counted of the rows that it had executed."""
    ledger_fixtures.add(new_row("r"))
    away = patch.object(Ledger, "acknowledge", side_effect=LedgerUnavailable("away"))
    with ledger_fixtures.agent(authority.url) as agent, away:
        outcome = agent.run_once()
    assert [(row.ledger_entry_id, row.state) for row in outcome.rows] == [("r", "EXECUTED")]
    assert outcome.open is not None and outcome.open.unreported == 1


ASKED: dict[str, Callable[[Ledger], Any]] = {
    "the ledger": lambda ledger: ledger.now(),
    "rows that are not entered": lambda ledger: ledger.facts_of_new([new_row("r")]),
    "the effects": lambda ledger: Effects(ledger.pool, ledger.tenant_id).of_entry("r"),
    "the tenant": lambda ledger: default_tenant(ledger.pool),
}


@pytest.mark.parametrize("asked", ASKED)
def test_a_database_that_falls_silent_is_given_up_within_the_deadline_and_asked_again(
    ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """It accepts what is asked and answers nothing, and no connection is reset: a frozen host, a link that is down."""
    with silent_at_will(ledger_fixtures) as (ledger, proxy), ThreadPoolExecutor(1) as threads:
        assert ASKED[asked](ledger) is not None
        proxy.black_hole.set()
        monkeypatch.setattr(database, "SILENCE_SECONDS", 0.5)
        began = time.monotonic()
        waiting = threads.submit(ASKED[asked], ledger)
        try:
            with pytest.raises(LedgerUnavailable):
                waiting.result(timeout=60)
            assert time.monotonic() - began < SLACK
        finally:
            proxy.black_hole.clear()
            monkeypatch.undo()
        assert ASKED[asked](ledger) is not None
        assert ledger.pool.in_use == 0


@contextlib.contextmanager
def silent_at_will(fixtures: LedgerFixtures) -> Iterator[tuple[Ledger, DatabaseProxy]]:
    """A ledger with a single connection behind a proxy that can withhold answers."""
    with proxied(fixtures.url) as proxy:
        pool = Pool(with_role(proxy.url(fixtures.url), WORKER), size=1)
        try:
            yield Ledger(pool, fixtures.tenant_id, worker_id="worker-1"), proxy
        finally:
            pool.close()


def test_an_execution_that_was_not_written_is_an_outage_of_the_database_and_no_lost_lease(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    """The finding: after a lock timeout the run said that another worker had taken the lease over, and ended well."""
    ledger_fixtures.add(new_row("r"))
    with ledger_fixtures.agent(authority.url) as agent:
        with patch.object(Ledger, "record_executions", side_effect=LedgerUnavailable("a lock was not to be had")):
            found = agent.run_once()
        assert ledger_fixtures.executions() == 0
        (row,) = found.rows
        assert "the execution was not written: a lock was not to be had" in str(row) and "took the lease" not in str(
            row
        )
        assert row.put_off and not found.row_failed and "1 row waits" in str(found.why_outside)
        held = "select lease_until > clock_timestamp() + interval '20 seconds' from refunds.ledger_entries"
        assert ledger_fixtures.one(held) is False, "the lease is let go"
        trails = "select count(*) from refunds.trails where jsonb_path_exists(steps, '$[*].output.report')"
        assert ledger_fixtures.one(trails) == 0, "none names a report that was not written"
        ledger_fixtures.make_due()
        agent.run_once()
    assert (ledger_fixtures.state("r"), ledger_fixtures.executions()) == ("EXECUTED", 1)
    assert ledger_fixtures.one("select attempts from refunds.ledger_entries") == 0


def test_an_execution_whose_commit_lost_its_answer_is_told_as_executed(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    """The finding: the second try of the statement found the row executed, and the run said that another worker had it."""
    ledger_fixtures.add(new_row("r"))
    real = Ledger.record_executions

    def twice(self: Ledger, executions: Any) -> set[str]:
        assert real(self, executions) == {"r"}
        return real(self, executions)

    with ledger_fixtures.agent(authority.url) as agent, patch.object(Ledger, "record_executions", twice):
        found = agent.run_once()
    (row,) = found.rows
    assert str(row.state) == "EXECUTED" and "took the lease" not in str(row)
    assert (ledger_fixtures.executions(), found.reported) == (1, 1)


def test_rows_that_the_authority_is_not_asked_about_do_not_keep_its_return_unseen(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    """The finding: rows that end before the question, as those that wait for their customers, were taken one a pause for as long as there were any."""
    ledger_fixtures.add(*(new_row(f"r{n}") for n in range(3)))
    with ledger_fixtures.agent(authority.url) as agent, patch.object(agent, "_processor") as processor:
        processor.process.side_effect = lambda rows: BatchResult([])
        agent._circuit_breaker.note(answered=0, unanswered=1, detail="one hiccup")
        agent._circuit_breaker._probe_at = 0.0
        assert agent._process_one_batch(RowLimit(None)) is True
        assert len(processor.process.call_args.args[0]) == 1, "one row as a probe"
        assert agent._circuit_breaker.is_closed and authority.calls == ["heartbeat"]
        assert agent._process_one_batch(RowLimit(None)) is True
        assert len(processor.process.call_args.args[0]) == 2


def test_a_key_that_may_not_ask_for_its_heartbeat_does_not_keep_the_authoritys_return_unseen(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    """The finding: after an outage it counted as away until a row was due and answered, however long that was."""
    with ledger_fixtures.agent(authority.url) as agent:
        for status, code, is_there in ((401, "unauthenticated", False), (403, "forbidden", True)):
            authority.misbehave = always(problem(status, code), "heartbeat")
            agent._circuit_breaker.note(answered=0, unanswered=1, detail="one hiccup")
            agent._circuit_breaker._probe_at = 0.0
            assert agent._process_one_batch(RowLimit(None)) is False
            assert agent.reaches_authority is is_there
    assert authority.calls == ["heartbeat", "heartbeat"]


@pytest.mark.parametrize(("status", "code", "state"), [(401, "unauthenticated", "NEW"), (403, "forbidden", "EXECUTED")])
def test_a_single_run_wakes_what_waited_where_its_key_may_not_ask_for_its_heartbeat(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, status: int, code: str, state: str
) -> None:
    """The finding: after an outage the rows waited out their pauses, although the authority was there."""
    ledger_fixtures.add(new_row("r"))
    with ledger_fixtures.agent(DEAD, backoff_seconds=60, backoff_max_seconds=60, guard_timeout_seconds=0.3) as agent:
        agent.run_once()
    authority.misbehave = always(problem(status, code), "heartbeat")
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert ledger_fixtures.state("r") == state


def test_a_row_that_ends_its_worker_every_time_goes_to_a_person(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    """The protection that stays: holders that are gone, with the database there all the time."""
    wait_for_an_old_server(ledger_fixtures, 32)
    ledger_fixtures.add(new_row("r"))
    for n in range(3):
        assert len(ledger_fixtures.ledger_of(f"dies-{n}", lease_seconds=0.1).claim(5)) == 1
        ledger_fixtures.make_due()
    with ledger_fixtures.agent(authority.url, max_attempts=2) as agent:
        agent.run_once()
    assert ledger_fixtures.state("r") == "ERROR"
    assert "gave up after" in ledger_fixtures.one("select last_error from refunds.ledger_entries")


# As operators see it


def test_a_single_run_without_an_authority_ends_with_3_and_one_line(ledger_fixtures: LedgerFixtures) -> None:
    ledger_fixtures.add(*(new_row(f"r{n}") for n in range(3)))
    process = worker_process(["--once"], database_url=ledger_fixtures.url, authority_url=DEAD)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 3
    assert said.count("\n") == 1
    assert "error: the authority does not respond: connection_refused" in said
    assert "3 rows wait, no attempt was counted" in said
    assert ledger_fixtures.all("select status, attempts, next_attempt_at > clock_timestamp() - interval '1 minute'"
                            " from refunds.ledger_entries") == [("NEW", 0, True)] * 3  # fmt: skip


def test_a_loop_outlives_a_dead_port_and_says_so_on_its_own_address(ledger_fixtures: LedgerFixtures) -> None:
    ledger_fixtures.add(*(new_row(f"r{n}") for n in range(3)))
    fake, dead, own = FakeAuthority(), free_port(), free_port()
    process = worker_process(
        ["--loop"], database_url=ledger_fixtures.url, authority_url=f"http://127.0.0.1:{dead}", WORKER_HEALTH_PORT=str(own),
        WORKER_MAX_ATTEMPTS="3", WORKER_BACKOFF_MAX_SECONDS="30",
    )  # fmt: skip
    try:
        wait_until(lambda: ledger_fixtures.one("select max(waits) from refunds.ledger_entries") >= 4, 30)
        assert asked(own, "/healthz")[0] == 200
        status, told = asked(own, "/readyz")
        assert (status, '"authority":false' in told, '"database":true' in told) == (503, True, True)
        told = asked(own, "/metrics")[1]
        assert {
            "worker_authority_reachable 0.0",
            "worker_ready 0.0",
            "worker_put_off 3.0",
            "worker_errors 0.0",
            "worker_database_up 1.0",
        } <= {*told.splitlines()}
        with fake.running(dead):
            wait_until(lambda: ledger_fixtures.executions() == 3, 15)
            wait_until(lambda: asked(own, "/readyz") and "key" in fake.calls, 10)
            status, told = asked(own, "/readyz")
            assert (status, '"authority":false' in told, '"key":false' in told) == (503, True, True), (
                "what answers 404 there is no authority"
            )
            fake.holder = {"tenant_id": str(ledger_fixtures.tenant_id), "tenant": "shop"}
            wait_until(lambda: asked(own, "/readyz")[0] == 200, 10)
            assert "worker_authority_reachable 1.0" in asked(own, "/metrics")[1]
            assert "worker_ready 1.0" in asked(own, "/metrics")[1]
            assert 'worker_rows_total{put_off="no",state="EXECUTED"} 3.0' in asked(own, "/metrics")[1]
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert (in_error(ledger_fixtures), attempts(ledger_fixtures)) == (0, 0)
    told = f"working as retail-refund-agent, asking http://127.0.0.1:{dead};"
    assert (told in said, "stopped; rows done: " in said) == (True, True), said


def asked(port: int, path: str) -> tuple[int, str]:
    """(status, body)."""
    answer = urllib3.request("GET", f"http://127.0.0.1:{port}{path}", retries=False, timeout=60)
    return answer.status, answer.data.decode()


def test_a_database_that_is_not_migrated_is_said_by_new_rows_and_by_the_metrics(
    ledger_fixtures: LedgerFixtures,
) -> None:
    """The finding: the first raised PostgreSQL's own error, and /metrics answered nothing at all."""
    ledger_fixtures.admin.execute("alter table refunds.ledger_entries rename to ledger_entries_of_before")
    with pytest.raises(SchemaNotReady):
        ledger_fixtures.ledger.facts_of_new([new_row("r")])
    assert b"worker_database_up 0.0" in WorkerMetrics(ledger_fixtures.ledger, lambda: True).exposition()


def test_very_many_rows_that_are_not_entered_take_no_statement_of_more_than_its_time(
    ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`worker workflow simulate` of a file that `worker enqueue` enters; the facts of a row still depend on all others."""
    monkeypatch.setattr(database, "STATEMENT_TIMEOUT_MS", int(2500 * overload()))
    rows = [new_row(f"r{number}", account_ref=f"acct_{number % 4000}", order_ref=None) for number in range(8_000)]
    with contextlib.closing(Pool(with_role(ledger_fixtures.url, WORKER), size=1)) as pool:
        found, known = Ledger(pool, ledger_fixtures.tenant_id, worker_id="w").facts_of_new(rows)
    assert [row.ledger_entry_id for row in found] == [row.ledger_entry_id for row in rows]
    attempts = {json.loads(facts.derived)["customer_attempts_24h"] for facts in known.values()}
    assert len(known) == 8_000 and attempts == {1, 2}
    assert ledger_fixtures.one("select count(*) from refunds.ledger_entries") == 0

"""The refund agent and its ledger as operators see them, and asking a worker to process one row."""

from __future__ import annotations

import json
import re
import threading
import time
from typing import Any

import psycopg
import pytest

from ops_console.api import refunds as refund_routes
from ops_console.process_one import MOST_WAITING, most_waiting, process_one
from ops_console.read_models.refund_views import COUNTS, STATUSES
from sentinel.core.errors import Conflict, WorkerNotRunning


def add_entries(fixtures: Any, count: int, tenant_id: Any = None) -> None:
    fixtures.sql(
        "insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, account_ref, order_ref, reason, risk)"
        " select %s, 'lge_' || n, 'rf_' || n, 12650, 'USD', 'acct-secret', 'order-secret', 'my words', '{\"stale_window\": false, \"note\": \"x\"}'"
        " from generate_series(1, %s) n",
        tenant_id or fixtures.tenant_id, count,
    )  # fmt: skip


def add_worker(
    fixtures: Any, status: str = "running", mode: str = "loop", seen: str = "0 seconds", *, name: str = "w1",
    agent_id: str = "retail-refund-agent",
) -> None:  # fmt: skip
    fixtures.sql(
        "insert into refunds.workers (tenant_id, worker_id, agent_id, mode, status, last_action, last_decision, last_seen_at)"
        " values (%s, %s, %s, %s, %s, 'refund.create', 'ALLOW', clock_timestamp() - %s::interval)",
        fixtures.tenant_id, name, agent_id, mode, status, seen,
    )  # fmt: skip


def test_the_ledger_is_shown_in_pages_without_the_customers(fixtures: Any) -> None:
    add_entries(fixtures, 5)
    ann, seen, cursor = fixtures.person("ann", "viewer"), [], ""
    while True:
        page = ann.get(f"/ops/api/refunds/ledger?limit=2&cursor={cursor}").json
        seen += page["entries"]
        cursor = page.get("next_cursor")
        if not cursor:
            break
    assert sorted(one["ledger_entry_id"] for one in seen) == [f"lge_{n}" for n in range(1, 6)]
    assert seen[0]["amount"] == {"value": "126.50", "currency": "USD"}
    assert seen[0]["idempotency_key"] == "refund:" + seen[0]["ledger_entry_id"]
    assert seen[0]["risk"] == {"stale_window": False}
    assert "secret" not in json.dumps(seen)
    assert "my words" not in json.dumps(seen)


def test_the_ledger_can_be_asked_for_one_status(fixtures: Any) -> None:
    add_entries(fixtures, 2)
    ann = fixtures.person("ann", "viewer")
    assert len(ann.get("/ops/api/refunds/ledger?status=NEW").json["entries"]) == 2
    assert ann.get("/ops/api/refunds/ledger?status=DENIED").json == {"entries": []}
    for bad in ("status=new", "limit=0", "limit=201", "cursor=x", "cursor=%00", "cursor=WzEsMl0", "cursor=bnVsbA"):
        assert ann.get(f"/ops/api/refunds/ledger?{bad}").status_code == 400, bad


def test_the_agents_status_counts_and_tells_the_lag(fixtures: Any) -> None:
    add_entries(fixtures, 3)
    add_worker(fixtures)
    shown = fixtures.person("ann", "viewer").get("/ops/api/refunds/agent/status").json
    assert (shown["agent_id"], shown["status"], shown["halt"]) == ("retail-refund-agent", "running", "OK")
    assert (shown["last_action"], shown["last_decision"]) == ("refund.create", "ALLOW")
    assert shown["redaction_status"] == "customer data hidden"
    assert shown["counts"] == {**dict.fromkeys(STATUSES, 0), "NEW": 3}
    assert shown["at_least"] == []
    assert shown["lag"]["oldest_new_seconds"] >= 0
    assert shown["lag"]["open_reports"] == 0
    overview = re.sub(r"<[^>]+>", " ", fixtures.browser("vic", "viewer").get("/ops/overview/now").text)
    assert "last decided: refund.create ALLOW" in " ".join(overview.split())


def add_executed(fixtures: Any, first: int, last: int) -> None:
    """Executed entries of another agent and, every tenth, of the one that is asked about."""
    numbers = f"from generate_series({first}, {last}) n"
    fixtures.sql(
        "set session_replication_role = replica;"
        " insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, agent_id, status, amount_minor, currency)"
        f" select '{fixtures.tenant_id}', 'done_' || n, 'rf_done_' || n, case when n % 10 = 0 then 'retail-refund-agent' else 'other-agent' end,"
        f" 'EXECUTED', 1, 'USD' {numbers};"
        " insert into refunds.executions (tenant_id, execution_id, ledger_entry_id, refund_id, amount_minor, currency, operation_id, start_id, start_event_id, claim_epoch)"
        f" select '{fixtures.tenant_id}', gen_random_uuid(), 'done_' || n, 'rf_done_' || n, 1, 'USD', gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 1 {numbers}"
    )  # fmt: skip
    fixtures.sql("analyze refunds.ledger_entries, refunds.executions")


def blocks(fixtures: Any, statement: str, most: int) -> int:
    """Blocks of tables and indexes that the statement looks at."""
    fields = {"tenant_id": fixtures.tenant_id, "agent_id": "retail-refund-agent", "most": most}
    with psycopg.connect(fixtures.url, autocommit=True) as connection:
        found = connection.execute(f"explain (analyze, buffers, format json) {statement}", fields).fetchone()
    assert found is not None
    return int(found[0][0]["Plan"]["Shared Hit Blocks"] + found[0][0]["Plan"]["Shared Read Blocks"])


@pytest.mark.fresh_database  # counts what is read
def test_the_agents_status_reads_no_more_of_a_ledger_that_grows_and_says_what_it_did_not_count(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refund_routes.refund_views, "MOST_LOOKED_AT", 100)
    ann = fixtures.person("ann", "viewer")
    add_entries(fixtures, 3)
    add_executed(fixtures, 1, 100)
    few, shown = blocks(fixtures, COUNTS, 100), ann.get("/ops/api/refunds/agent/status").json
    assert (shown["counts"]["EXECUTED"], shown["at_least"]) == (10, [])
    add_executed(fixtures, 101, 20_000)
    many, shown = blocks(fixtures, COUNTS, 100), ann.get("/ops/api/refunds/agent/status").json
    assert shown["counts"]["NEW"] == 3
    assert shown["counts"]["EXECUTED"] <= 100
    assert shown["at_least"] == ["EXECUTED"]
    assert many <= 2 * few, (few, many)


@pytest.mark.parametrize(("status", "seen"), [("stopped", "0 seconds"), ("running", "2 minutes")])
def test_a_worker_that_was_not_heard_of_is_not_running(fixtures: Any, status: str, seen: str) -> None:
    add_worker(fixtures, status, seen=seen)
    ann = fixtures.person("ann")
    assert ann.get("/ops/api/refunds/agent/status").json["status"] == "not_running"
    refused = ann.post("/ops/api/refunds/process-once")
    assert (refused.status_code, refused.json["type"]) == (503, "urn:sentinel:problem:worker-not-running")
    assert fixtures.sql("select 1 from refunds.process_requests") == []


def test_process_once_answers_what_the_worker_did(fixtures: Any) -> None:
    add_worker(fixtures)
    told = {"ledger_entry_id": "lge_1", "status": "EXECUTED"}

    def worker() -> None:
        while not fixtures.sql(
            "update refunds.process_requests set finished_at = clock_timestamp(), result = %s::jsonb returning requested_by",
            json.dumps(told),
        ):
            time.sleep(0.05)

    thread = threading.Thread(target=worker)
    thread.start()
    answer = fixtures.person("ann").post("/ops/api/refunds/process-once")
    thread.join()
    assert (answer.status_code, answer.json) == (200, told)
    assert fixtures.sql("select requested_by from refunds.process_requests") == [("ann@demo.local",)]


def test_a_question_nobody_takes_is_withdrawn(fixtures: Any) -> None:
    add_worker(fixtures)
    with pytest.raises(WorkerNotRunning, match="withdrawn"):
        process_one(fixtures.pool, fixtures.operator("ann"), wait_seconds=0.1)
    assert fixtures.sql("select result from refunds.process_requests") == [({"withdrawn": True},)]


def test_few_requests_wait_for_a_worker_at_once_so_that_others_reach_the_console(fixtures: Any) -> None:
    """The finding: each held one of 24 threads for up to fifteen seconds; a script that sent as many kept everybody out,
    also from the page of halts.
    """
    add_worker(fixtures)
    actor, waiting, go_on = fixtures.operator("ann"), threading.Semaphore(0), threading.Event()

    def pause(_: float) -> None:
        waiting.release()
        go_on.wait(90)

    threads = [threading.Thread(target=process_one, args=(fixtures.pool, actor), kwargs={"pause": pause}) for _ in range(MOST_WAITING)]  # fmt: skip
    for one in threads:
        one.start()
    assert all(waiting.acquire(timeout=60) for _ in threads)
    with pytest.raises(Conflict, match="wait for a worker"):
        process_one(fixtures.pool, actor, wait_seconds=0.1)
    answered = "update refunds.process_requests set finished_at = clock_timestamp(), result = '{}' returning 1"
    assert len(fixtures.sql(answered)) == len(threads), "the one that was refused asked for nothing"
    go_on.set()
    for one in threads:
        one.join()
    with pytest.raises(WorkerNotRunning, match="withdrawn"):
        process_one(fixtures.pool, actor, wait_seconds=0.1)


def test_in_a_console_of_few_threads_fewer_requests_wait_at_once(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: with SENTINEL_CONSOLE_THREADS of six or less, six that waited were all that the console answered."""
    assert [most_waiting(threads) for threads in (1, 2, 3, 4, 6, 12, 24)] == [1, 1, 1, 2, 3, 6, 6]
    given: list[int] = []

    def asked(*_: Any, most: int) -> dict[str, Any]:
        given.append(most)
        return {}

    with monkeypatch.context() as patched:
        patched.setattr(refund_routes, "process_one", asked)
        ann = fixtures.person("ann", app=fixtures.app(threads=4))
        assert ann.post("/ops/api/refunds/process-once").status_code == 200
    assert given == [2]
    add_worker(fixtures)
    actor = fixtures.operator("bob")

    def pause(_: float) -> None:
        with pytest.raises(Conflict, match="wait for a worker"):
            process_one(fixtures.pool, actor, most=1)

    with pytest.raises(WorkerNotRunning, match="withdrawn"):
        process_one(fixtures.pool, actor, most=1, wait_seconds=0.1, pause=pause)


def test_a_question_in_hand_is_not_withdrawn(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    add_worker(fixtures)
    monkeypatch.setattr("ops_console.process_one._IN_HAND_SECONDS", 0.2)
    ask = refund_routes.refund_views.ask_worker

    def asked_and_taken(*told: Any) -> None:
        ask(*told)
        fixtures.sql(
            "update refunds.process_requests set claimed_by = 'w1', lease_until = clock_timestamp() + interval '1 minute'"
        )

    monkeypatch.setattr(refund_routes.refund_views, "ask_worker", asked_and_taken)
    with pytest.raises(WorkerNotRunning, match="has not answered"):
        process_one(fixtures.pool, fixtures.operator("ann"), wait_seconds=0.1)
    assert fixtures.sql("select finished_at from refunds.process_requests") == [(None,)]

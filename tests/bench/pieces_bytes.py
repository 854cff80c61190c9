"""`python -m tests.bench.pieces_bytes`: processor time of a guard from bytes to row and from committed result to bytes, piece by piece.

No database and no server; the retail refund policy, 500 different requests that it allows. Each figure is the least of many short
runs of 20 requests, so that what else the machine does shows least.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from sentinel.authority.api.guard import GUARD, to_answer, to_operation
from sentinel.authority.decisions import Recorded
from sentinel.authority.engine import Authority, Caller
from sentinel.authority.guard import decided_row, provisional
from sentinel.authority.guard_rows import GuardRow
from sentinel.authority.keys import WORKER_SCOPE
from sentinel.core.operation import Operation
from sentinel.core.signing import PermitSigner
from sentinel.platform.http.bodies import read_object
from sentinel.platform.resources import policies_dir
from sentinel.policy.facts import Requester, extract_facts
from sentinel.policy.library import ReloadablePolicies
from tests.support.fixtures import ACTION, guard_body
from tests.support.pack_text import assemble_pack

REQUESTS, IN_A_RUN, RUNS = 500, 20, 400
PAUSES, PAUSE_SECONDS = 200, 0.001


def microseconds(call: Callable[[Any], object], over: Sequence[Any]) -> float:
    """The least processor time of a call, over different arguments."""
    least = float("inf")
    for run in range(RUNS):
        first = run * IN_A_RUN % len(over)
        some = over[first : first + IN_A_RUN]
        began = time.process_time()
        for one in some:
            call(one)
        least = min(least, time.process_time() - began)
    return least / IN_A_RUN * 1e6


def after_a_pause(call: Callable[[Any], object], over: Sequence[Any], together: int) -> float:
    """The median processor time of a call, `together` of them in a row after a sleep: what else ran meanwhile has the caches."""
    times = []
    for run in range(PAUSES):
        first = run * together % (len(over) - together)
        time.sleep(PAUSE_SECONDS)
        began = time.thread_time()
        for one in over[first : first + together]:
            call(one)
        times.append(time.thread_time() - began)
    return statistics.median(times) / together * 1e6


def make_authority() -> Authority:
    """What a decision needs, without a database."""
    nothing: dict[str, Any] = dict.fromkeys(one.name for one in fields(Authority) if one.default is one.default_factory)
    clock: Any = lambda: datetime.now(UTC)  # noqa: E731
    given = {"policies": ReloadablePolicies(policies_dir()), "permits": PermitSigner(["bench" * 8]), "clock": clock}
    return Authority(**{**nothing, **given})


def recorded(row: GuardRow) -> Recorded:
    """What the database would answer for a row that it allows."""
    terms, now = row.terms, datetime.now(UTC)
    pack = assemble_pack(
        terms.pack_template, row.pack_values, decided_at="2026-11-22T19:22:11.123456Z", decision="ALLOW", facts=row.facts_commitment,
        latency_ms=3, event_hex=row.ids[16:32].hex(), reason_code=terms.reason_code,
    )  # fmt: skip
    return Recorded(
        seq=0, result="decided", operation_id=uuid.UUID(bytes=row.ids[:16]), decision_event_id=uuid.UUID(bytes=row.ids[16:32]), decision="ALLOW",
        reason_code=terms.reason_code, status="allowed", policy_id=terms.policy_id, policy_version=terms.policy_version,
        policy_label=terms.policy_label, resource=row.resource, risk_class=terms.risk_class, digest=row.digest, request=None,
        permit_id=uuid.UUID(bytes=row.ids[64:]), permit_expires_at=now, approval_id=None, approval_expires_at=None, approver=None,
        approved_at=None, outcome=None, pack=pack, pack_hash="sha256:" + "0" * 64, decided_at=now, start_event_id=None,
        start_hash=None, start_duplicate=None,
    )  # fmt: skip


def pieces() -> dict[str, float]:
    """Microseconds by piece."""
    authority = make_authority()
    worker = Caller(uuid.uuid4(), uuid.uuid4(), uuid.uuid4(), None, frozenset({"guard", WORKER_SCOPE}), None)
    agent = Caller(worker.tenant_id, uuid.uuid4(), uuid.uuid4(), None, frozenset({"guard"}), None)
    policy = authority.policies.library.find(ACTION)
    assert policy is not None

    def operation(raw: bytes) -> Operation:
        body = GUARD.read(raw)
        return to_operation(body, body.idempotency_key)

    def row(raw: bytes) -> GuardRow:
        return decided_row(authority, worker, operation(raw), has_start_step=True, elapsed_ms=1)

    raws = [orjson.dumps(guard_body(f"k{place}", value="12.00")) for place in range(REQUESTS)]
    operations = [operation(raw) for raw in raws]
    known = [extract_facts(policy, one.facts(), Requester("k", is_worker=True)).variables for one in operations]
    answers = [recorded(row(raw)) for raw in raws]
    return {
        "read: the strict reader and the schema": microseconds(lambda raw: GUARD.of_object(read_object(raw)), raws),
        "read: in one pass": microseconds(GUARD.read, raws),
        "operation and digest": microseconds(operation, raws) - microseconds(GUARD.read, raws),
        "conditions of the rules": microseconds(policy.rule_conditions.answers, known),
        "decide, a worker asks": microseconds(lambda one: provisional(authority, worker, one), operations),
        "decide, an agent asks": microseconds(lambda one: provisional(authority, agent, one), operations),
        "bytes to row, all": microseconds(row, raws),
        "the same, one after a pause": after_a_pause(row, raws, 1),
        "the same, each of 16 after a pause": after_a_pause(row, raws, 16),
        "permit": microseconds(
            lambda one: authority.permits.issue(worker.tenant_id, one.permit_id, one.digest), answers
        ),
        "answer, with its permit": microseconds(lambda one: to_answer(worker, one, authority.permits), answers),
    }


def main() -> None:
    """Print the pieces."""
    table = Table("piece", "µs of processor time", title="a guard without its commit")
    found = pieces()
    for name, value in found.items():
        table.add_row(name, f"{value:.1f}")
    total = found["bytes to row, all"] + found["answer, with its permit"]
    table.add_row("bytes to row and row to bytes", f"{total:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()

"""What tests of the authority's promises share: many callers at once, moving time, whole-database comparisons.

A `Desk` is one authority process's worth of parts (pool, writer, caller) in this process; several desks on one database
race like several processes do, because nothing is shared between them but the database.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg

from sentinel.authority.actor import Actor
from sentinel.authority.api.guard import GUARD, to_operation
from sentinel.authority.api.identity import Identity
from sentinel.authority.app import build_authority
from sentinel.authority.approvals import ApprovalResolution, resolve_approval
from sentinel.authority.decisions import Receipt, Recorded
from sentinel.authority.engine import Authority, Caller
from sentinel.authority.settings import Settings
from sentinel.core.errors import SentinelError
from sentinel.platform.resources import policies_dir
from sentinel.policy.library import ReloadablePolicies
from tests.support.fixtures import SECRET, Fixtures, unlimited
from tests.support.verbs import guarded, reported, started

T = TypeVar("T")
PATIENT_SECONDS = 40.0
"""For so long a test with the fixture `patient` waits for a lock, and for a statement."""


def scaled(number: int) -> int:
    """`number` for CI; SENTINEL_TEST_SCALE multiplies it for long runs."""
    return max(1, int(number * float(os.environ.get("SENTINEL_TEST_SCALE", "1"))))


def seeded(seed: int, number: int) -> random.Random:
    """A generator whose seed and size are printed, so that a red run can be replayed."""
    print(f"seed={seed} N={number}")
    return random.Random(seed)


def at_once(jobs: Sequence[Callable[[], T]], *, seconds: float = 60) -> list[T | BaseException]:
    """Run every job in a thread of its own, all let go at one moment; results or errors in the order of the jobs."""
    results: list[Any] = [TimeoutError("never came back")] * len(jobs)
    gate = threading.Barrier(len(jobs))

    def run(place: int, job: Callable[[], T]) -> None:
        gate.wait()
        try:
            results[place] = job()
        except BaseException as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    return results


def on_a_loop(waiting: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own, in a thread: a browser that is open in this one has a loop running."""
    (result,) = at_once([lambda: asyncio.run(waiting)])
    if isinstance(result, BaseException):
        raise result
    return result


def thread_that_starts_later() -> Callable[[threading.Thread], None]:
    """`Thread.start` of a process that has no room for a thread the first time, and then has."""
    start, refused = threading.Thread.start, threading.Event()

    def first_fails(thread: threading.Thread) -> None:
        if refused.is_set():
            return start(thread)
        refused.set()
        raise RuntimeError("can't start new thread")

    return first_fails


@dataclass
class Desk:
    """An authority with its own connections and its own group commit, asked by one agent key."""

    authority: Authority
    caller: Caller

    def guard(self, body: dict[str, Any]) -> Recorded:
        """The committed row behind a guard's answer."""
        asked = GUARD.of_object(body)
        return guarded(
            self.authority, self.caller, to_operation(asked, asked.idempotency_key), has_start_step=asked.has_start_step,
            start_id=asked.start_id,
        )  # fmt: skip

    def start(self, body: dict[str, Any], permit: Recorded, start_id: uuid.UUID | None = None) -> Receipt:
        """Redeem what `guard` handed out. Raises the service's refusals."""
        assert permit.permit_id is not None
        return started(
            self.authority, self.caller, idempotency_key=body["idempotency_key"], action=body["action"],
            agent_id=body["agent_id"], resource=permit.resource, risk_class=permit.risk_class,
            permit_token=self.authority.permits.issue(self.caller.tenant_id, permit.permit_id, permit.digest),
            start_id=start_id or uuid.uuid4(),
        )  # fmt: skip

    def report(self, body: dict[str, Any], outcome: str = "success") -> Receipt:
        """Report without a token."""
        return reported(
            self.authority, self.caller, idempotency_key=body["idempotency_key"], action=body["action"],
            agent_id=body["agent_id"], outcome=outcome, error=None, result=None, resource=None, risk_class=None,
            permit_token=None, report_id=None,
        )  # fmt: skip


def caller_of(fixtures: Fixtures, key: str | None = None) -> Caller:
    """Who an agent key is."""
    identity = Identity(fixtures.authority.pool, unlimited())
    return identity.caller("guard", {"HTTP_X_API_KEY": key or fixtures.key})


@contextmanager
def desks(fixtures: Fixtures, number: int, *, url: str | None = None, **over: Any) -> Iterator[list[Desk]]:
    """`number` authorities on the fixtures' database, as if each were a process."""
    caller = caller_of(fixtures)
    policies = ReloadablePolicies(fixtures.authority.policies.directory or policies_dir())
    settings = Settings(database_url=url or fixtures.url, secret_keys=(SECRET,), pool_size=16, **over)
    made = [Desk(build_authority(settings, policies), caller) for _ in range(number)]
    try:
        yield made
    finally:
        for desk in made:
            desk.authority.pool.close()


def refused(call: Callable[[], Any]) -> str:
    """The stable code of the refusal that `call` meets; "" when it is done."""
    try:
        call()
    except SentinelError as error:
        return error.code
    return ""


def actor(fixtures: Fixtures, role: str) -> Actor:
    """The fixtures' operator of that role, signed in."""
    return Actor(fixtures.tenant_id, fixtures.operators[role], f"{role}@somewhere.example", role)


def decide(
    fixtures: Fixtures, approval_id: Any, verdict: str = "approve", *, role: str = "approver"
) -> ApprovalResolution:
    """A person's vote on an approval."""
    return resolve_approval(
        fixtures.console_pool, actor(fixtures, role), uuid.UUID(str(approval_id)), verdict=verdict, reason="looked at it",
        digest=digest_of(fixtures, approval_id),
    )  # fmt: skip


def digest_of(fixtures: Fixtures, approval_id: Any) -> str:
    """What a person is shown with an approval; "" for one that is not there."""
    found = fixtures.admin.execute(
        "select digest from sentinel.approvals where approval_id = %s", [approval_id]
    ).fetchone()
    return str(found[0]) if found else ""


def let_permits_expire(fixtures: Fixtures, *, seconds: float = 1) -> None:
    """Every permit that is out and not redeemed ended `seconds` ago."""
    fixtures.admin.execute(
        "update sentinel.operation_states set permit_expires_at = clock_timestamp() - make_interval(secs => %s)"
        " where permit_id is not null and status in ('allowed', 'approved')", [seconds])  # fmt: skip


def let_leave_end(fixtures: Fixtures) -> None:
    """Nobody may act on a start that was answered so far: its time is over."""
    fixtures.admin.execute(
        "update sentinel.operation_states set act_until = clock_timestamp() where act_until > clock_timestamp()"
    )


def let_approvals_expire(fixtures: Fixtures) -> None:
    """Every pending approval ended a second ago."""
    fixtures.admin.execute(
        "update sentinel.approvals set created_at = created_at - interval '1 day',"
        " expires_at = clock_timestamp() - interval '1 second' where status = 'pending'")  # fmt: skip


def dump(admin: psycopg.Connection[Any]) -> dict[str, list[str]]:
    """Every row of every table of ours as text: two dumps are equal when nothing at all changed.

    What decisions share is left out: it is put in before anybody knows what comes of a question, and says nothing of an operation.
    """
    tables = admin.execute(
        "select format('%I.%I', schemaname, tablename) from pg_tables where schemaname in ('sentinel', 'refunds')"
        " and tablename not in ('decision_terms', 'window_parts') order by 1"
    ).fetchall()
    return {
        name: [row for (row,) in admin.execute(f"select to_jsonb(t)::text from {name} t order by 1".encode())]
        for (name,) in tables
    }

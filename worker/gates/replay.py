"""Runs the cases through the real worker: workflow, settlement systems and confirm cards, against a real authority.

Only the customer is scripted, and answers through the same database function as the confirm page. Cases are grouped by
the switches and halt that they need, and the groups run one after the other.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import class_row

from sentinel.client import Client
from sentinel.platform.outside_systems import OUTSIDE_SYSTEMS
from sentinel.store.database import CONSOLE, WORKER, Pool, open_connection, with_role
from worker.failpoints import Failpoints
from worker.gates.account_history import make_account_history
from worker.gates.cases import Case, CaseFile
from worker.gates.fixtures import enter_cases, names_of, write_labels
from worker.gates.judge import ReplayedRow
from worker.gates.run_request import RunRequest
from worker.gates.simulated_systems import SimulatedSystems, serve_simulated_systems
from worker.gates.wrong_executions import Executed, MoneyMovement
from worker.refunds.build import make_agent, open_client
from worker.refunds.ledger import Ledger
from worker.refunds.settings import WorkerSettings

MOST_ROUNDS = 8
_SECRET = "scratch-links-0123456789abcdefghijklmnop"  # only for the scratch database, which is deleted
# How long the card of a late customer is valid: enough for the link to be sent before it expires on a slow machine too.
_LATE_SECONDS = 2
_ANSWERS = {"confirm": "confirm", "decline": "decline"}

STATES = """
select ledger_entry_id, status, waiting_for, reason_code, last_error from refunds.ledger_entries
where tenant_id = %s and ledger_entry_id = any (%s)
"""
EXECUTED = (
    "select ledger_entry_id, refund_id, amount_minor, currency, system from refunds.executions where tenant_id = %s"
)
CARDS = """
select c.ledger_entry_id, c.confirmation_id, c.digest from refunds.confirmations c
join refunds.ledger_entries e using (tenant_id, ledger_entry_id)
where c.tenant_id = %s and c.status = 'pending' and c.ledger_entry_id = any (%s) and e.waiting_for = 'customer'
"""
ANSWER = """
select refunds.answer_confirmation(%s, a.id, a.digest, a.answer)
from unnest(%s::uuid[], %s::text[], %s::text[]) as a (id, digest, answer)
"""
# Keeps rows from being processed until `MAKE_DUE`: those of other groups wait for their turn.
HOLD_BACK = (
    "update refunds.ledger_entries set next_attempt_at = 'infinity' where tenant_id = %s and ledger_entry_id = any (%s)"
)
MAKE_DUE = """
update refunds.ledger_entries set next_attempt_at = clock_timestamp()
where tenant_id = %s and ledger_entry_id = any (%s) and status = 'NEW'
"""
MAKE_LATE_DUE = """
update refunds.ledger_entries set next_attempt_at = clock_timestamp()
where tenant_id = %s and ledger_entry_id = any (%s) and status = 'APPROVAL_REQUIRED' and waiting_for = 'customer'
"""
SECONDS_LEFT = """
select coalesce(extract(epoch from max(expires_at) - clock_timestamp()), 0)::float8 from refunds.confirmations
where tenant_id = %s and ledger_entry_id = any (%s)
"""
SET_SWITCH = """
insert into sentinel.switches as s (tenant_id, name, is_on, canary_percent, changed_at, changed_by, reason)
values (%(tenant_id)s, %(name)s, %(is_on)s, %(percent)s, clock_timestamp(), 'launch gate', 'scratch')
on conflict (tenant_id, name) do update set is_on = excluded.is_on, canary_percent = excluded.canary_percent
"""
# Whether the systems are as they should be is what the replay finds out: here, and only here, they count as proven before.
COUNT_AS_PROVEN = """
insert into sentinel.gate_reports (tenant_id, report_id, scenario, switch, policy_digest, passed, cases, correct, lower_bound_ppm,
  wrong_executions, not_covered, report, created_at, recorded_by)
values (%s, gen_random_uuid(), %s, %s, 'sha256:' || repeat('0', 64), true, 1, 1, 1000000, 0, 0,
  jsonb_build_object('sandbox', %s::text[]), clock_timestamp(), 'launch gate')
"""
SET_HALT = """
insert into sentinel.halts (tenant_id, halt_id, scope, target, level, reason, set_by, set_at)
values (%s, %s, 'scenario', %s, 'kill', 'scratch', 'launch gate', clock_timestamp())
"""
LIFT_HALTS = (
    "update sentinel.halts set lifted_at = clock_timestamp(), lifted_by = 'launch gate' where lifted_at is null"
)
DAY = "select date_trunc('day', clock_timestamp(), %s)"


@dataclass(frozen=True, slots=True)
class Replayed:
    """The state after the replay: rows by case id, execution rows, money that simulated systems moved, and whether a
    day of the policy began during the run."""

    seen: Mapping[str, ReplayedRow]
    executed: tuple[Executed, ...]
    moved: tuple[MoneyMovement, ...]
    day_changed: bool


def replay(job: RunRequest, file: CaseFile, folder: Path) -> Replayed:
    """Run all cases; `folder` takes the run's files.

    Raises `AccountHistoryFailed`, `LedgerUnavailable`, `UnsafeConfiguration`.
    """
    with ExitStack() as stack:
        stand_ins = stack.enter_context(serve_simulated_systems()) if job.simulate_systems else None
        settings = _settings(job, folder, stand_ins)
        client = stack.enter_context(open_client(settings, job.tenant_id))
        admin = stack.enter_context(psycopg.connect(job.database_url, autocommit=True))
        pool = Pool(with_role(job.database_url, WORKER), size=settings.lanes + 6)
        stack.callback(pool.close)
        world = _CaseRunner(job, file, settings, client, admin, Ledger(pool, job.tenant_id, worker_id="launch-gate"))
        return world.play(stand_ins)


def _settings(job: RunRequest, folder: Path, stand_ins: SimulatedSystems | None) -> WorkerSettings:
    """Make a worker's settings without reading the environment, so that a gate's result does not depend on who runs it."""
    settings = WorkerSettings(
        authority_url=job.authority_url, api_key=job.api_key, database_url=job.database_url, tenant_id=job.tenant_id,
        policies_dir=job.policies_dir, confirm_secrets=(_SECRET,), recogniser=f"labels:{folder / 'labels.json'}",
        public_orders_imported=True, outbox_dir=folder / "outbox", lanes=1, concurrency=4, batch=256, lease_seconds=60.0,
        guard_timeout_seconds=10.0, backoff_seconds=0.02, backoff_max_seconds=0.1,
    )  # fmt: skip
    return replace(settings, **(job.sandbox if stand_ins is None else stand_ins.settings()))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _CaseRunner:
    job: RunRequest
    file: CaseFile
    settings: WorkerSettings
    client: Client
    admin: psycopg.Connection[Any]
    ledger: Ledger

    def play(self, stand_ins: SimulatedSystems | None) -> Replayed:
        write_labels(self.file.cases, Path(self.settings.recogniser.removeprefix("labels:")))
        day = self._day()
        prefixes = [system.prefix for system in OUTSIDE_SYSTEMS]
        self.admin.execute(COUNT_AS_PROVEN, [self.job.tenant_id, self.job.scenario, self.job.switch, prefixes])
        enter_cases(self.ledger, self.admin, self.file)
        self._tell(HOLD_BACK, [names_of(case).entry for case in self.file.cases])
        with self._board("on"):
            make_account_history(self.client, self.admin, self.job, self.file.cases)
        late, prompt = self._groups(is_late=True), self._groups(is_late=False)
        # The cards of late customers are sent first, and expire while the other cases run.
        for play, groups in ((self._send_cards, late), (self._rounds, prompt), (self._play_late, late)):
            for board, cases in groups.items():
                with self._board(board):
                    play(cases)
        seen = self._seen(self.file.cases)
        moved = (
            [MoneyMovement(body["ledger_entry_id"], system) for system, body in stand_ins.money()] if stand_ins else []
        )
        return Replayed(seen, self._executed(), tuple(moved), self._day() != day)

    def _groups(self, *, is_late: bool) -> dict[str, list[Case]]:
        groups: dict[str, list[Case]] = {}
        for case in self.file.cases:
            if (case.given.card == "late") is is_late:
                groups.setdefault(case.given.board, []).append(case)
        return groups

    def _rounds(self, cases: Sequence[Case]) -> None:
        """Run the worker until no case is under way, answering cards in between; at most `MOST_ROUNDS` times."""
        entries = [names_of(case).entry for case in cases]
        answers = {names_of(case).entry: _ANSWERS.get(case.given.card) for case in cases}
        for _ in range(MOST_ROUNDS):
            self._tell(MAKE_DUE, entries)
            self._run_worker(self.settings)
            if not self._answer(answers) and not self._is_under_way(cases):
                return

    def _send_cards(self, cases: Sequence[Case]) -> None:
        """Run the worker up to the confirm cards, which expire after `_LATE_SECONDS`; then hold the rows back again."""
        entries = [names_of(case).entry for case in cases]
        self._tell(MAKE_DUE, entries)
        self._run_worker(replace(self.settings, confirm_expires_seconds=_LATE_SECONDS))
        self._tell(HOLD_BACK, entries)

    def _play_late(self, cases: Sequence[Case]) -> None:
        """Run the worker on the late cases once their cards have expired without an answer."""
        entries = [names_of(case).entry for case in cases]
        self._wait_until_over(entries)
        self._tell(MAKE_LATE_DUE, entries)
        self._run_worker(self.settings)

    def _wait_until_over(self, entries: Sequence[str]) -> None:
        left = self.admin.execute(SECONDS_LEFT, [self.job.tenant_id, list(entries)]).fetchone()
        assert left is not None
        time.sleep(max(0.0, left[0]) + 0.01)

    def _run_worker(self, settings: WorkerSettings) -> None:
        make_agent(settings, self.ledger, self.client, failpoints=Failpoints()).run_once()

    def _answer(self, answers: Mapping[str, str | None]) -> int:
        """Answer the pending cards of the customers who answer; return how many."""
        asked = self.admin.execute(CARDS, [self.job.tenant_id, list(answers)]).fetchall()
        given = [(card, digest, answers[entry]) for entry, card, digest in asked if answers[entry]]
        if given:
            with open_connection(with_role(self.job.database_url, CONSOLE)) as console:
                console.execute(ANSWER, [self.job.tenant_id, *map(list, zip(*given, strict=True))])
        return len(given)

    def _is_under_way(self, cases: Sequence[Case]) -> bool:
        return any(seen.end == "unfinished" for seen in self._seen(cases).values())

    def _seen(self, cases: Sequence[Case]) -> dict[str, ReplayedRow]:
        by_entry = {names_of(case).entry: case.id for case in cases}
        rows = self.admin.execute(STATES, [self.job.tenant_id, list(by_entry)]).fetchall()
        return {by_entry[entry]: ReplayedRow(*rest) for entry, *rest in rows}

    def _executed(self) -> tuple[Executed, ...]:
        with self.admin.cursor(row_factory=class_row(Executed)) as cursor:
            return tuple(cursor.execute(EXECUTED, [self.job.tenant_id]).fetchall())

    def _day(self) -> object:
        return self.admin.execute(DAY, [self.job.zone]).fetchone()

    def _tell(self, statement: str, entries: Sequence[str]) -> None:
        self.admin.execute(statement.encode(), [self.job.tenant_id, list(entries)])

    @contextmanager
    def _board(self, board: str) -> Iterator[None]:
        """Set the scenario's switches, and a halt, as the cases of one group need them; lift the halt afterwards."""
        off = {"master_off": "small_refund.enabled", "switch_off": self.job.switch}.get(board)
        for name in ("small_refund.enabled", self.job.switch):
            percent = 0 if name == off or (board == "outside_canary" and name == self.job.switch) else 100
            fields = {"tenant_id": self.job.tenant_id, "name": name, "is_on": name != off, "percent": percent}
            self.admin.execute(SET_SWITCH, fields)
        if board == "halted":
            self.admin.execute(SET_HALT, [self.job.tenant_id, uuid.uuid4(), self.job.scenario])
        try:
            yield
        finally:
            self.admin.execute(LIFT_HALTS)

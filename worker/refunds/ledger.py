"""The refunds schema as typed calls, each a single statement and so a single transaction.

A row that is no longer in the expected state and epoch is missing from the result: its claim was lost to another worker.
"""

from __future__ import annotations

import logging
import math
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import datetime
from operator import itemgetter
from typing import Any, TypeVar

import orjson
import psycopg
from psycopg import errors as pg
from psycopg.rows import BaseRowFactory, RowMaker, class_row, dict_row, scalar_row, tuple_row
from psycopg.types.json import Jsonb

from sentinel.core.errors import EngineUnavailable, MayBeRecorded
from sentinel.core.money import Money
from sentinel.store.database import Pool, first_line
from sentinel.store.migrate import SchemaNotReady
from worker.refunds import sql
from worker.refunds.rows import (
    Change,
    Execution,
    FixedQuestion,
    KeptImage,
    KnownFacts,
    LedgerFigures,
    LedgerRow,
    NewRow,
    OpenCounts,
    OrderFacts,
    OrderKey,
    ParkedReport,
    ReleaseLease,
    Report,
    ResolvedDoubt,
    SummaryLine,
    UntakenRows,
    WithoutAccount,
)
from worker.refunds.transitions import handled_elsewhere
from worker.refunds.workflow.routes import IN_PARTS

_log = logging.getLogger("worker")

_TRIES = 4
_CHUNK = 1000
_FACTS_CHUNK = 250
"""Rows that are not entered, per statement: a table that was just filled has no statistics, and each row may take milliseconds."""

ROW_REFUSED = (pg.DataError, pg.IntegrityError)
"""Errors by which the database refuses the content of one row; other rows of the batch may still be accepted."""

_AWAY = (psycopg.OperationalError, psycopg.InterfaceError, pg.ReadOnlySqlTransaction, EngineUnavailable)
"""The database is unreachable, or read-only like a replica before its promotion: says nothing about a row."""

_NO_ROOM = (pg.DiskFull, pg.OutOfMemory, pg.IoError)
"""The server says that it cannot do it, and has undone the statement: no connection is lost."""

Value = TypeVar("Value")
Fact = TypeVar("Fact")
Lend = Callable[[], AbstractContextManager[psycopg.Connection[Any]]]
"""Lends a connection, as `Pool.connection` and `Pool.long_transaction` do."""


class LedgerUnavailable(Exception):
    """The worker's database did not answer, or is read-only; whether the last statement was committed is unknown."""


class StatementTooLong(LedgerUnavailable):
    """The database cancelled a statement at its time limit: the statement may ask for too much, or the database be slow."""


class Ledger:
    """The ledger of one tenant, used by one worker. Thread-safe.

    Every call raises `LedgerUnavailable`, and `SchemaNotReady` if the database's schema lacks what the call needs. The
    calls on behalf of a person (`retry`, `handle`, `resend_reports`, `discard_reports`, `add_rows`) are not retried
    after a lost connection: they raise `MayBeRecorded` if their answer was lost.
    """

    def __init__(
        self,
        pool: Pool,
        tenant_id: uuid.UUID,
        *,
        worker_id: str,
        lease_seconds: float = 30.0,
        act_seconds: float = 120.0,
    ) -> None:
        self.pool, self.tenant_id = pool, tenant_id
        self._who: dict[str, Any] = {
            "tenant_id": tenant_id, "worker_id": worker_id, "lease_seconds": float(lease_seconds),
            "act_seconds": float(act_seconds),
        }  # fmt: skip
        # Monotonic time at which the database last failed to answer: leases that expired around then expired because of
        # the outage, not because of their row.
        self._away_at = -math.inf
        self.is_away = False
        """Whether the database did not answer the last call."""

    # Claims

    def claim(self, limit: int, until: datetime | None = None, agent: str | None = None) -> list[LedgerRow]:
        """Claim up to `limit` rows for one lease: rows with an expired lease first, then due rows.

        With `until`, only rows that were due at that moment, so that rows which this run puts back are left to the next
        run. With `agent`, only its rows.
        """
        blames = time.monotonic() - self._away_at > 2 * self._who["lease_seconds"]
        lapsed = self._rows(LedgerRow, sql.CLAIM_EXPIRED, limit=limit, until=until, agent=agent, blames=blames)
        if len(lapsed) == limit:
            return lapsed
        due = sql.CLAIM_DUE if agent is None else sql.CLAIM_DUE_OF_AGENT
        return lapsed + self._rows(LedgerRow, due, limit=limit - len(lapsed), until=until, agent=agent)

    def now(self) -> datetime:
        """The database's time, by which leases and due times are decided."""
        moment: datetime = self._one(sql.NOW)
        return moment

    def peek(self, limit: int, agent: str | None = None) -> list[LedgerRow]:
        """Return the due rows that a claim would take after those with an expired lease, without claiming. With `agent`, only its rows."""
        due = sql.PEEK_DUE if agent is None else sql.PEEK_DUE_OF_AGENT
        return self._rows(LedgerRow, due, limit=limit, until=None, agent=agent)

    def count_lapsed(self, agent: str | None) -> int:
        """How many rows have an expired lease, which a claim takes first. With `agent`, only its rows."""
        count: int = self._one(sql.COUNT_LAPSED, agent=agent)
        return count

    def extend(self, ids: Iterable[str]) -> None:
        """Renew the leases of those of `ids` that this worker still holds."""
        self._run(sql.EXTEND_LEASES, ids=list(ids))

    # The life of a claimed row

    def facts(self, ids: Sequence[str]) -> dict[str, KnownFacts]:
        """Return the facts of the rows by ledger entry id; a row whose facts cannot be computed, or not in time, is missing."""
        try:
            return {found.ledger_entry_id: found for found in self._rows(KnownFacts, sql.GATHER_FACTS, ids=list(ids))}
        except (*ROW_REFUSED, StatementTooLong) as error:
            if len(ids) > 1:
                # Halved rather than row by row: each statement that times out costs its whole time limit.
                half = len(ids) // 2
                return {**self.facts(ids[:half]), **self.facts(ids[half:])}
            _log.error("the facts of %s cannot be read: %s", ids[0], type(error).__name__)
            return {}

    def facts_of_new(self, rows: Sequence[NewRow]) -> tuple[list[LedgerRow], dict[str, KnownFacts]]:
        """Return rows that are not in the ledger with the facts they would have, from an insert that is rolled back.

        For an id that is in the ledger already, its row there is returned.
        """

        def inserted(connection: psycopg.Connection[Any]) -> tuple[list[LedgerRow], list[KnownFacts]]:
            found: list[LedgerRow] = []
            known: list[KnownFacts] = []
            # All rows are inserted first: the facts of one depend on the others.
            with (
                connection.transaction(force_rollback=True),
                connection.cursor(row_factory=class_row(LedgerRow)) as row_cursor,
                connection.cursor(row_factory=class_row(KnownFacts)) as facts_cursor,
            ):
                for start in range(0, len(rows), _CHUNK):
                    part = _new_rows(rows[start : start + _CHUNK])
                    connection.execute(sql.ADD_ROWS.encode(), {**self._who, "rows": part})
                for start in range(0, len(rows), _FACTS_CHUNK):
                    ids = [row.ledger_entry_id for row in rows[start : start + _FACTS_CHUNK]]
                    fields = {**self._who, "ids": ids}
                    found += row_cursor.execute(sql.FIND_ROWS.encode(), fields).fetchall()
                    known += facts_cursor.execute(sql.GATHER_FACTS.encode(), fields).fetchall()
            return found, known

        found, known = self._attempted(inserted, is_repeatable=True)
        return found, {facts.ledger_entry_id: facts for facts in known}

    def left_of_orders(self, orders: Collection[OrderKey]) -> dict[OrderKey, Money]:
        """Return what is left to be refunded of each order; orders of which that is unknown are missing."""
        wanted = _json([order._asdict() for order in orders])
        found = self._run(sql.FIND_LEFT, orders=wanted) if orders else []
        return {OrderKey(channel, source, ref): Money(left, currency) for channel, source, ref, currency, left in found}

    def fix_requests(
        self, rows: Sequence[tuple[LedgerRow, FixedQuestion, uuid.UUID | None]]
    ) -> dict[str, uuid.UUID | None]:
        """Store each row's question before it is first asked: (row, question, the start id that it encloses or None).

        Returns id → the row's start id, for the rows whose claim still holds. A question or start id that an earlier
        holder stored is kept.
        """
        batch = [
            {
                "ledger_entry_id": row.ledger_entry_id,
                "epoch": row.claim_epoch,
                "request": question.as_json(),
                "start_id": start_id,
            }
            for row, question, start_id in rows
        ]
        return dict(self._run(sql.FIX_REQUESTS, requests=_json(batch))) if batch else {}

    def apply(self, changes: Sequence[Change], impossible: dict[str, str] | None = None) -> dict[str, uuid.UUID | None]:
        """Apply events; returns id → the row's start id, for the rows that were in the expected state and epoch.

        A change with `takes_order` is not applied if another row has taken the order, and a permission is not applied
        if the order's budget has no room for it; `why_refused` returns the reason. A change that the database refuses
        does not keep the others from being applied; it is put into `impossible`: id → why.
        """
        if not changes:
            return {}
        try:
            batch = _json([change.as_json() for change in changes])
            return dict(self._run(sql.APPLY_CHANGES, changes=batch, in_parts=list(IN_PARTS)))
        except ROW_REFUSED as error:
            if len(changes) > 1:
                parts = [self.apply([change], impossible) for change in changes]
                return {row_id: start_id for part in parts for row_id, start_id in part.items()}
            row_id = changes[0].row.ledger_entry_id
            # The primary message alone: the details may quote the row.
            why = error.diag.message_primary or type(error).__name__
            _log.error("the database refused %s of %s: %s", changes[0].event, row_id, why)
            if impossible is not None:
                impossible[row_id] = why
            return {}

    def why_refused(self, ids: Sequence[str]) -> dict[str, str]:
        """Return id → the escalation code of why its permission was not recorded, for the rows that their order keeps from it."""
        found = self._run(sql.FIND_REFUSED, ids=list(ids), in_parts=list(IN_PARTS)) if ids else []
        return {row_id: reason for row_id, reason in found if reason is not None}

    def in_doubt(self, limit: int = 200, agent: str | None = None) -> list[LedgerRow]:
        """Return up to `limit` of the rows that ended in doubt, a random page each time. With `agent`, only its rows."""
        return self._rows(LedgerRow, sql.FIND_IN_DOUBT, limit=limit, agent=agent)

    def settle_in_doubt(self, resolved: Mapping[str, ResolvedDoubt]) -> list[str]:
        """Settle rows in doubt, given by id; returns the ids that were in doubt and no longer are.

        An answer that nothing was started is ignored for a row that the ledger knows to have been begun.
        """
        batch = [one.as_json(row_id) for row_id, one in resolved.items()]
        return self._column(sql.SETTLE_DOUBTS, resolutions=_json(batch)) if batch else []

    def release_leases(self, releases: Sequence[ReleaseLease]) -> set[str]:
        """Release the leases of rows without an event; a later claim finds out their outcome. Returns the ids of those that were held."""
        if not releases:
            return set()
        return set(self._column(sql.RELEASE_LEASES, rows=_json([release.as_json() for release in releases])))

    def retry(self, ids: Sequence[str] | None, *, who: str, why: str) -> dict[str, str | None]:
        """Bring rows in ERROR back to NEW (`ids` None: all of them); returns id → None, or the code of why it was refused.

        All in one transaction, which may take minutes: after an import there may be very many rows.
        """
        wanted = None if ids is None else list(ids)
        lend = self.pool.long_transaction
        return dict(self._run(sql.RETRY_ENTRIES, is_repeatable=False, lend=lend, ids=wanted, who=who, why=why))

    def handle(self, ledger_entry_id: str, *, who: str, reference: str, why: str) -> str | None:
        """Record that a person handled the row's refund elsewhere, if nothing of it was begun.

        Returns None, or the code of why the row stays as it is. In one transaction the row is claimed in that person's
        name and ended with the event DENIED, reason `handled_by_person`.
        """

        def call(connection: psycopg.Connection[Any]) -> LedgerRow | None:
            with connection.transaction(), connection.cursor(row_factory=class_row(LedgerRow)) as cursor:
                fields = {**self._who, "id": ledger_entry_id, "who": who}
                row = cursor.execute(sql.CLAIM_TO_HANDLE.encode(), fields).fetchone()
                if row is not None:
                    changes = _json([handled_elsewhere(row, who=who, reference=reference, why=why).as_json()])
                    connection.execute(
                        sql.APPLY_CHANGES.encode(), {**self._who, "changes": changes, "in_parts": list(IN_PARTS)}
                    )
            return row

        if self._attempted(call, is_repeatable=False) is not None:
            return None
        refusal: str | None = self._one(sql.WHY_NOT_HANDLED, id=ledger_entry_id)
        return refusal or "no_such_row"

    def wake_put_off(self, within_seconds: float) -> None:
        """Make the rows that wait for something outside due again, spread over `within_seconds`, because it answers again."""
        self._run(sql.WAKE_PUT_OFF, within_seconds=within_seconds)

    def record_executions(self, executions: Sequence[Execution]) -> set[str]:
        """Write executions, set their rows to EXECUTED and queue their reports; returns the ids executed.

        All or nothing per call. Raises `psycopg.errors.IntegrityError` when a row's execution is impossible: then
        nothing of the call was written.
        """
        if not executions:
            return set()
        settled = [execution.as_json() for execution in executions]
        shared = _take_shared_steps(settled)
        return set(
            self._column(sql.RECORD_EXECUTIONS, settled=_json(settled), shared=_json(shared) if shared else None)
        )

    def recorded_executions(self, executions: Sequence[Execution]) -> set[str]:
        """The rows of which these very executions are on record, and not another worker's."""
        ids = [execution.execution_id for execution in executions]
        return set(self._column(sql.FIND_EXECUTIONS, ids=ids)) if ids else set()

    # Reports

    def take_reports(
        self, limit: int, *, retry_seconds: float, older_than_seconds: float = 0.0, agent: str | None = None
    ) -> list[Report]:
        """Claim open reports for one attempt each. With `agent`, only those of its rows."""
        return self._rows(
            Report, sql.TAKE_REPORTS, limit=limit, retry_seconds=retry_seconds, older_than_seconds=older_than_seconds, agent=agent
        )  # fmt: skip

    def acknowledge(self, ids: Sequence[uuid.UUID]) -> None:
        """Record that the authority received these reports."""
        if ids:
            self._run(sql.ACKNOWLEDGE_REPORTS, ids=list(ids))

    def postpone_reports(self, failures: Mapping[uuid.UUID, tuple[str, float | None]]) -> None:
        """Schedule the next attempt of failed reports: id → (what happened, seconds until then; None: never, a person must look)."""
        if failures:
            batch = [
                {"outbox_id": outbox_id, "last_error": text, "due_in_seconds": seconds}
                for outbox_id, (text, seconds) in failures.items()
            ]
            self._run(sql.POSTPONE_REPORTS, reports=_json(batch))

    def parked_reports(self) -> list[ParkedReport]:
        """Reports that the authority refused for good and that nobody has discarded, the oldest first."""
        return self._rows(ParkedReport, sql.FIND_PARKED_REPORTS)

    def resend_reports(self, ids: Sequence[uuid.UUID], said: str) -> list[uuid.UUID]:
        """Make parked reports due again; returns the ids of those that were parked. `said`: who did it and why."""
        return self._act(sql.RESEND_REPORTS, ids=list(ids), said=said)

    def discard_reports(self, ids: Sequence[uuid.UUID], said: str) -> list[uuid.UUID]:
        """Stop sending parked reports; returns the ids of those that were parked. `said`: who did it and why.

        The amount of a discarded success of a row in doubt counts against its order from then on, as handled.
        """
        return self._act(sql.DISCARD_REPORTS, ids=list(ids), said=said)

    # Approvals

    def approvals_wanted_since(self, agent_id: str, overlap_seconds: float) -> datetime | None:
        """Return from when on approval decisions matter to waiting rows, less `overlap_seconds`; None when no row waits."""
        found: datetime | None = self._one(
            sql.APPROVALS_WANTED_SINCE, agent_id=agent_id, overlap_seconds=overlap_seconds
        )
        return found

    def wake_decided(self, approval_ids: Sequence[str]) -> int:
        """Make the waiting rows of these approvals due; returns how many there were."""
        return len(self._column(sql.WAKE_DECIDED, approval_ids=list(approval_ids)))

    def move_cursor(self, agent_id: str, since: datetime) -> None:
        """Record that decisions up to `since` have been fetched."""
        self._run(sql.MOVE_CURSOR, agent_id=agent_id, since=since)

    # Workers and operators

    def show_worker(
        self, *, agent_id: str, mode: str, status: str, last_action: str | None, last_decision: str | None
    ) -> None:
        """Publish this worker's status and what it did last."""
        self._run(
            sql.SHOW_WORKER, agent_id=agent_id, mode=mode, status=status, last_action=last_action, last_decision=last_decision
        )  # fmt: skip

    def forget_ended(self, agent_id: str) -> None:
        """Delete the records of the agent's other worker processes not seen for a day, and operators' requests answered 30 days ago."""
        self._run(sql.FORGET_WORKERS, agent_id=agent_id)
        self._run(sql.FORGET_PROCESS_REQUESTS)

    def untaken(self, agent: str, *, due_seconds: float, silent_seconds: float) -> list[UntakenRows]:
        """Count, per agent other than `agent`, the rows that no worker takes.

        They have been due for `due_seconds`, and no worker of their agent was seen for `silent_seconds`.
        """
        return self._rows(
            UntakenRows, sql.FIND_UNTAKEN, agent=agent, due_seconds=due_seconds, silent_seconds=silent_seconds
        )

    def take_process_request(
        self, agent: str | None, *, silent_seconds: float, hold_seconds: float = 30.0
    ) -> uuid.UUID | None:
        """Claim an operator's request that one entry be processed now, for `hold_seconds`; returns its id, or None.

        With `agent`, the request is left to a running loop of another agent, seen within `silent_seconds`, if only that
        agent has a due row.
        """
        found = self._column(
            sql.TAKE_PROCESS_REQUEST, agent=agent, silent_seconds=silent_seconds, hold_seconds=hold_seconds
        )
        return found[0] if found else None

    def finish_process_request(self, request_id: uuid.UUID, result: Mapping[str, Any]) -> None:
        """Store the answer to an operator's request."""
        self._run(sql.FINISH_PROCESS_REQUEST, request_id=request_id, result=_json(result))

    # Intake and overview

    def add_rows(self, rows: Sequence[NewRow]) -> set[str]:
        """Enter rows as NEW; returns the ids that were not there before. All or nothing per 1,000 rows."""
        added: set[str] = set()
        for start in range(0, len(rows), _CHUNK):
            added.update(self._act(sql.ADD_ROWS, rows=_new_rows(rows[start : start + _CHUNK])))
        return added

    def without_account(self, ids: Iterable[str]) -> list[WithoutAccount]:
        """Count those of the rows that name no account, by currency: they share the budget of one account."""
        return self._rows(WithoutAccount, sql.COUNT_WITHOUT_ACCOUNT, ids=list(ids))

    def without_order(self, ids: Iterable[str], channels: Sequence[str]) -> int:
        """Count those of the rows, in these channels, that belong to no known order and do not say whether they were requested in time."""
        (count,) = self._column(sql.COUNT_WITHOUT_ORDER, ids=list(ids), channels=list(channels))
        return int(count)

    def add_orders(self, orders: Sequence[OrderFacts]) -> set[str]:
        """Enter or correct order facts; returns the order refs that changed anything."""
        changed: set[str] = set()
        for part in _in_turn(orders, lambda order: (order.channel, order.source, order.order_ref)):
            changed.update(self._column(sql.ADD_ORDERS, orders=_json([asdict(order) for order in part])))
        return changed

    def flag_orders(self, flags: Sequence[Mapping[str, Any]]) -> int:
        """Set or close flags, each {channel, source, order_ref, flag, closed}: a complaint or a delay; returns how many were written."""
        parts = _in_turn(
            flags, lambda flag: (flag["channel"], flag.get("source") or "", flag["order_ref"], flag["flag"])
        )
        return sum(len(self._column(sql.FLAG_ORDERS, flags=_json(part))) for part in parts)

    def blacklist(self, accounts: Sequence[Mapping[str, Any]]) -> int:
        """Blacklist accounts, each {channel, account_ref}: their refunds need a person from now on; returns how many are new."""
        parts = _in_turn(accounts, lambda account: (account["channel"], account["account_ref"]))
        return sum(len(self._column(sql.BLACKLIST_ACCOUNTS, accounts=_json(part))) for part in parts)

    def add_image(self, ledger_entry_id: str, sha256: str, media_type: str, content: bytes) -> None:
        """Store a proof image; the same image again changes nothing."""
        self._run(
            sql.ADD_IMAGE, ledger_entry_id=ledger_entry_id, sha256=sha256, media_type=media_type, content=content
        )  # fmt: skip

    def images(self, ids: Sequence[str]) -> dict[str, list[KeptImage]]:
        """Return the proof images of rows by ledger entry id, with what was read in them before; `image_content` returns the bytes."""
        found: dict[str, list[KeptImage]] = {}
        for image in self._rows(KeptImage, sql.FIND_IMAGES, ids=list(ids)):
            found.setdefault(image.ledger_entry_id, []).append(image)
        return found

    def image_content(self, image: KeptImage) -> bytes:
        """The bytes of one proof image."""
        (content,) = self._run(
            sql.FIND_IMAGE_CONTENT,
            scalar_row,
            in_binary=True,
            ledger_entry_id=image.ledger_entry_id,
            sha256=image.sha256,
        )
        return bytes(content)

    def keep_reading(self, image: KeptImage, recogniser: str, reading: Mapping[str, Any]) -> None:
        """Store what a recogniser read in an image; it is never read again."""
        self._run(
            sql.KEEP_READING, ledger_entry_id=image.ledger_entry_id, sha256=image.sha256, recogniser=recogniser,
            reading=_json(reading),
        )  # fmt: skip

    def explain(self, ledger_entry_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
        """(the row, its events and steps by time), or None where there is no such row."""
        entry = self._run(sql.EXPLAIN_ENTRY, dict_row, id=ledger_entry_id)
        return (entry[0], self._run(sql.EXPLAIN_EVENTS, dict_row, id=ledger_entry_id)) if entry else None

    def summary(self) -> list[SummaryLine]:
        """Counts and sums of the whole ledger by status, decision, reason and currency."""

        def call(connection: psycopg.Connection[Any]) -> list[SummaryLine]:
            with connection.cursor(row_factory=class_row(SummaryLine)) as cursor:
                return cursor.execute(sql.SUMMARISE.encode(), self._who).fetchall()

        return self._attempted(call, is_repeatable=True, lend=self.pool.long_transaction)

    def open_counts(self) -> OpenCounts:
        """Counts of the rows that are not finished."""
        return self._rows(OpenCounts, sql.COUNT_OPEN)[0]

    def figures(self) -> LedgerFigures:
        """Counts and ages of the ledger's rows and reports, for metrics."""
        return self._rows(LedgerFigures, sql.FIGURES)[0]

    # Running

    def _rows(self, kind: type[Value], statement: str, **fields: Any) -> list[Value]:
        return self._run(statement, _value_row(kind), **fields)

    def _column(self, statement: str, **fields: Any) -> list[Any]:
        return self._run(statement, scalar_row, **fields)

    def _one(self, statement: str, **fields: Any) -> Any:
        found = self._column(statement, **fields)
        return found[0] if found else None

    def _run(
        self, statement: str, row_factory: Any = tuple_row, *, in_binary: bool = False, is_repeatable: bool = True,
        lend: Lend | None = None, **fields: Any,
    ) -> list[Any]:  # fmt: skip
        """Run one statement and return its rows. `in_binary`: results are sent in binary, as bytes in text take twice the length."""

        def call(connection: psycopg.Connection[Any]) -> list[Any]:
            with connection.cursor(row_factory=row_factory) as cursor:
                cursor.execute(statement.encode(), {**self._who, **fields}, binary=in_binary)
                return cursor.fetchall() if cursor.description else []

        return self._attempted(call, is_repeatable=is_repeatable, lend=lend)

    def _act(self, statement: str, **fields: Any) -> list[Any]:
        """Run one statement for a person, without a retry on a lost connection.

        A retry would be refused because of what the first attempt did.
        """
        return self._run(statement, scalar_row, is_repeatable=False, **fields)

    def _attempted(
        self, call: Callable[[psycopg.Connection[Any]], Value], *, is_repeatable: bool,
        lend: Lend | None = None,
    ) -> Value:  # fmt: skip
        """Run `call` in one transaction; retry deadlocks up to three times and a lost connection once.

        Retrying is safe: a second claim takes other rows, and every change names the epoch it expects. A call that is
        not `is_repeatable` is not retried after a lost connection; it raises `MayBeRecorded`.
        """
        lost = False
        for attempt in range(_TRIES):
            is_sent = False
            try:
                with (lend or self.pool.connection)() as connection:
                    is_sent = True
                    answer = call(connection)
                    self.is_away = False
                    return answer
            except (pg.DeadlockDetected, pg.SerializationFailure) as error:
                if attempt == _TRIES - 1:
                    raise LedgerUnavailable(first_line(error)) from error
            except _NO_SCHEMA as error:
                raise _not_migrated(error) from error
            except (pg.QueryCanceled, pg.LockNotAvailable, pg.ReadOnlySqlTransaction, *_NO_ROOM) as error:
                self._note_away()
                kind = StatementTooLong if isinstance(error, pg.QueryCanceled) else LedgerUnavailable
                raise kind(first_line(error)) from error
            except _AWAY as error:
                self._note_away()
                if is_sent and not is_repeatable:
                    raise MayBeRecorded from error
                if lost or isinstance(error, EngineUnavailable):
                    raise LedgerUnavailable(first_line(error)) from error
                lost = True
        raise LedgerUnavailable("the database cannot order this statement")

    def _note_away(self) -> None:
        self._away_at, self.is_away = time.monotonic(), True


def default_tenant(pool: Pool) -> uuid.UUID | None:
    """The tenant that rows belong to when nothing says otherwise. Raises `LedgerUnavailable` and `SchemaNotReady`."""
    try:
        with pool.connection() as connection:
            row = connection.execute(sql.DEFAULT_TENANT.encode()).fetchone()
    except _NO_SCHEMA as error:
        raise _not_migrated(error) from error
    except (psycopg.Error, EngineUnavailable) as error:
        raise LedgerUnavailable(first_line(error)) from error
    return row[0] if row else None


_NO_SCHEMA = (pg.InvalidSchemaName, pg.UndefinedTable, pg.UndefinedColumn, pg.UndefinedFunction)


def _not_migrated(error: psycopg.Error) -> SchemaNotReady:
    return SchemaNotReady(f"the database is not migrated: run `sentinel migrate` first ({first_line(error)})")


def _value_row(kind: type[Value]) -> BaseRowFactory[Value]:
    """As psycopg's `class_row`, but the columns of a struct are matched once for a result and not by name for each row,
    which takes ten times as long. Columns that are not exactly its fields are left to `class_row`."""
    by_name = class_row(kind)
    members: tuple[str, ...] = getattr(kind, "__struct_fields__", ())

    def of_result(cursor: Any) -> RowMaker[Value]:
        names = [column.name for column in cursor.description or ()]
        if len(members) < 2 or sorted(names) != sorted(members):
            return by_name(cursor)
        in_order = itemgetter(*(names.index(member) for member in members))

        def of_row(values: Sequence[Any]) -> Value:
            return kind(*in_order(values))

        return of_row

    return of_result


def _in_turn(facts: Iterable[Fact], key: Callable[[Fact], Hashable]) -> Iterator[list[Fact]]:
    """Split the facts, in order, into parts of at most `_CHUNK` in which no key comes twice.

    One statement cannot write a row twice; in a later part, the later fact corrects the earlier one.
    """
    part: dict[Hashable, Fact] = {}
    for fact in facts:
        if len(part) == _CHUNK or key(fact) in part:
            yield list(part.values())
            part = {}
        part[key(fact)] = fact
    if part:
        yield list(part.values())


def _take_shared_steps(rows: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the steps that several rows share; in the rows' `steps` their numbers stand in their place.

    Rows share a step as one object (`Runner._pass`), so that none is compared by its content.
    """
    steps = [step for row in rows for step in row["steps"] or ()]
    times = Counter(map(id, steps))
    shared = {id(step): step for step in steps if times[id(step)] > 1}
    numbers = {each: number for number, each in enumerate(shared)}
    for row in rows:
        row["steps"] = row["steps"] and [numbers.get(id(step), step) for step in row["steps"]]
    return list(shared.values())


def _new_rows(rows: Sequence[NewRow]) -> Jsonb:
    """The batch of ADD_ROWS."""
    return _json([{"position": n, **asdict(row), "risk": row.risk or {}} for n, row in enumerate(rows)])


def _json(value: Any) -> Jsonb:
    return Jsonb(value, dumps=_dumps)


def _dumps(value: Any) -> bytes:
    """Encode as JSON that PostgreSQL accepts: characters that it cannot store become U+FFFD. Never raises."""
    try:
        found = orjson.dumps(value)
    except TypeError:
        return orjson.dumps(storable(value), default=lambda odd: type(odd).__name__)
    return orjson.dumps(storable(value)) if b"\\u0000" in found else found


_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def storable(value: Any) -> Any:
    """Return the value with U+FFFD in place of characters that PostgreSQL cannot store in text: NUL, half a surrogate pair."""
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {storable(name): storable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [storable(each) for each in value]
    return value

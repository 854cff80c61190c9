"""The first page: what needs a person now, by age and amount, recent decisions, and whether the workers run.

Its figures refresh themselves; each is a link to the page where something can be done about it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from flask import Blueprint, Response, request

from ops_console.board.figures import OUTCOMES
from ops_console.context import ConsoleContext
from ops_console.identity import actor
from ops_console.pages import shell
from ops_console.pages.decision_minutes import DecisionMinutes, Part, in_steps
from ops_console.pages.hour_charts import BOX, Drawing, Gauge, drawn, seconds_drawn
from ops_console.pages.ledger_reads import read_ledger
from ops_console.pages.text import span
from ops_console.read_models import gauges
from ops_console.read_models import overview as figures
from ops_console.read_models.refund_views import OutboxLag, WorkerRow, last_workers, outbox_lag
from sentinel.authority.approval_queue import KINDS
from sentinel.authority.halts import HaltRow, list_halts
from sentinel.authority.switches import flipped_switches
from sentinel.core.wording import counted
from sentinel.store.database import Pool
from sentinel.store.queries import database_time

_NAMES = {"refund": "Refunds", "escalation": "Escalations", "order": "Orders", "change": "Operators and keys",
          "other": "Other actions"}  # fmt: skip
_MOST_WORKERS = 6


@dataclass(frozen=True, slots=True)
class OverviewLine:
    """One thing that needs a person: how many (None: the ledger was not read), the sum per currency, the oldest one's
    age, and the seconds until the first is due.

    `is_all` is False if there may be more; the figures are then of those that were counted.
    """

    name: str
    address: str
    about: str
    entries: int | None
    high: int
    sums: list[tuple[int, str]]
    oldest_seconds: float | None
    due_seconds: float | None
    is_all: bool = True


@dataclass(frozen=True, slots=True)
class LedgerNow:
    """The ledger's part of the page."""

    load: figures.LedgerLoad
    workers: list[WorkerRow]
    reports: OutboxLag


def routes(pages: Blueprint, context: ConsoleContext) -> None:
    """Add the page and its two parts that refresh themselves."""
    minutes = DecisionMinutes(context.pool)

    @pages.get("")
    def overview() -> Response:
        return shell.page(context, "overview.html", title="Overview", **_now(context, actor().tenant_id))

    @pages.get("/overview/now")
    @shell.refreshes_itself
    def overview_now() -> Response:
        return shell.fragment("overview_now.html", **_now(context, actor().tenant_id))

    @pages.get("/overview/decisions")
    @shell.refreshes_itself
    def overview_decisions() -> Response:
        parts = minutes.last_hour(actor().tenant_id)
        values: dict[str, Any] = {
            "steps": in_steps(parts, 5), "outcomes": OUTCOMES, "data": _chart(parts), "clock": _clock,
            "sums": {outcome: sum(part.counts[outcome] for part in parts) for outcome in OUTCOMES},
        }  # fmt: skip
        if "HX-Request" in request.headers:
            return shell.fragment("overview_decisions.html", **values)
        return shell.page(context, "overview_table.html", title="Decisions of the last hour", **values)


def _chart(parts: list[Part]) -> str:
    """The data of the chart that the script draws, as JSON: a column of seconds since 1970, then one per outcome."""
    columns = [[part.begins * 60 for part in parts], *([part.counts[o] for part in parts] for o in OUTCOMES)]
    return orjson.dumps(columns).decode()


def _clock(minute: int) -> str:
    return datetime.fromtimestamp(minute * 60, UTC).strftime("%H:%M")


def _now(context: ConsoleContext, tenant_id: uuid.UUID) -> dict[str, Any]:
    now = database_time(context.pool)
    ledger = read_ledger(lambda: _ledger(context.ledger, tenant_id)).value
    load = ledger.load if ledger else None
    switches = [row for row in flipped_switches(context.pool, tenant_id) if _by_machine(row.is_on, row.changed_by)]
    approvals, in_doubt = _approvals(context, tenant_id, now), _in_doubt(context, tenant_id, now)
    halts, samples = list_halts(context.pool, tenant_id), gauges.last_hour(context.pool, tenant_id)
    return {
        "lines": [*approvals, _refused_orders(context, tenant_id, now), *_contradicted(context, tenant_id, now), in_doubt, _breakers(halts, now), *_failed(load), *_findings(load), _alerts(context, tenant_id)],
        "gauges": _gauges(samples, approvals, in_doubt, load, halts), "minutes_drawn": seconds_drawn(samples) // 60,
        "answers": figures.answers(context.pool, tenant_id), "most_answers": figures.MOST_ANSWERS, "box": BOX, "moment": now,
        "ledger": ledger, "most_workers": _MOST_WORKERS, "halts": halts, "switches": switches,
    }  # fmt: skip


def _ledger(ledger: Pool, tenant_id: uuid.UUID) -> LedgerNow:
    return LedgerNow(
        figures.ledger_load(ledger, tenant_id), last_workers(ledger, tenant_id), outbox_lag(ledger, tenant_id)
    )  # fmt: skip


def _gauges(
    samples: list[gauges.Sample], approvals: list[OverviewLine], doubt: OverviewLine, load: figures.LedgerLoad | None, halts: list[HaltRow]
) -> list[Gauge]:  # fmt: skip
    waiting = sum(line.entries or 0 for line in approvals)
    oldest = max((line.oldest_seconds or 0.0 for line in approvals), default=0.0)
    ages = drawn(samples, lambda one: one.oldest_waiting_seconds, now=oldest, least_top=60)
    doubts = drawn(samples, lambda one: one.in_doubt, now=doubt.entries, least_top=1)
    lags = drawn(samples, lambda one: one.worker_lag_seconds, now=load.overdue_seconds if load else None, least_top=10)
    stops = drawn(samples, lambda one: one.halts, now=len(halts), least_top=1)
    return [
        Gauge("Oldest pending", "/ops/approvals", span(oldest) if waiting else "none",
              f"{waiting:,}{'' if all(line.is_all for line in approvals) else ' or more'} pending", _at_most(ages, span), ages),
        Gauge("In doubt", "/ops/in-doubt", f"{doubt.entries:,}", "started, outcome unknown", _at_most(doubts, _whole), doubts),
        Gauge("Worker lag", "/ops/ledger?status=NEW", *_lag(load), _at_most(lags, span), lags),
        Gauge("Halts in force", "/ops/halts", f"{len(halts):,}", "", _at_most(stops, _whole), stops),
    ]  # fmt: skip


def _lag(load: figures.LedgerLoad | None) -> tuple[str, str]:
    if load is None:
        return "not read", "the ledger does not respond"
    return span(
        load.overdue_seconds
    ) if load.due else "none", f"{counted(load.due, 'entry', 'entries')} due and not started"


def _at_most(drawing: Drawing, written: Callable[[float], str]) -> str:
    return f"at most {written(drawing.most)}" if drawing.most else "none"


def _whole(number: float) -> str:
    return f"{number:,.0f}"


def _by_machine(is_on: bool, changed_by: str) -> bool:
    """Whether an agent turned this switch off by itself (`authority/switches.py` records who did it)."""
    return not is_on and changed_by.startswith("agent ")


def _approvals(context: ConsoleContext, tenant_id: uuid.UUID, now: datetime) -> list[OverviewLine]:
    rows = figures.waiting(context.pool, tenant_id)
    is_all = all(row.is_all for row in rows)
    return [_of_kind(kind, [row for row in rows if row.kind == kind], now, is_all=is_all) for kind in KINDS if kind not in ("change", "other") or not is_all or any(
        row.kind == kind for row in rows)]  # fmt: skip


def _of_kind(kind: str, rows: list[figures.WaitingRow], now: datetime, *, is_all: bool) -> OverviewLine:
    return OverviewLine(
        _NAMES[kind], f"/ops/approvals?kind={kind}", "pending", sum(row.waiting for row in rows),
        sum(row.high for row in rows), [(row.amount_minor, row.currency) for row in rows if row.amount_minor and row.currency],
        _age(min((row.oldest_at for row in rows), default=None), now),
        _left(min((row.due_at for row in rows), default=None), now), is_all,
    )  # fmt: skip


def _in_doubt(context: ConsoleContext, tenant_id: uuid.UUID, now: datetime) -> OverviewLine:
    rows = figures.in_doubt(context.pool, tenant_id)
    sums = [(row.amount_minor, row.currency) for row in rows if row.amount_minor and row.currency]
    oldest = _age(min((row.oldest_at for row in rows), default=None), now)
    entries = sum(row.entries for row in rows)
    return OverviewLine("In doubt", "/ops/in-doubt", "started, outcome unknown", entries, 0, sums, oldest, None)


def _refused_orders(context: ConsoleContext, tenant_id: uuid.UUID, now: datetime) -> OverviewLine:
    rows = figures.refused_orders(context.pool, tenant_id)
    sums = [(row.amount_minor, row.currency) for row in rows if row.amount_minor and row.currency]
    oldest = _age(min((row.oldest_at for row in rows), default=None), now)
    about = "refused by the shop, as a refund or by the authority; only a person's decision moves them on"
    entries = sum(row.entries for row in rows)
    return OverviewLine("Refused orders", "/ops/orders?status=WAITING", about, entries, 0, sums, oldest, None)


def _breakers(halts: list[HaltRow], now: datetime) -> OverviewLine:
    tripped = [halt for halt in halts if halt.breaker_key is not None]
    oldest = _age(min((halt.set_at for halt in tripped), default=None), now)
    about = "too much within minutes; nothing is paid until a person lifts the halt, and due entries wait for people"
    return OverviewLine(
        "Stopped by a velocity breaker", "/ops/halts", about, len(tripped), len(tripped), [], oldest, None
    )


def _contradicted(context: ConsoleContext, tenant_id: uuid.UUID, now: datetime) -> list[OverviewLine]:
    """One line if there are contradictions, else none: apart from the other doubts, because each has set a halt."""
    rows = figures.contradicted(context.pool, tenant_id)
    if not rows:
        return []
    sums = [(row.amount_minor, row.currency) for row in rows if row.amount_minor and row.currency]
    entries = sum(row.entries for row in rows)
    about = "reported as done after a person resolved them as “not executed”; halted"
    oldest = _age(min(row.oldest_at for row in rows), now)
    return [OverviewLine("Contradictions", "/ops/in-doubt", about, entries, entries, sums, oldest, None)]


def _failed(load: figures.LedgerLoad | None) -> list[OverviewLine]:
    about = "given up by the worker or refused by the settlement system; may have been paid: see the entry"
    oldest = load.failed_oldest_seconds if load and load.failed else None
    return [
        OverviewLine("Errors", "/ops/ledger?status=ERROR", about, load.failed if load else None, 0, [], oldest, None)
    ]


def _findings(load: figures.LedgerLoad | None) -> list[OverviewLine]:
    """One line if there are findings, else none: what the reconciliation found at settlement systems after a refund was executed."""
    if load is None or not load.findings:
        return []
    about = "sent back by a bank or refunded elsewhere within 30 days: `worker reconcile` lists each"
    return [
        OverviewLine(
            "Settlement", "/ops/ledger?status=EXECUTED", about, load.findings, 0, [], load.findings_oldest_seconds, None
        )
    ]


def _alerts(context: ConsoleContext, tenant_id: uuid.UUID) -> OverviewLine:
    found = figures.undelivered_alerts(context.pool, tenant_id)
    oldest = found.oldest_seconds if found.alerts else None
    return OverviewLine("Alerts", "/ops/orders", "not delivered yet", found.alerts, 0, [], oldest, None)


def _age(moment: datetime | None, now: datetime) -> float | None:
    return None if moment is None else max((now - moment).total_seconds(), 0.0)


def _left(moment: datetime | None, now: datetime) -> float | None:
    return None if moment is None else max((moment - now).total_seconds(), 0.0)

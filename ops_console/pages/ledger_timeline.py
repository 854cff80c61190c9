"""A ledger entry's timeline: what happened, in order, from the worker's records and the authority's evidence.

Pure: rows in, moments out. An allow-list names what is shown, so that nothing that may quote a customer gets onto the
page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ops_console.pages.highlighted_diagram import PathTaken
from ops_console.pages.text import money
from ops_console.read_models.events import EventRow
from ops_console.read_models.ledger_history import Card, LedgerEffectRow, Life, Trail
from sentinel.authority.reasons import reason_text
from sentinel.core.wording import counted

# The members of a step's output that are shown: our own codes, states and names of systems. Not among them: order
# references and a model's words.
_NOTED = (
    "switch", "lifted", "lifts", "degraded", "worker", "authority", "order", "route", "settles_to", "proof", "images", "scenario",
    "look", "layer", "code", "detail", "card", "status", "escalation", "decision", "claim", "start", "settlement", "reference",
    "report",
)  # fmt: skip
_TITLES = {
    "claimed": "Claimed by a worker", "reclaimed": "Claimed again: the last lease had expired", "allowed": "Permit issued to the worker",
    "approval_required": "Pending approval", "awaiting_customer": "Pending confirmation by the customer", "customer_ended": "Ended by the customer",
    "denied": "Refused", "put_back": "Put back, to be retried", "gave_up": "Given up", "executed": "Executed",
    "start_refused": "The start was refused", "settlement_refused": "The settlement system refused permanently",
    "retried": "Retried by a person",
    "not_executed": "Resolved as not executed by a person",
}  # fmt: skip
_EVIDENCE = {
    "decision": "Decision", "start": "Start: the permit was redeemed", "outcome": "Outcome reported", "refused": "Refused when requested again",
    "asked_again": "Approval requested again", "approval_vote": "Vote", "approval_approved": "Approved",
    "approval_rejected": "Rejected", "approval_handled": "Handled by a person", "approval_expired": "Expired undecided",
    "in_doubt": "In doubt", "in_doubt_resolved": "Resolved",
    "contradiction": "Success reported after “not executed”",
}  # fmt: skip
# Members of an event's body to show beside its title, as (label, member). Text that a person wrote is handled
# separately.
_TOLD = (
    ("by", "operator"), ("by", "decided_by"), ("by", "resolved_by"), ("reference", "reference"), ("latency", "latency_ms"),
    ("policy", "policy_label"), ("start", "start_id"), ("executed", "executed"),
)  # fmt: skip
# Changes whose reason code is not shown: the decision beside them has it.
_CLAIMS = frozenset({"claimed", "reclaimed"})
_QUIET = _CLAIMS | {"allowed", "executed"}
_CHIPS = ("decision", "outcome", "verdict")


@dataclass(frozen=True, slots=True)
class StepRun:
    """A step of a run: its time in milliseconds since the run's beginning, what it noted, and the next step
    (`following`); None if the run ended there.
    """

    name: str
    at_ms: float
    noted: tuple[tuple[str, str], ...]
    message: str | None
    tool: str | None
    following: str | None


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened. `chip` is a state or verdict shown as a label, `words` text that an operator wrote."""

    at: datetime
    source: str
    title: str
    chip: str | None = None
    reason: str | None = None
    facts: tuple[tuple[str, str], ...] = ()
    words: str | None = None
    steps: tuple[StepRun, ...] = ()


def timeline(life: Life) -> list[Moment]:
    """Return everything that happened to an entry, oldest first."""
    found = [*_changes(life), *_runs(life), *evidence(life.evidence), *_cards(life.cards), *_settled(life)]
    return sorted(found, key=lambda moment: moment.at)


def last_path(trails: list[Trail]) -> PathTaken | None:
    """Return the path of the newest run, or None before the first run."""
    if not trails:
        return None
    steps = steps_of(trails[-1])
    nodes = tuple(step.name for step in steps)
    edges = tuple((step.name, step.following) for step in steps if step.following is not None)
    description = f"The last run passed {', '.join(nodes)}." if nodes else "The last run passed no step."
    return PathTaken(nodes, edges, nodes[-1] if nodes else None, description)


def steps_of(trail: Trail) -> tuple[StepRun, ...]:
    """Return a run's steps as a page shows them."""
    return tuple(map(_step, trail.steps))


def _step(noted: dict[str, Any]) -> StepRun:
    output = noted.get("output") or {}
    facts = tuple((name, _plain(output[name])) for name in _NOTED if output.get(name) not in (None, "", []))
    return StepRun(str(noted.get("step")), float(noted.get("at_ms") or 0), facts, noted.get("message"), noted.get("tool"), noted.get("next"))  # fmt: skip


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _changes(life: Life) -> Iterator[Moment]:
    for one in life.events:
        who = "by" if one.event == "retried" else "worker"
        facts = (("claim", str(one.claim_epoch)), *(((who, one.worker),) if one.worker else ()))
        title = _TITLES.get(one.event, one.event.replace("_", " ").capitalize())
        reason = one.reason_code if one.event not in _QUIET else None
        yield Moment(one.occurred_at, "ledger", title, one.to_status, reason, facts, one.note)


def _runs(life: Life) -> Iterator[Moment]:
    claims = {one.claim_epoch: one.occurred_at for one in life.events if one.event in _CLAIMS}
    for trail in life.trails:
        steps = steps_of(trail)
        # A trail is recorded at the run's end. It is shown at the run's beginning, but not before the claim of that
        # run.
        began = trail.occurred_at - timedelta(milliseconds=steps[-1].at_ms if steps else 0)
        began = max(began, claims.get(trail.claim_epoch, began))
        yield Moment(began, "workflow", "Run of the workflow", facts=(("claim", str(trail.claim_epoch)),), steps=steps)


def evidence(events: list[EventRow]) -> Iterator[Moment]:
    """Return the authority's events about an operation as moments."""
    for one in events:
        body = json.loads(one.body)
        chip = next((str(body[name]) for name in _CHIPS if body.get(name)), None)
        # The voter and the decider are often the same person, who is then named once (`dict.fromkeys`).
        facts = tuple(
            dict.fromkeys((label, _told(name, body[name])) for label, name in _TOLD if body.get(name) is not None)
        )
        words = next(
            (str(body[name]) for name in ("reason", "evidence") if one.kind != "in_doubt" and body.get(name)), None
        )
        reasons = body.get("reasons") if one.kind == "asked_again" else None
        code = (
            body.get("reason_code")
            or (reasons[0] if reasons else None)
            or (body.get("reason") if one.kind == "in_doubt" else None)
        )
        title = _EVIDENCE.get(one.kind, one.kind.replace("_", " ").capitalize())
        yield Moment(one.occurred_at, "authority", title, chip, code, facts, words)


def _told(name: str, value: Any) -> str:
    return f"{value} ms" if name == "latency_ms" else _plain(value)


def _cards(cards: list[Card]) -> Iterator[Moment]:
    for card in cards:
        asked = (
            ("amount", money(card.amount_minor, card.currency)),
            ("until", f"{card.expires_at:%Y-%m-%d %H:%M:%S} UTC"),
        )
        trouble = (
            (("link not sent", f"{card.last_delivery_error} ({counted(card.delivery_attempts, 'attempt')})"),)
            if card.last_delivery_error
            else ()
        )
        yield Moment(card.created_at, "customer", "Confirm card opened", "pending", facts=(*asked, *trouble))
        if card.delivered_at is not None:
            yield Moment(card.delivered_at, "customer", "Link handed to the notifier")
        if card.answered_at is not None:
            yield Moment(card.answered_at, "customer", "The customer answered", card.status)
        elif card.status == "expired":
            yield Moment(card.expires_at, "customer", "No answer in time", card.status)


def _settled(life: Life) -> Iterator[Moment]:
    for effect in life.effects:
        yield Moment(
            effect.created_at,
            "settlement",
            f"Effect {effect.effect_number} in {effect.system}",
            effect.state,
            facts=_effect(effect),
        )
    # The transaction that executes writes the execution and its report, in any order, a moment before the row's changes, a
    # permit among them that came with its start: by their own times, the money would move before it was permitted. No other
    # report is queued between the last claim and the execution.
    claimed = max((one.occurred_at for one in life.events if one.event in _CLAIMS), default=None)
    ended = next((one.occurred_at for one in life.events if one.event == "executed"), None)

    def shown_at(moment: datetime) -> datetime:
        return ended if claimed is not None and ended is not None and claimed <= moment <= ended else moment

    for one in life.executions:
        facts = (
            ("amount", money(one.amount_minor, one.currency)),
            ("system", one.system),
            ("execution", str(one.execution_id)),
        )
        yield Moment(shown_at(one.executed_at), "settlement", "Execution recorded", facts=facts)
    for report in life.reports:
        is_discarded = report.acknowledged_at is not None and report.last_error is not None
        trouble = (("last error", report.last_error),) if report.last_error and not is_discarded else ()
        yield Moment(
            shown_at(report.created_at),
            "settlement",
            "Report queued for the authority",
            facts=(("attempts", str(report.attempts)), *trouble),
        )
        if report.acknowledged_at is not None:
            title = "Report discarded" if is_discarded else "Report acknowledged by the authority"
            yield Moment(report.acknowledged_at, "settlement", title, words=report.last_error if is_discarded else None)
    for wrong in life.wrong:
        # What a bank sent back was executed as it should have been.
        title = (
            "Sent back: the customer does not have the refund"
            if wrong.finding == "refund_failed"
            else f"Wrong execution found: {wrong.finding.replace('_', ' ')}"
        )
        yield Moment(wrong.found_at, "reconciliation", title, "error")


def _effect(effect: LedgerEffectRow) -> tuple[tuple[str, str], ...]:
    ours: tuple[tuple[str, str | None], ...] = (("our reference", str(effect.reference)),)
    if effect.system == "stripe":
        # Stripe does not know our reference: it gets an idempotency key of its own, and the entry's id in the refund's
        # metadata.
        ours = (
            ("payment", effect.payment_ref),
            ("look for", "the payment's refund with this row as ledger_entry_id in its metadata"),
        )
    given = (
        *ours, ("the system's reference", effect.system_reference), ("attempts", str(effect.tries)),
        ("last error", effect.last_error), ("may fail", "yes" if effect.best_effort else None),
    )  # fmt: skip
    return tuple((label, value) for label, value in given if value)


def reason_in_words(code: str | None) -> str | None:
    """A reason code's sentence, or None if there is no code."""
    return None if code is None else reason_text(code)

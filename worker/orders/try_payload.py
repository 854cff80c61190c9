"""Dry run of a payload: the facts that a source reads, the fields that it does not read, and the score and lane.

Nothing is sent, asked or stored: look-ups and the model are left out, and the account is assumed to have no other order
in the last 24 hours.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from sentinel.core.errors import InvalidInput
from sentinel.core.money import money_out
from sentinel.policy.evaluate import evaluate
from sentinel.policy.library import PolicyLibrary
from worker.orders.order import (
    ACTION,
    AGENT_ID,
    KnownAccount,
    Order,
    Score,
    as_received,
    missing_facts,
    read_paths,
    resource_of,
)
from worker.orders.rule_settings import FILE_NAME as SIGNALS
from worker.orders.rule_settings import RuleSettings
from worker.orders.scoring import RulesScore, raised_for_missing_facts
from worker.orders.sources import OrderSource
from worker.orders.transitions import asked_params
from worker.presentation import cell, out

LANES = {"ALLOW": "low", "APPROVAL_REQUIRED": "medium", "DENY": "high"}


@dataclass(frozen=True, slots=True)
class FieldReading:
    """One fact that was found, its path, and its value as text of at most 80 characters."""

    fact: str
    path: str
    value: str


@dataclass(frozen=True, slots=True)
class PayloadTrial:
    """The dry run of a payload for one source; with `error` the payload would be refused with 400."""

    source: str
    error: str | None
    read: tuple[FieldReading, ...] = ()
    derived: Mapping[str, Any] | None = None
    unread: tuple[str, ...] = ()
    """Fields of the payload that the map does not read; indexes into lists are written as `*`."""
    missing: tuple[str, ...] = ()
    """Facts that are missing although the source always sends them."""
    to_look_up: tuple[str, ...] = ()
    """Missing facts that the intake would look up, which is not done here: the score is the one without them."""
    band: str | None = None
    signals: tuple[str, ...] = ()
    decision: str | None = None
    reason: str | None = None
    lane: str | None = None


def try_payload(policies: Path, source: OrderSource, payload: Mapping[str, Any]) -> PayloadTrial:
    """Process a payload as the intake would now. Raises `PolicyError` for a policies folder that cannot be read."""
    read, unread = _places(source, payload)
    try:
        order = as_received(source.to_order(payload), datetime.now(UTC))
    except InvalidInput as error:
        told = "; ".join(f"{path} {why}" for path, why in error.errors.items()) or str(error)
        return PayloadTrial(source.name, told, read, unread=unread)
    looked_up = {fact for lookup in source.lookups for fact in lookup.fields}
    missing = missing_facts(order, [fact for fact in source.always if fact not in looked_up])
    known = KnownAccount(0) if order.account_ref else KnownAccount()
    rules = RulesScore(RuleSettings.load(policies / SIGNALS))
    score = raised_for_missing_facts(rules.score(order, known), missing)
    decision, reason = _decided(policies, order, score)
    return PayloadTrial(
        source.name, None, read, {"amount": money_out(order.amount), "account_age_days": order.account_age_days},
        unread, missing, missing_facts(order, sorted(looked_up)), score.band.value, tuple(f"{one.code}: {one.detail}" for one in score.signals),
        decision, reason, LANES.get(decision),
    )  # fmt: skip


def _decided(policies: Path, order: Order, score: Score) -> tuple[str, str]:
    policy = PolicyLibrary.load(policies).find(ACTION)
    if policy is None:
        return "DENY", "no_matching_policy"
    request = {
        "action": ACTION, "agent_id": AGENT_ID, "resource": resource_of(order.source, order.order_id),
        "params": asked_params(order.source, order.order_id, order.amount, order.account_ref, score),
    }  # fmt: skip
    decided = evaluate(policy, request, datetime.now(UTC))
    return decided.verdict.value, decided.reason_code


def _places(source: OrderSource, payload: Mapping[str, Any]) -> tuple[tuple[FieldReading, ...], tuple[str, ...]]:
    found = list(read_paths(source.fields, payload))
    taken = {_starred(path) for _, path, _ in found}
    unread = dict.fromkeys(_starred(path) for path in _leaves(payload, "") if _starred(path) not in taken)
    return tuple(FieldReading(fact, path, str(value)[:80]) for fact, path, value in found), tuple(unread)


def _leaves(value: Any, path: str) -> Iterator[str]:
    """Yield the path of every value in a payload that is not null or empty."""
    parts: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, Mapping):
        parts = iter(value.items())
    elif isinstance(value, list):
        parts = iter(enumerate(value))
    elif value not in (None, ""):
        yield path
    for key, part in parts:
        yield from _leaves(part, f"{path}.{key}" if path else str(key))


def _starred(path: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def show_trial(tried: list[PayloadTrial], *, as_json: bool) -> None:
    """Print the dry runs: as one JSON object for programs, as tables for people."""
    if as_json:
        click.echo(json.dumps({"tried": [asdict(one) for one in tried]}, default=str))
        return
    for one in tried:
        out().print(cell(f"{one.source}: {_outcome(one)}", style="bold"))
        _print_table(one)
        _print_list("not read", one.unread)
        _print_list("missing, though the source always sends it", one.missing)
        _print_list("missing here; the intake looks them up", one.to_look_up)
        _print_list("signals", one.signals)


def _outcome(one: PayloadTrial) -> str:
    if one.error is not None:
        return f"refused, {one.error}"
    return f"band {one.band}, {one.decision} ({one.reason}), lane {one.lane}"


def _print_table(one: PayloadTrial) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("fact", "read at", "value"):
        table.add_column(heading)
    for each in one.read:
        table.add_row(cell(each.fact), cell(each.path), cell(repr(each.value)))
    out().print(table)


def _print_list(heading: str, lines: tuple[str, ...]) -> None:
    if lines:
        out().print(cell(f"{heading}:"))
        for line in lines:
            out().print(cell(f"  {line}"))

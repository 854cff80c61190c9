"""An order's timeline: its lanes and states, the authority's evidence, and what the shop and the alert channel did.

Pure: rows in, moments out, as in `ledger_timeline.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ops_console.pages.highlighted_diagram import PathTaken
from ops_console.pages.ledger_timeline import Moment, evidence
from ops_console.read_models.events import EventRow
from ops_console.read_models.order_views import AlertRow, AnalystDecisionRow, EffectRow, LaneEventRow, OrderRow
from sentinel.core.wording import EXECUTED_BY_PERSON

_TITLES = {
    "scored": "Scored", "allowed": "Low: may be fulfilled", "needs_analyst": "Medium: an analyst is needed", "denied": "High: not fulfilled",
    "started": "Fulfilment started", "start_refused": "The start was refused; requested again", "fulfilled": "Fulfilled",
    "gave_up": "Given up: a person must decide", "shop_refused": "Not fulfilled: back to a person", "retried": "Retried by a person",
    "reopened": "Back to a person", "refund_refused": "The refund was denied or failed: back to a person", "queued": "Queued for an analyst", "held": "Held", "rejected": "Rejected, or expired undecided",
    "refund_filed": "A refund was filed",
}  # fmt: skip
_DECISIONS = {
    "fulfil": "An analyst released it",
    "refund": "An analyst filed a refund",
    "hold": "An analyst held it",
    "retry": "An analyst retried it",
}


def timeline(
    order: OrderRow, changes: list[LaneEventRow], effects: list[EffectRow], alerts: list[AlertRow], events: list[EventRow],
    said: list[AnalystDecisionRow],
) -> list[Moment]:  # fmt: skip
    """Return everything that happened to an order, oldest first."""
    found = [
        Moment(order.received_at, "webhook", "Received", facts=(("from", order.source),)),
        *_changes(changes), *evidence(events), *_decisions(order, said), *_shop(effects), *_alerts(alerts),
    ]  # fmt: skip
    return sorted(found, key=lambda moment: moment.at)


def path_of(order: OrderRow, changes: list[LaneEventRow]) -> PathTaken:
    """Return the order's path through the lanes, with the node names of the diagram."""
    edges = tuple((_node(one.from_lane, one.from_status), _node(one.to_lane, one.to_status)) for one in changes)
    here = _node(order.lane, order.status)
    nodes = tuple(dict.fromkeys([_node(None, "RECEIVED"), *(to for _, to in edges), here]))
    description = " → ".join(node.removeprefix("none-").replace("-", " ") for node in nodes)
    return PathTaken(nodes, edges, here, description)


def _node(lane: str | None, status: str) -> str:
    return f"{lane or 'none'}-{status}"


def _changes(changes: list[LaneEventRow]) -> Iterator[Moment]:
    for one in changes:
        facts = (("lane", one.to_lane),) if one.to_lane else ()
        yield Moment(one.occurred_at, "review", _TITLES.get(one.event, one.event.replace("_", " ").capitalize()), one.to_status, facts=facts)  # fmt: skip


def _decisions(order: OrderRow, decided: list[AnalystDecisionRow]) -> Iterator[Moment]:
    for number, one in enumerate(decided, start=1):
        title = _DECISIONS.get(one.decision, one.decision)
        # This vote alone did not release the order: more people were needed, or a new approval was requested.
        still_queued = order.resolution is None or any(later.from_status == "QUEUED" for later in decided[number:])
        if (one.decision, one.from_status) == ("fulfil", "QUEUED") and still_queued:
            title = "An analyst voted to release it"
        yield Moment(one.decided_at, "analyst", title, None, None, (("by", one.decided_by),), one.reason)
    if not decided and order.resolved_at is not None and order.resolution is not None:
        # Decided when decisions were not recorded one by one.
        by = (("by", order.resolved_by),) if order.resolved_by else ()
        yield Moment(order.resolved_at, "analyst", _DECISIONS.get(order.resolution, order.resolution), None, None, by, order.resolution_reason)  # fmt: skip


def _shop(effects: list[EffectRow]) -> Iterator[Moment]:
    for one in effects:
        if one.tried_at is not None and one.shop_reference == EXECUTED_BY_PERSON:
            # Recording it counted as an attempt; those before it were calls to the shop.
            asked = "the shop was not asked again" if one.tries > 1 else "the shop was not asked"
            yield Moment(one.tried_at, "shop", f"Fulfilled, as a person said; {asked}", one.state)
        elif one.tried_at is not None:
            given = (
                ("attempts", str(one.tries)),
                ("the shop's reference", one.shop_reference),
                ("last error", one.last_error),
            )
            facts = tuple((label, value) for label, value in given if value)
            yield Moment(one.tried_at, "shop", f"The shop was told to {one.kind} it", one.state, facts=facts)
        if one.reported_at is not None and one.report_error is not None:
            yield Moment(one.reported_at, "shop", "Report discarded", words=one.report_error)
        elif one.reported_at is not None:
            yield Moment(one.reported_at, "shop", "Report acknowledged by the authority")


def _alerts(alerts: list[AlertRow]) -> Iterator[Moment]:
    for one in alerts:
        yield Moment(one.created_at, "alert", f"Alert raised: {one.kind.replace('_', ' ')}")
        if one.delivered_at is not None:
            facts = (("by", one.delivered_by),) if one.delivered_by else ()
            yield Moment(one.delivered_at, "alert", "Alert delivered", "success", facts=facts)

"""query_order, check_order, collect_image and recognise_image: the order and the image that a row is checked against.

Without an answer of the order's directory the row goes to a person. A proof image is read once, by the configured recogniser.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import islice
from typing import Any, Protocol

import orjson

from sentinel.core.money import Money
from sentinel.platform.outbound.client import NoResponse
from sentinel.platform.outbound.failures import FailureKind
from worker.images import ProofImage, Recognised, Recogniser, Unrecognised
from worker.refunds.concurrency import WorkerPool
from worker.refunds.ledger import Ledger
from worker.refunds.rows import KeptImage, KnownFacts, LedgerRow, OrderFacts
from worker.refunds.workflow.graph import Escalation, StepName, next_step
from worker.refunds.workflow.routes import MAY_BE_UNKNOWN
from worker.refunds.workflow.runner import (
    Found,
    NoDirectoryAnswer,
    PureStep,
    RunContext,
    StepResult,
    UnknownOrder,
    to_person,
)

# query_order and check_order: where a channel's orders are looked up, and whether an order's facts are consistent.

_AFTER_QUERY, _AFTER_CHECK = next_step(StepName.QUERY_ORDER), next_step(StepName.CHECK_ORDER)
_CONSISTENT = StepResult({}, _AFTER_CHECK)


class QueryOrder:
    """Asks each channel's directory once for all of its rows."""

    name = StepName.QUERY_ORDER

    def __init__(self, directories: Mapping[str, OrderDirectory]) -> None:
        self._directories = directories

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Look the orders up."""
        for channel, directory in self._directories.items():
            here = [context for context in contexts if context.row.channel == channel]
            if not here:
                continue
            found: list[Found] = [NoDirectoryAnswer("not ready")] * len(here)
            if directory.is_ready():
                found = directory.find([(context.row, context.facts) for context in here])
            for context, one in zip(here, found, strict=True):
                context.lookup = one

    def run(self, context: RunContext) -> StepResult:
        """Go on with the order; to a person without one, if the channel needs it."""
        row, found = context.row, context.lookup
        if row.channel not in self._directories:
            return StepResult({"order": "no order directory for this channel"}, _AFTER_QUERY)
        tool = self._directories[row.channel].name
        if isinstance(found, OrderFacts):
            context.order = found
            if found.account_ref and row.account_ref and found.account_ref != row.account_ref:
                return to_person(context, Escalation.ACCOUNT_MISMATCH, _AFTER_QUERY)
            return StepResult({"order_ref": found.order_ref}, _AFTER_QUERY, tool_used=tool)
        if isinstance(found, UnknownOrder):
            if row.channel in MAY_BE_UNKNOWN:
                return _unknown(tool)
            return to_person(context, Escalation.ORDER_UNKNOWN, _AFTER_QUERY, order_ref=row.order_ref)
        return to_person(context, Escalation.ORDER_DIRECTORY_UNAVAILABLE, _AFTER_QUERY, degraded=tool)


@cache
def _unknown(tool: str) -> StepResult:
    return StepResult({"order": "unknown"}, _AFTER_QUERY, tool_used=tool)


class CheckOrder(PureStep):
    """Checks the order that was queried for contradictions; a row without one has none."""

    name = StepName.CHECK_ORDER

    def run(self, context: RunContext) -> StepResult:
        """Go on, or to a person with the first contradiction."""
        found = None if context.order is None else _contradiction(context.order)
        if found is None:
            return _CONSISTENT
        return to_person(context, Escalation.ORDER_PAID_UNKNOWN, _AFTER_CHECK, contradiction=found)


def _contradiction(order: OrderFacts) -> str | None:
    """Return a code for the first contradiction within the order's facts; None if there is none."""
    if order.delivered_at is not None and order.delivered_at < order.ordered_at:
        return "delivered_before_ordered"
    if (order.shipping_fee_minor or 0) > order.paid_minor:
        return "shipping_fee_above_paid"
    if (order.item_paid_minor or 0) > order.paid_minor:
        return "item_above_paid"
    return None


class OrderDirectory(Protocol):
    """Looks up the orders of one channel."""

    name: str

    def is_ready(self) -> bool:
        """Whether it can be asked at all."""

    def find(self, rows: Sequence[tuple[LedgerRow, KnownFacts]]) -> list[Found]:
        """Return each row's order, in the sequence of the rows; never raises."""


class LedgerDirectory:
    """Orders that the shop has put into the ledger's own table: they came with the row's facts."""

    name = "ledger_orders"

    def is_ready(self) -> bool:
        """True: a row is here only if its facts are."""
        return True

    def find(self, rows: Sequence[tuple[LedgerRow, KnownFacts]]) -> list[Found]:
        """The orders that came with the rows' facts."""
        return [order_of(facts) or UnknownOrder() for _, facts in rows]


class NotConnected:
    """A channel without a configured directory."""

    def __init__(self, name: str) -> None:
        self.name = name

    def is_ready(self) -> bool:
        """False until it is configured."""
        return False

    def find(self, rows: Sequence[tuple[LedgerRow, KnownFacts]]) -> list[Found]:
        """Return no answer for every row."""
        return [NoDirectoryAnswer("not connected")] * len(rows)


def directories(*, public_is_connected: bool) -> Mapping[str, OrderDirectory]:
    """Channel → directory. A marketplace's orders count once the settings say that they are imported."""
    own = LedgerDirectory()
    return {"retail": own, "private": own, "public": own if public_is_connected else NotConnected("public_orders")}


def order_of(facts: KnownFacts) -> OrderFacts | None:
    """The order that came with a row's facts."""
    if facts.order is None:
        return None
    found: dict[str, Any] = orjson.loads(facts.order)
    times = {name: _moment(found[name]) for name in ("ordered_at", "delivered_at")}
    return OrderFacts(**{**found, **times})


def paid_of(facts: KnownFacts) -> Money | None:
    """What was paid for the order that came with a row's facts; works even if the order's times cannot be parsed."""
    if facts.order is None:
        return None
    found: dict[str, Any] = orjson.loads(facts.order)
    return Money(found["paid_minor"], found["currency"])


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


# collect_image and recognise_image: whether there is a proof image, and what is read in it.


class CollectImage:
    """Loads the images of the rows that need one."""

    name = StepName.COLLECT_IMAGE

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Load the images of the rows that have any."""
        ids = [context.row.ledger_entry_id for context in contexts if context.facts.images]
        found = self._ledger.images(ids) if ids else {}
        for context in contexts:
            context.images = found.get(context.row.ledger_entry_id, ())

    def run(self, context: RunContext) -> StepResult:
        """Go on to the recogniser; to a person without an image."""
        if not context.images:
            return to_person(context, Escalation.IMAGE_MISSING, StepName.SCENARIO_VALIDATE)
        return StepResult({"images": len(context.images)}, StepName.RECOGNISE_IMAGE, tool_used="proof_images")


Reading = Recognised | Unrecognised | NoResponse


class RecogniseImage:
    """Reads each image once. `keeps` False: what is read is not stored."""

    name = StepName.RECOGNISE_IMAGE

    def __init__(self, ledger: Ledger, worker_pool: WorkerPool, recogniser: Recogniser, *, keeps: bool = True) -> None:
        self._ledger, self._worker_pool, self._recogniser, self._keeps = ledger, worker_pool, recogniser, keeps
        self._fetching = threading.Lock()

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Read the images that were not read yet, of all rows in parallel: with a recogniser that hangs, each costs its timeout."""
        is_ready = self._recogniser.is_ready()
        images = [image for context in contexts for image in context.images]
        readings = iter(self._worker_pool.map(lambda image: self._read(image, is_ready), images))
        for context in contexts:
            context.readings = list(islice(readings, len(context.images)))

    def _read(self, image: KeptImage, is_ready: bool) -> Reading:
        if image.recognised is not None:
            return _from_json(image.recognised)
        if not is_ready:
            return NoResponse(FailureKind.NOT_SENT)
        # One at a time: they share the worker's few connections, and the network to the database, with everything else.
        with self._fetching:
            content = self._ledger.image_content(image)
        found = self._recogniser.recognise(ProofImage(image.ledger_entry_id, image.sha256, image.media_type, content))
        if isinstance(found, Recognised) and self._keeps:
            self._ledger.keep_reading(image, self._recogniser.name, _as_json(found))
        return found

    def run(self, context: RunContext) -> StepResult:
        """Go on when at least one image could be read; else to a person."""
        tool = self._recogniser.name
        readable = [reading for reading in context.readings if isinstance(reading, Recognised)]
        unanswered = any(isinstance(reading, NoResponse) for reading in context.readings)
        context.readings = readable
        if readable:
            return StepResult(
                {"read": [reading.kind for reading in readable]}, StepName.SCENARIO_VALIDATE, tool_used=tool
            )
        if unanswered:
            return to_person(context, Escalation.RECOGNISER_UNAVAILABLE, StepName.SCENARIO_VALIDATE, degraded=tool)
        return to_person(context, Escalation.IMAGE_UNRECOGNISED, StepName.SCENARIO_VALIDATE)


def _as_json(reading: Recognised) -> Mapping[str, Any]:
    amount = reading.amount
    return {
        "kind": reading.kind, "text": reading.text, "tracking_number": reading.tracking_number,
        "amount_minor": amount.amount_minor if amount else None, "currency": amount.currency if amount else None,
    }  # fmt: skip


def _from_json(text: str) -> Recognised:
    found = orjson.loads(text)
    has_amount = found["amount_minor"] is not None
    amount = Money(found["amount_minor"], found["currency"]) if has_amount else None
    return Recognised(kind=found["kind"], amount=amount, tracking_number=found["tracking_number"], text=found["text"])

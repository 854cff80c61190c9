"""What a shop offers to order review, the shop behind HTTP, and a simulated one in the database.

    POST {shop}/orders/{id}/fulfill     Idempotency-Key: the operation; {order_id, source, operation_id, amount, lane, band,
                                        signals} → 200/201 {"status": "fulfilled", "reference"?}
    POST {shop}/orders/{id}/hold        the same → 200/201 {"status": "held", "reference"?}
    GET  {shop}/orders/{id}             200 {"status": "open"|"fulfilled"|"held", "operation_id"?, "reference"?};
                                        404/410 problem: no such order

`{source}` in the shop's address becomes the order's source. Only exactly one of these answers counts: a proxy's login
page or error page is no answer.

`perform` makes an effect happen once: after an attempt without a certain result, the shop is looked at before it is
asked again. The caller records the effect before the call (operation, kind, attempts, time of the last one), and the
result after. Nothing raises.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import orjson
import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from sentinel.core.errors import EngineUnavailable
from sentinel.core.money import money_out
from sentinel.platform.outbound.client import JsonClient
from sentinel.store.database import Pool, first_line
from worker.orders.order import Review
from worker.outbound.effects import EffectRefused, EffectResult, NoAnswer, Reply, Settled, call_effect, one_line

STATUSES = ("open", "fulfilled", "held")


@dataclass(frozen=True, slots=True)
class ShopStatus:
    """The status of an order in the shop; `operation_id` is the operation that caused it, where the shop says so."""

    status: str
    operation_id: str | None = None
    reference: str | None = None


class Shop(Protocol):
    """Where orders are fulfilled or held. Thread-safe; nothing here raises.

    `operation_id` is the authority's operation, used as idempotency key: the same at every attempt.
    """

    name: str

    def fulfil(self, review: Review, operation_id: uuid.UUID) -> EffectResult:
        """Ask the shop to ship the order."""

    def hold(self, review: Review, operation_id: uuid.UUID) -> EffectResult:
        """Ask the shop not to ship the order."""

    def look(self, review: Review) -> ShopStatus | NoAnswer:
        """Read the order's status; an order that the shop does not know is "open"."""


class HttpShop:
    """A shop's own HTTP interface at `url`. Thread-safe."""

    name = "http"

    def __init__(self, url: str, api_key: str = "", timeout_seconds: float = 3.0) -> None:
        self._url, self._api_key, self._timeout_seconds = url, api_key, timeout_seconds

    def fulfil(self, review: Review, operation_id: uuid.UUID) -> EffectResult:
        """POST …/fulfill once."""
        return self._act(review, operation_id, "fulfill", "fulfilled")

    def hold(self, review: Review, operation_id: uuid.UUID) -> EffectResult:
        """POST …/hold once."""
        return self._act(review, operation_id, "hold", "held")

    def look(self, review: Review) -> ShopStatus | NoAnswer:
        """GET the order."""
        shop = self._client_for(review)
        if isinstance(shop, EffectRefused):
            return ShopStatus("open")
        reply = call_effect(shop, "GET", "")
        if isinstance(reply, NoAnswer):
            return reply
        if reply.status == 200:
            return _status_of(reply)
        return ShopStatus("open") if reply.is_absence else NoAnswer(reply.why)

    def _act(self, review: Review, operation_id: uuid.UUID, verb: str, wanted: str) -> EffectResult:
        shop = self._client_for(review)
        if isinstance(shop, EffectRefused):
            return shop
        reply = call_effect(shop, "POST", f"/{verb}", operation_id, shop_payload(review, operation_id))
        if isinstance(reply, NoAnswer):
            return reply
        return _done(reply, wanted, operation_id) if reply.is_done else reply.not_done()

    def _client_for(self, review: Review) -> JsonClient | EffectRefused:
        if review.order_id.strip(".") == "":
            # HTTP clients resolve "." and ".." in a path: the request would go to another URL.
            return EffectRefused("the order id cannot be part of a URL")
        base = self._url.rstrip("/").replace("{source}", quote(review.source, safe=""))
        return JsonClient(f"{base}/orders/{quote(review.order_id, safe='')}", self._api_key, self._timeout_seconds)


def shop_payload(review: Review, operation_id: uuid.UUID) -> dict[str, Any]:
    """The body sent to a shop about an order, signals included."""
    return {
        "order_id": review.order_id,
        "source": review.source,
        "operation_id": str(operation_id),
        "amount": money_out(review.amount),
        "lane": review.lane,
        "band": review.band,
        "signals": [{"code": signal.code, "detail": signal.detail} for signal in review.signals],
    }


def _text(value: Any) -> str | None:
    return one_line(value) or None if isinstance(value, str) else None


def _done(reply: Reply, wanted: str, operation_id: uuid.UUID) -> EffectResult:
    if reply.body.get("status") != wanted:
        return NoAnswer(f'a {reply.status} that does not say "{wanted}"')
    return Settled(_text(reply.body.get("reference")) or str(operation_id))


def _status_of(reply: Reply) -> ShopStatus | NoAnswer:
    status = reply.body.get("status")
    if status not in STATUSES:
        return NoAnswer("an answer 200 that does not give the order's status")
    return ShopStatus(str(status), _text(reply.body.get("operation_id")), _text(reply.body.get("reference")))


UNDER_WAY_SECONDS = 10.0
"""Seconds after an attempt without an answer for which "not there" proves nothing: the shop may still be processing it."""

Value = TypeVar("Value")

_log = logging.getLogger("worker.orders")


class EffectKind(StrEnum):
    """What can be done to an order in the shop."""

    FULFIL = "fulfil"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class Attempts:
    """The number of earlier attempts of an effect, and the seconds since the last one."""

    times: int = 0
    seconds_ago: float = 0.0


_DONE_STATUS = {EffectKind.FULFIL: "fulfilled", EffectKind.HOLD: "held"}


def perform(
    shop: Shop, review: Review, kind: EffectKind, operation_id: uuid.UUID, tried: Attempts = Attempts(), *,
    under_way_seconds: float = UNDER_WAY_SECONDS,
) -> EffectResult:  # fmt: skip
    """Make the effect happen once: `Settled`, it is done; `EffectRefused`, the shop refused; `NoAnswer`, retry later.

    The first attempt asks the shop, and looks at the order unless the shop said done. Later ones look first, and ask
    again only if the effect is not there and the last attempt is at least `under_way_seconds` ago.
    """
    if tried.times > 0:
        found = look(shop, review, kind, operation_id)
        if found is not NOT_THERE:
            return found
        if tried.seconds_ago < under_way_seconds:
            return NoAnswer("not there yet; the previous attempt may still be in progress")
    return _ask(shop, review, kind, operation_id)


NOT_THERE = EffectRefused("not there")
"""The shop was looked at, and the effect is not done so far."""
SHIPPED_BEFORE = EffectRefused("it was fulfilled before it could be held")
"""The order is shipped already: the only refusal of a hold that is final."""


def look(shop: Shop, review: Review, kind: EffectKind, operation_id: uuid.UUID) -> EffectResult:
    """Look whether the effect is there: `Settled`, `NOT_THERE` or `NoAnswer`.

    `EffectRefused`: the order was fulfilled under another operation; for a hold that it was shipped, `SHIPPED_BEFORE`.
    """
    found = _guarded(shop, lambda: shop.look(review))
    if not isinstance(found, ShopStatus):
        return found
    return _read(found, kind, operation_id)


def _read(standing: ShopStatus, kind: EffectKind, operation_id: uuid.UUID) -> EffectResult:
    if standing.status == _DONE_STATUS[kind]:
        whose = standing.operation_id
        # A shop's database may return a UUID in capitals.
        if kind is EffectKind.FULFIL and whose is not None and whose.lower() != str(operation_id):
            return EffectRefused("it was fulfilled under another operation")
        return Settled(standing.reference or str(operation_id))
    if kind is EffectKind.HOLD and standing.status == "fulfilled":
        return SHIPPED_BEFORE
    return NOT_THERE


def _ask(shop: Shop, review: Review, kind: EffectKind, operation_id: uuid.UUID) -> EffectResult:
    verb = shop.fulfil if kind is EffectKind.FULFIL else shop.hold
    answer = _guarded(shop, lambda: verb(review, operation_id))
    if isinstance(answer, Settled):
        return answer
    found = look(shop, review, kind, operation_id)
    if found is NOT_THERE:
        # The look agrees with a refusal; after no answer, "not there" proves nothing yet. Either way the answer stands.
        return answer
    # The shop may have refused because the effect was done already, so the look decides; while the look has no answer
    # either, a refusal counts as no answer.
    return answer if isinstance(answer, NoAnswer) and isinstance(found, NoAnswer) else found


def _guarded(shop: Shop, call: Callable[[], Value]) -> Value | NoAnswer:
    try:
        return call()
    except Exception as error:
        # Log only the error's type: its text may quote what was sent.
        _log.error("the shop %s failed: %s", shop.name, type(error).__name__)
        return NoAnswer(f"its adapter failed: {type(error).__name__}")


# The simulated shop, for demos and installations without a shop of their own: it keeps one row per order.

# One statement, so that of two concurrent calls one inserts the row and the other gets none.
_DO = """
insert into orders.simulated_shop (tenant_id, source, order_id, status, operation_id, told)
values (%(tenant_id)s, %(source)s, %(order_id)s, %(status)s, %(operation_id)s, %(told)s)
on conflict on constraint simulated_shop_once do nothing
returning status, operation_id::text, operation_id::text as reference
"""
_LOOK = """
select status, operation_id::text, operation_id::text as reference from orders.simulated_shop
where tenant_id = %(tenant_id)s and source = %(source)s and order_id = %(order_id)s
"""


class SimulatedShop:
    """Writes `orders.simulated_shop` for one tenant. Thread-safe."""

    name = "simulated"

    def __init__(self, pool: Pool, tenant_id: uuid.UUID) -> None:
        self._pool, self._tenant_id = pool, tenant_id

    def fulfil(self, review: Review, operation_id: uuid.UUID) -> EffectResult:
        """Record the order as fulfilled, unless it is held."""
        return self._do(review, operation_id, "fulfilled")

    def hold(self, review: Review, operation_id: uuid.UUID) -> EffectResult:
        """Record the order as held, unless it is fulfilled."""
        return self._do(review, operation_id, "held")

    def look(self, review: Review) -> ShopStatus | NoAnswer:
        """Read the order's row; an order without one is "open"."""
        try:
            return self._run(_LOOK, review) or ShopStatus("open")
        except (psycopg.Error, EngineUnavailable) as error:
            return NoAnswer(first_line(error))

    def _do(self, review: Review, operation_id: uuid.UUID, status: str) -> EffectResult:
        call = Jsonb(shop_payload(review, operation_id), dumps=orjson.dumps)
        try:
            found = self._run(_DO, review, operation_id=operation_id, status=status, told=call) or self._run(
                _LOOK, review
            )
        except (psycopg.Error, EngineUnavailable) as error:
            return NoAnswer(first_line(error))
        if found is None:
            return NoAnswer("the shop neither has it nor could do it")
        if found.status != status:
            return EffectRefused(f"it is {found.status} already")
        same = status == "held" or found.operation_id == str(operation_id)
        return Settled(found.reference or "") if same else EffectRefused("it was fulfilled under another operation")

    def _run(self, statement: str, review: Review, **more: Any) -> ShopStatus | None:
        fields = {"tenant_id": self._tenant_id, "source": review.source, "order_id": review.order_id, **more}
        with self._pool.connection() as connection, connection.cursor(row_factory=class_row(ShopStatus)) as cursor:
            return cursor.execute(statement.encode(), fields).fetchone()

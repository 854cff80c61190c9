"""A simulated shop in the database, for demos and installations without one: it does once what it is asked and remembers it."""

from __future__ import annotations

import uuid
from typing import Any

import orjson
import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from sentinel.core.errors import EngineUnavailable
from sentinel.store.database import Pool, first_line
from worker.orders.order import Review
from worker.orders.shop import ShopStatus, shop_payload
from worker.outbound.effects import EffectResult, NoAnswer, Refused, Settled

# In one statement: nothing is done twice, and the answer is about what was there first.
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
        """Ship it, unless it is held."""
        return self._do(review, operation_id, "fulfilled")

    def hold(self, review: Review, operation_id: uuid.UUID) -> EffectResult:
        """Hold it, unless it is shipped."""
        return self._do(review, operation_id, "held")

    def look(self, review: Review) -> ShopStatus | NoAnswer:
        """How it stands."""
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
            return NoAnswer("it is neither there nor could be done")
        if found.status != status:
            return Refused(f"it is {found.status} already")
        same = status == "held" or found.operation_id == str(operation_id)
        return Settled(found.reference or "") if same else Refused("it was fulfilled under another operation")

    def _run(self, statement: str, review: Review, **more: Any) -> ShopStatus | None:
        fields = {"tenant_id": self._tenant_id, "source": review.source, "order_id": review.order_id, **more}
        with self._pool.connection() as connection, connection.cursor(row_factory=class_row(ShopStatus)) as cursor:
            return cursor.execute(statement.encode(), fields).fetchone()

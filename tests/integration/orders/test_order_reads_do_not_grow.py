"""What an order reads does not grow with the orders before it: plans made in an empty table are kept, and none walks through it."""

from __future__ import annotations

import pytest

from tests.support.fixtures import Fixtures
from tests.support.order_fixtures import OrderFixtures, make_intake, order_body

pytestmark = pytest.mark.fresh_database  # counts what is read
FEW, MANY = 10, 60
READ = "select coalesce(sum(idx_tup_read), 0)::bigint from pg_stat_user_indexes where schemaname = 'orders'"


def entries_read(orders: OrderFixtures, count: int) -> int:
    """Index entries that each of `count` new orders reads, from its delivery to its answer."""

    def read() -> int:
        with orders.review.pool.connection() as connection:
            connection.execute("select pg_stat_force_next_flush()")
        return int(orders.one(READ))

    before = read()
    for _ in range(count):
        assert orders.deliver(order_body()).status_code == 200
    return (read() - before) // count


def test_an_order_reads_no_more_with_many_before_it(fixtures: Fixtures, authority_url: str) -> None:
    orders = make_intake(fixtures, authority_url, pool_size=1)
    first = entries_read(orders, FEW)
    entries_read(orders, MANY)
    assert 0 < entries_read(orders, FEW) <= 2 * first
    orders.close()

"""An authority over HTTP and an intake beside it, per test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sentinel.cli.scratch import listening
from tests.support.order_world import OrderWorld, make_intake
from tests.support.world import World


@pytest.fixture
def authority_url(world: World) -> Iterator[str]:
    """Where the world's authority listens."""
    with listening(world.app) as url:
        yield url


@pytest.fixture
def orders(world: World, authority_url: str) -> Iterator[OrderWorld]:
    """An intake whose authority is the real one."""
    made = make_intake(world, authority_url)
    yield made
    made.review.pool.close()

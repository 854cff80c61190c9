"""An authority over HTTP and an intake beside it, per test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sentinel.cli.scratch import listening
from tests.support.fixtures import Fixtures
from tests.support.order_fixtures import OrderFixtures, make_intake


@pytest.fixture
def authority_url(fixtures: Fixtures) -> Iterator[str]:
    """Where the fixtures' authority listens."""
    with listening(fixtures.app) as url:
        yield url


@pytest.fixture
def orders(fixtures: Fixtures, authority_url: str) -> Iterator[OrderFixtures]:
    """An intake whose authority is the real one."""
    made = make_intake(fixtures, authority_url)
    yield made
    made.close()

"""Cards on a fresh database for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.confirm_fixtures import Cards


@pytest.fixture
def cards(database_url: str) -> Iterator[Cards]:
    """Cards on a fresh database."""
    made = Cards(database_url)
    yield made
    made.close()

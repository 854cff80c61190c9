"""A ledger of its own and a fake authority for each test of the worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fake_authority import FakeAuthority
from tests.ledger_world import LedgerWorld


@pytest.fixture
def ledger_world(database_url: str) -> Iterator[LedgerWorld]:
    """One tenant's ledger on a fresh database."""
    world = LedgerWorld(database_url)
    yield world
    world.close()


@pytest.fixture
def authority() -> Iterator[FakeAuthority]:
    """A scripted authority that listens."""
    with FakeAuthority().running() as running:
        yield running

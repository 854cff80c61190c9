"""A ledger of its own, a fake authority and a shop of both for each test of the worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_authority import FakeAuthority
from tests.support.ledger_world import LedgerWorld
from tests.support.workflow_world import Shop


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


@pytest.fixture
def shop(ledger_world: LedgerWorld, authority: FakeAuthority) -> Shop:
    """A shop whose refunds that authority decides."""
    return Shop(ledger_world, authority.url)

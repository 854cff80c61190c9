"""A ledger of its own, a fake authority and a shop of both for each test of the worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_authority import FakeAuthority
from tests.support.ledger_fixtures import LedgerFixtures
from tests.support.workflow_fixtures import Shop


@pytest.fixture
def ledger_fixtures(database_url: str) -> Iterator[LedgerFixtures]:
    """One tenant's ledger on a fresh database."""
    fixtures = LedgerFixtures(database_url)
    yield fixtures
    fixtures.close()


@pytest.fixture
def authority() -> Iterator[FakeAuthority]:
    """A scripted authority that listens."""
    with FakeAuthority().running() as running:
        yield running


@pytest.fixture
def shop(ledger_fixtures: LedgerFixtures, authority: FakeAuthority) -> Shop:
    """A shop whose refunds that authority decides."""
    return Shop(ledger_fixtures, authority.url)

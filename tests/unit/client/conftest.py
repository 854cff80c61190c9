"""An authority in the place of a real one, which misbehaves on demand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_authority import FakeAuthority


@pytest.fixture
def authority() -> Iterator[FakeAuthority]:
    """A server of the test's own: what another test has on its way does not arrive here."""
    with FakeAuthority().running() as running:
        yield running

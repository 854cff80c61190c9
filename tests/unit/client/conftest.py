"""An authority in the place of a real one, which misbehaves on demand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_authority import FakeAuthority


@pytest.fixture(scope="module")
def shared() -> Iterator[FakeAuthority]:
    """One server for the module."""
    with FakeAuthority().running() as running:
        yield running


@pytest.fixture
def authority(shared: FakeAuthority) -> FakeAuthority:
    """The server, forgetful of what other tests did."""
    shared.forget()
    return shared

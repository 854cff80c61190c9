"""The TypeScript client as npm packs it, and an authority that misbehaves on demand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.adapter_environments import NotInstalled
from tests.support.fake_authority import FakeAuthority
from tests.support.node_package import agent_with, pack_client


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an agent that has the package as npm packs it."""
    folder = tmp_path_factory.mktemp("typescript")
    try:
        return agent_with(folder / "agent", pack_client(folder))
    except NotInstalled as error:
        pytest.skip(f"no Node: {error}")


@pytest.fixture
def authority() -> Iterator[FakeAuthority]:
    """A server of the test's own: what another test has on its way does not arrive here."""
    with FakeAuthority().running() as running:
        yield running

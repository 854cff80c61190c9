"""A folder for a server, and other processes that hold one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.embedded_servers import Holder, reachable_folder, wipe


@pytest.fixture
def base() -> Iterator[Path]:
    """A base folder, not yet made, that every account can reach."""
    folder = reachable_folder()
    yield folder / "var"
    wipe(folder)


@pytest.fixture
def holders() -> Iterator[list[Holder]]:
    """Processes to end, whatever happens."""
    made: list[Holder] = []
    yield made
    for holder in made:
        if holder.process.poll() is None:
            holder.kill()
        holder.process.communicate()

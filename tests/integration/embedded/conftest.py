"""A folder for a server, and other processes that hold one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.store.embedded import running
from tests.support.embedded_servers import Holder, reachable_folder, wipe


@pytest.fixture
def new_base() -> Iterator[Path]:
    """A base folder, not yet made, that every account can reach."""
    folder = reachable_folder()
    yield folder / "var"
    wipe(folder)


@pytest.fixture(scope="session")
def first_started() -> Iterator[Path]:
    """A base folder after a first start, which takes ten times as long as a copy of it: not for use, but to be copied."""
    folder = reachable_folder()
    try:
        with running(folder / "var", own=True):
            pass
        yield folder / "var"
    finally:
        wipe(folder)


@pytest.fixture
def used_base(new_base: Path, first_started: Path) -> Path:
    """A base folder in which a server has run before, and no file is anybody else's."""
    subprocess.run(["cp", "-a", str(first_started), str(new_base)], check=True)
    return new_base


@pytest.fixture
def base(new_base: Path) -> Path:
    """The base folder of a test: not yet made, unless its module takes `used_base`."""
    return new_base


@pytest.fixture
def holders() -> Iterator[list[Holder]]:
    """Processes to end, whatever happens."""
    made: list[Holder] = []
    yield made
    for holder in made:
        if holder.process.poll() is None:
            holder.kill()
        holder.process.communicate()

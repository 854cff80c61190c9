"""The demo's people and keys are made once, and are the same at each start."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from sentinel.demo.access import prepare
from tests.support.fixtures import Fixtures


@pytest.fixture(autouse=True)
def the_given_database(fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_DATABASE_URL", fixtures.url)


def test_they_are_kept_for_their_owner_alone(fixtures: Fixtures, tmp_path: Path) -> None:
    made = prepare(fixtures.url, tmp_path, threading.Event())
    assert prepare(fixtures.url, tmp_path, threading.Event()) == made
    assert [stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()] == [0o600]


@pytest.mark.parametrize("left", ["", '{"tenant_id": "', "{}"])
def test_a_file_that_a_power_cut_left_half_is_made_again(fixtures: Fixtures, tmp_path: Path, left: str) -> None:
    (tmp_path / "demo.json").write_text(left)
    made = prepare(fixtures.url, tmp_path, threading.Event())
    assert prepare(fixtures.url, tmp_path, threading.Event()) == made


def test_a_full_disk_leaves_no_half_of_it(fixtures: Fixtures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            prepare(fixtures.url, tmp_path, threading.Event())
    assert list(tmp_path.iterdir()) == []
    made = prepare(fixtures.url, tmp_path, threading.Event())
    assert prepare(fixtures.url, tmp_path, threading.Event()) == made

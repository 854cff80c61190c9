"""The demo's people and keys are made once, and are the same at each start."""

from __future__ import annotations

import dataclasses
import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from sentinel.authority.keys import find_key, revoke_key, secret_hash
from sentinel.demo.access import prepare
from tests.support.fixtures import Fixtures
from tests.support.ports import free_port
from tests.support.warm_process import run_warm


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


@pytest.mark.parametrize("revoked", ["agent_api_key", "worker_key"])
def test_a_key_that_a_visitor_revoked_is_replaced_at_the_next_start(
    fixtures: Fixtures, tmp_path: Path, revoked: str
) -> None:
    """The finding: no start became ready any more, until the folder was deleted."""
    made = prepare(fixtures.url, tmp_path, threading.Event())
    found = find_key(fixtures.console_pool, secret_hash(getattr(made, revoked)))
    assert found is not None and found.usable
    revoke_key(fixtures.console_pool, found.tenant_id, found.key_id)
    again = prepare(fixtures.url, tmp_path, threading.Event())
    renewed = find_key(fixtures.console_pool, secret_hash(getattr(again, revoked)))
    assert renewed is not None and (renewed.usable, renewed.agent_id) == (True, found.agent_id)
    assert dataclasses.replace(again, **{revoked: getattr(made, revoked)}) == made
    assert prepare(fixtures.url, tmp_path, threading.Event()) == again


@pytest.mark.parametrize("name", ["demo.json", "secret_key"])
def test_a_file_of_the_folder_that_cannot_be_used_is_named_on_one_line(
    fixtures: Fixtures, tmp_path: Path, name: str
) -> None:
    """As one of another account's folder. The finding: with a database of one's own it was a traceback."""
    (tmp_path / name).mkdir()
    ports = [
        f"--{option}={free_port()}" for option in ("port", "console-port", "orders-port", "board-port")
    ]  # `SENTINEL_DATABASE_URL` is set by the fixture above
    env = {key: value for key, value in os.environ.items() if key != "SENTINEL_SECRET_KEYS"}
    run = run_warm("sentinel.cli.main", "demo", "--once", f"--data-dir={tmp_path}", *ports, env=env)
    assert (run.returncode, run.stderr.splitlines()) == (
        1,
        [f"Error: cannot use {tmp_path / name}: Is a directory; SENTINEL_DATA_DIR names the demo's folder"],
    )

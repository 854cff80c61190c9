"""A checkpoint file that cannot be made at the start: a fault of the setting, unless only the disk is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sentinel.authority.checkpoints import CheckpointFile
from sentinel.authority.serving import _require_checkpoint_file
from sentinel.platform.settings import UnsafeConfiguration


def fails(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Make each attempt to open a checkpoint file fail with this error of the system."""

    def refused(_: CheckpointFile) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(CheckpointFile, "_open", refused)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_on_a_full_disk_an_authority_starts(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding: it ended with 2, and nobody started it again once there was room."""
    fails(monkeypatch, number)
    _require_checkpoint_file(str(tmp_path / "checkpoints.jsonl"))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EISDIR])
def test_a_file_that_is_not_to_be_written_is_a_fault_of_the_setting(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch, number)
    with pytest.raises(UnsafeConfiguration, match="^SENTINEL_CHECKPOINT_FILE: .* cannot be written: "):
        _require_checkpoint_file(str(tmp_path / "checkpoints.jsonl"))

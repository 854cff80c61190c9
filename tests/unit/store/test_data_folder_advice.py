"""What is said of a data folder that cannot be used: what is wrong, and a setting that every command knows."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sentinel.store.embedded.failures import EmbeddedError, postgres_errors_in_one_line


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EEXIST, "is a file, not a folder; move it away, or"),
        (errno.ENOTDIR, "is a file, not a folder; move it away, or"),
        (errno.ENOENT, "No such file or directory; make it, or"),
        (errno.EACCES, "Permission denied; correct its permissions, or"),
        (errno.EROFS, "Read-only file system; correct its permissions, or"),
    ],
)
def test_the_advice_fits_the_fault_and_every_command(number: int, says: str, tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError) as refused, postgres_errors_in_one_line(tmp_path):
        raise OSError(number, os.strerror(number), str(tmp_path / "var"))
    told = str(refused.value)
    assert says in told
    # `--data-dir` is an option of the demo alone.
    assert told.endswith("give another folder with SENTINEL_DATA_DIR")

"""The TypeScript client as it is published: packed by npm, and unpacked into the `node_modules` of an agent's folder.

`python -m tests.support.node_package FOLDER` packs it into that folder (`make npm-package`).
"""

from __future__ import annotations

import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.support.adapter_environments import NotInstalled
from tests.support.node import CLIENT, client_modules, run_node


def pack_client(folder: Path) -> Path:
    """The package, compiled and packed in `folder` from a copy, so that nothing is left in the checkout. Raises `NotInstalled`."""
    copy = folder / "source"
    shutil.copytree(CLIENT, copy, ignore=shutil.ignore_patterns("node_modules", "dist"))
    (copy / "node_modules").symlink_to(client_modules())
    done = run_node("npm", "pack", "--pack-destination", str(folder), folder=copy, seconds=170)
    assert done.returncode == 0, done.stdout + done.stderr
    (package,) = folder.glob("*.tgz")
    return package


def agent_with(folder: Path, package: Path) -> Path:
    """A folder whose programs import the package and nothing else."""
    (folder / "node_modules").mkdir(parents=True)
    with tarfile.open(package) as archive:
        if hasattr(tarfile, "data_filter"):  # since 3.11.4
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder / "node_modules")
    (folder / "node_modules" / "package").rename(folder / "node_modules" / "sentinel-client")
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


def main(target: str) -> int:
    """Exit code 0, or 3 with the reason where there is no Node."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            package = pack_client(Path(folder))
        except NotInstalled as error:
            print(f"Error: {error}", file=sys.stderr)
            return 3
        print(shutil.copy(package, target))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""PostgreSQL binaries that the server's account can execute: the found ones, or a copy.

As root with the checkout under root's home, the account cannot reach the environment's binaries.
Then what PostgreSQL needs of its tree is copied once per version next to the data.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from sentinel.store.embedded.account import Account, may_read_folder, may_run
from sentinel.store.embedded.binaries import Binaries
from sentinel.store.embedded.failures import EmbeddedError

_PARTS = ("bin", "lib", "lib64", "share")


def usable_binaries(found: Binaries, account: Account, home: Path) -> Binaries:
    """`found`, or its copy in `home` when the account cannot run it. Call with the start lock held."""
    if _can_use(found.bin_dir, account):
        return found
    package = found.bin_dir.parent.parent.name
    engine = home / f"engine-{found.version}"
    copied = engine / package / found.bin_dir.parent.name / "bin"
    if not copied.is_dir():
        _forget_others(home)
        _copy(found.bin_dir.parent, engine)
    if not _can_use(copied, account):
        raise EmbeddedError(
            f"the server's account {account.name} can run neither {found.bin_dir} nor its copy {copied}: "
            "install PostgreSQL where everybody can reach it"
        )
    return replace(found, bin_dir=copied)


def _can_use(bin_dir: Path, account: Account) -> bool:
    programs = all(may_run(bin_dir / name, account) for name in ("postgres", "initdb"))
    trees = (bin_dir.parent / part for part in _PARTS[1:])
    return programs and all(may_read_folder(tree, account) for tree in trees if tree.is_dir())


def _copy(tree: Path, engine: Path) -> None:
    draft = Path(tempfile.mkdtemp(prefix="engine.new-", dir=engine.parent))
    target = draft / tree.parent.name / tree.name
    for part in _PARTS:
        if (tree / part).is_dir():
            shutil.copytree(tree / part, target / part, ignore_dangling_symlinks=True)
    # Wheels keep bundled libraries in `<package>.libs` beside the package and find them by that path.
    libraries = tree.parent.with_name(f"{tree.parent.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, draft / libraries.name)
    _let_everybody_read(draft)
    draft.rename(engine)


def _let_everybody_read(root: Path) -> None:
    for folder, _, names in os.walk(root):
        os.chmod(folder, 0o755)
        for path in (os.path.join(folder, name) for name in names):
            if not os.path.islink(path):
                os.chmod(path, 0o755 if os.stat(path).st_mode & 0o100 else 0o644)


def _forget_others(home: Path) -> None:
    """Drop copies of versions that were replaced, and drafts cut short."""
    for old in home.glob("engine*"):
        shutil.rmtree(old, ignore_errors=True)

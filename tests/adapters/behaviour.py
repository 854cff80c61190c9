"""How the payments server behaves: it stands in a file beside its notes, which a test may change while the server runs."""

from __future__ import annotations

from pathlib import Path

from sentinel.platform.private_files import replace_private


def behave(notes: Path, behaviour: str) -> None:
    """How it behaves from now on. The server reads the file at any moment, so it must never find half of it."""
    replace_private(_file(notes), behaviour.encode())


def behaviour_now(notes: Path) -> str:
    """How it behaves now."""
    return _file(notes).read_text() if _file(notes).exists() else "works"


def _file(notes: Path) -> Path:
    return Path(f"{notes}.behaviour")

"""Every relative link in the documents leads to a file that is there. Run by `make docs-check`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def broken_links(root: Path) -> list[str]:
    """ "file: target" for each link to nowhere."""
    names = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    return [
        f"{name}: {target}"
        for name in filter(None, names)
        for target in LINK.findall((root / name).read_text())
        if "://" not in target and not (root / name).parent.joinpath(target).exists()
    ]


if __name__ == "__main__":
    found = broken_links(Path(__file__).parents[2])
    print("\n".join(f"broken link: {line}" for line in found))
    sys.exit(1 if found else 0)

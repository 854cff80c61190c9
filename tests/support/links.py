"""Every relative link in the documents leads to a file that is there, and to a heading of it. Run by `make docs-check`.

Files and folders that a document names in backticks, as `sentinel/core/money.py`, are there too, and so is a file of code that it
names by the last parts of its path, as `money.py`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
NAMED = re.compile(r"`((?:sentinel|worker|ops_console|policies|deploy|docs|tests)/[\w./-]*[\w/])`")
CODE = re.compile(r"`([\w./-]*\w\.(?:py|sql))`")
PATTERN = "NNNN"
"""Stands in a name for a number that is not given yet."""
NAMING = ("CONTRIBUTING.md", "docs/")
"""Documents whose file names are checked: what they say is about today. Decisions and changes tell of earlier files."""
PAST = ("docs/decisions/",)


def broken_links(root: Path) -> list[str]:
    """ "file: target" for each link to nowhere, and for each file that is named and not there."""
    found, code = [], _code_by_its_last_parts(root)
    for name in _listed(root, "*.md"):
        text = (root / name).read_text()
        links = [link for link in LINK.findall(text) if not _leads(root / name, *link)]
        found += [f"{name}: {'#'.join(filter(None, link))}" for link in links]
        if name.startswith(NAMING) and not name.startswith(PAST):
            found += [f"{name}: {path}" for path in NAMED.findall(text) if not (root / path).exists()]
            found += [f"{name}: {path}" for path in CODE.findall(text) if not _is_known(path, code)]
    return found


def _is_known(path: str, code: frozenset[str]) -> bool:
    """Also where it is none to look for here: `NAMED` has the paths from the top."""
    return path in code or PATTERN in path or bool(NAMED.fullmatch(f"`{path}`"))


def _code_by_its_last_parts(root: Path) -> frozenset[str]:
    """Every file of code by its path and by each end of it: "sentinel/core/money.py", "core/money.py", "money.py"."""
    files = _listed(root, "*.py", "*.sql")
    return frozenset(file.split("/", count)[-1] for file in files for count in range(file.count("/") + 1))


def _listed(root: Path, *patterns: str) -> list[str]:
    """Files that git knows, by path."""
    done = subprocess.run(["git", "ls-files", *patterns], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def _leads(page: Path, file: str, part: str) -> bool:
    if "://" in file:
        return True
    target = page.parent / file if file else page
    if not target.exists():
        return False
    return not part or target.suffix != ".md" or part in _anchors(target)


@cache
def _anchors(page: Path) -> frozenset[str]:
    """The names that a page's headings are linked by: lower case, hyphens for spaces, no punctuation."""
    headings = (heading.replace("`", "") for heading in HEADING.findall(page.read_text()))
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


if __name__ == "__main__":
    found = broken_links(Path(__file__).parents[2])
    print("\n".join(f"broken link: {line}" for line in found))
    sys.exit(1 if found else 0)

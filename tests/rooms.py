"""Draws product functions by chance: `python -m tests.rooms --seed 7`. Whoever knows docs/ARCHITECTURE.md alone says their rooms.

At least 18 of 20 should be placed at the first guess; a name that is not is renamed, or the page gets the words that lead to it.
`--answers` tells the rooms. Functions of one file are drawn once, and names that several rooms have are left out.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections import defaultdict
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
PACKAGES = ("sentinel", "worker", "ops_console")


def functions() -> dict[str, set[str]]:
    """Public module functions and public methods of public classes → the files that have one of the name."""
    found: dict[str, set[str]] = defaultdict(set)
    for package in PACKAGES:
        for path in sorted((REPO / package).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                inside = node.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_") else ()
                owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                for one in (node, *inside):
                    if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and not one.name.startswith("_"):
                        found[(owner if one is not node else "") + one.name].add(str(path.relative_to(REPO)))
    return found


def drawn(seed: int, number: int) -> list[tuple[str, str]]:
    """(name, file) of `number` functions, each of another file."""
    once = sorted((name, next(iter(files))) for name, files in functions().items() if len(files) == 1)
    random.Random(seed).shuffle(once)
    of_file: dict[str, str] = {}
    for name, file in once:
        of_file.setdefault(file, name)
    return [(name, file) for file, name in list(of_file.items())[:number]]


def main() -> None:
    """Print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--number", type=int, default=20)
    parser.add_argument("--answers", action="store_true", help="with the file of each")
    given = parser.parse_args()
    for name, file in drawn(given.seed, given.number):
        print(f"{name:40} {file}" if given.answers else name)


if __name__ == "__main__":
    main()

"""Running `deploy/invariants.sql`: each named query counts violations, and must count none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BLOCK = re.compile(r"^-- (\w+): (.+)\n((?:(?!-- \w+: ).*\n?)+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Invariant:
    """One thing that must always hold."""

    name: str
    sentence: str
    query: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run of one invariant found."""

    name: str
    sentence: str
    violations: int


def read_invariants(path: Path) -> list[Invariant]:
    """The named queries of the file, in order."""
    return [Invariant(name, sentence, query.strip()) for name, sentence, query in _BLOCK.findall(path.read_text())]


def run_invariants(connection: Any, path: Path) -> list[Verdict]:
    """Every invariant's count, all from one snapshot so that a live system does not look broken."""
    connection.execute("begin isolation level repeatable read read only")
    try:
        return [
            Verdict(one.name, one.sentence, int(connection.execute(one.query).fetchone()[0]))
            for one in read_invariants(path)
        ]
    finally:
        connection.execute("rollback")

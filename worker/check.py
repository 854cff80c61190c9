"""Everything in a folder of policies that the worker and the order intake read, checked before they start.

`routes.yaml`, `critic.yaml`, `order_sources.yaml`, `order_signals.yaml`, `gates/`, and of `switches.yaml` what the routes rest on. Policies
themselves are compiled by `sentinel policy check`, which asks for this too. A file that is not there is no fault here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

from sentinel.policy.errors import PolicyError, faults_of
from sentinel.policy.switches import FILE_NAME as SWITCHES
from sentinel.policy.switches import read_book, read_switches
from worker.critic.bounds import FILE_NAME as CRITIC
from worker.critic.bounds import Bounds
from worker.gates.cases import read_cases
from worker.order_review.rule_numbers import FILE_NAME as SIGNALS
from worker.order_review.rule_numbers import RuleNumbers
from worker.order_review.sources import FILE_NAME as SOURCES
from worker.order_review.sources import Sources
from worker.settlement.registry import system_names
from worker.workflow.routes import SCENARIOS, Routes

_READERS: tuple[tuple[str, Callable[[Path], object]], ...] = (
    (SWITCHES, lambda path: read_switches(path, gates=SCENARIOS)),
    ("routes.yaml", lambda path: Routes.load(path, switches=_switches(path.parent), systems=system_names())),
    (SOURCES, Sources.load),
    (SIGNALS, RuleNumbers.load),
    (CRITIC, Bounds.load),
)


def check_folder(directory: Path) -> Iterator[tuple[str, list[PolicyError]]]:
    """(name within the folder, what is wrong with it: its first fault or nothing) of every file that is there."""
    for name, read in _READERS:
        path = directory / name
        if path.exists():
            yield name, faults_of(partial(read, path))
    for path in sorted((directory / "gates").glob("*")):
        if path.suffix in (".yaml", ".yml", ".jsonl", ".json"):
            yield f"gates/{path.name}", faults_of(partial(_read_gate, path))


def _switches(directory: Path) -> Collection[str] | None:
    """The names there are; None where the file cannot say, as at the worker's start: its own fault is told by itself."""
    return read_book(directory).switches or None


def _read_gate(path: Path) -> object:
    if path.suffix not in (".yaml", ".jsonl"):
        raise PolicyError("is not read under this name", file=str(path), hint="rename it to .yaml or .jsonl")
    return read_cases(path)

"""Declared switches and their defaults (`policies/switches.yaml`). Their current state is in the database.

`read_switches` refuses a faulty file with its place; a `DeclaredSwitches` is made of any: of one that cannot be used nothing is on.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from sentinel.core.errors import NotFound
from sentinel.policy.errors import PolicyError, nearest
from sentinel.policy.source import Node, ReloadedFile, Source, Table, parse_source, read_source

FILE_NAME = "switches.yaml"
NAME = re.compile(r"(?=.{1,64}\Z)[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+", re.ASCII)
"""A switch's name: words of small letters joined by dots, at least two, e.g. "small_refund.refund_fee"."""
FIRST_CANARY = 5
"""Greatest canary percentage of a gated switch that is off, where its file has none."""
_WORD = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_POLICY_LINE = re.compile(r"^policy: +[a-z][a-z0-9_-]*(?= *$| +#)", re.MULTILINE | re.ASCII)
_POLICY_ID = re.compile(r"[a-z][a-z0-9_-]{0,63}", re.ASCII)

log = structlog.get_logger("sentinel.switches")


@dataclass(frozen=True, slots=True)
class DeclaredSwitch:
    """A switch as its file declares it. `gate` and `policy` are both there or both None (then no report is needed)."""

    name: str
    default_on: bool
    gate: str | None
    policy: str | None
    about: str
    first_canary: int = 100
    """For how many percent of the accounts at most it goes on when it was off."""


@dataclass(frozen=True, slots=True)
class DeclaredSwitches:
    """Every declared switch by name, in the file's order; empty with a `fault` (one line) where the file is unusable."""

    switches: Mapping[str, DeclaredSwitch] = field(default_factory=dict)
    fault: str | None = None

    def hint(self, name: str) -> str | None:
        """A hint naming the known switch closest to a misspelt one."""
        return nearest(name, self.switches)


class SwitchFile:
    """`switches.yaml` of a folder, read again whenever it changed. Safe for threads; one file look-up per `declared_switches`."""

    def __init__(self, directory: Path) -> None:
        # A fault may be that of a policy that is not there yet: it is looked for again.
        self._file = ReloadedFile(directory / FILE_NAME, self._load, kept=lambda found: found.fault is None)
        self.path = self._file.path
        self._fault: str | None = None

    @property
    def declared(self) -> DeclaredSwitches:
        """The file's switches now. An unusable file gives none, and one log line for each fault."""
        return self._file.current

    def _load(self, path: Path) -> DeclaredSwitches:
        declared_switches = load_declared_switches(path.parent)
        if declared_switches.fault is not None and declared_switches.fault != self._fault:
            log.error("switches_file_unusable", fault=declared_switches.fault)
        self._fault = declared_switches.fault
        return declared_switches


def load_declared_switches(directory: Path) -> DeclaredSwitches:
    """The folder's switches, or the fault that makes the file unusable. Never raises, writes no log."""
    try:
        return DeclaredSwitches(read_switches(directory / FILE_NAME))
    except PolicyError as error:
        return DeclaredSwitches(fault=str(error))


def read_switches(path: Path, gates: Collection[str] | None = None) -> dict[str, DeclaredSwitch]:
    """The declared switches by name. Raises the first `PolicyError`, also for a missing or unreadable file.

    A switch is refused that names a policy which is not beside the file, or a gate that is none of `gates`; where there is
    no policy, or no `gates` are given, any name is taken.
    """
    source, root = read_source(path)
    top = source.fields(root, "the file", known=("switches",), required=("switches",))
    table = source.table(top.entries["switches"], "switches")
    found = {name: _declared(source, name, node) for name, node in table.entries.items()}
    policies = _policy_ids(path.parent) or None
    for name, node in table.entries.items():
        for key, known in (("policy", policies), ("gate", gates)):
            named = source.table(node, name).entries.get(key)
            if named is not None and known is not None:
                source.one_of(named, f'switch "{name}": {key}', known)
    if not found:
        raise source.error(table.place, "switches must not be empty")
    return found


def _policy_ids(directory: Path) -> set[str]:
    """The policy ids that the folder's files declare, valid or not."""
    found = set()
    for path in directory.glob("*.yaml"):
        with contextlib.suppress(PolicyError, OSError, UnicodeDecodeError):
            text = path.read_text(encoding="utf-8")
            # The one line that says it, where there is one: every program that starts asks, and whole files take their time.
            line = _POLICY_LINE.search(text)
            source, root = parse_source(line.group() if line else text if "policy" in text else "", name=str(path))
            named = source.table(root, "the file").entries.get("policy")
            if named is not None:
                found.add(source.text(named, "policy"))
    return found


def _declared(source: Source, name: str, node: Node) -> DeclaredSwitch:
    what = f'switch "{name}"'
    if not NAME.fullmatch(name):
        raise source.error(node.place, f'{what} is not a name like "small_refund.refund_fee"')
    table = source.fields(
        node, what, known=("default", "gate", "policy", "first_canary", "about"), required=("default", "about")
    )
    if ("gate" in table.entries) != ("policy" in table.entries):
        raise source.error(table.place, f"{what}: gate and policy belong together")
    default_on = source.boolean(table.entries["default"], f"{what}: default")
    if default_on and "gate" in table.entries:
        raise source.error(
            table.entries["default"].place, f"{what} needs a launch gate and cannot be true here",
            f"leave it false and use `sentinel switches on {name}`",
        )  # fmt: skip
    gate, policy = (
        source.text(table.entries[key], f"{what}: {key}", form=form, means=means) if key in table.entries else None
        for key, form, means in (("gate", _WORD, "a scenario's name"), ("policy", _POLICY_ID, "a policy's id"))
    )
    about = source.text(table.entries["about"], f"{what}: about")
    return DeclaredSwitch(name, default_on, gate, policy, about, _first_canary(source, what, table))


def _first_canary(source: Source, what: str, table: Table) -> int:
    """The first canary in percent: `FIRST_CANARY` for a gated switch without one, 100 for others."""
    node = table.entries.get("first_canary")
    if node is None:
        return FIRST_CANARY if "gate" in table.entries else 100
    return source.integer(node, f"{what}: first_canary", least=1, most=100)


def known_switch(declared_switches: DeclaredSwitches, name: str) -> DeclaredSwitch:
    """The declared switch of that name. Raises `NotFound`, naming the nearest one."""
    found = declared_switches.switches.get(name)
    if found is None:
        hint = declared_switches.hint(name) or f"known: {', '.join(declared_switches.switches) or 'none'}"
        raise NotFound(f'there is no switch "{name[:64]}" ({hint})')
    return found

"""Declared switches and their defaults (`policies/switches.yaml`). Their current state is in the database.

`read_switches` raises for a faulty file, with the place of the fault; `load_declared_switches` never raises: a file
that cannot be used declares no switches, so that nothing is on.
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
"""The highest canary percentage at which a gated switch that is off may be turned on, unless its file has a `first_canary`."""
_WORD = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_POLICY_LINE = re.compile(r"^policy: +[a-z][a-z0-9_-]*(?= *$| +#)", re.MULTILINE | re.ASCII)
_POLICY_ID = re.compile(r"[a-z][a-z0-9_-]{0,63}", re.ASCII)

log = structlog.get_logger("sentinel.switches")


@dataclass(frozen=True, slots=True)
class DeclaredSwitch:
    """A switch as its file declares it. `gate` and `policy` are both set or both None (then no gate report is needed)."""

    name: str
    default_on: bool
    gate: str | None
    policy: str | None
    about: str
    first_canary: int = 100
    """The highest percentage of accounts for which it may be turned on while it is off."""


@dataclass(frozen=True, slots=True)
class DeclaredSwitches:
    """Every declared switch by name, in the file's order; empty with a `fault` (one line) where the file is unusable."""

    switches: Mapping[str, DeclaredSwitch] = field(default_factory=dict)
    fault: str | None = None

    def hint(self, name: str) -> str | None:
        """A hint naming the known switch closest to a misspelt one."""
        return nearest(name, self.switches)


class SwitchFile:
    """`switches.yaml` of a folder, read again whenever it changed. Thread-safe; each access to `declared` costs one `stat`."""

    def __init__(self, directory: Path) -> None:
        # A fault may be a policy that is not there yet, so a faulty result is not kept but loaded again.
        self._file = ReloadedFile(directory / FILE_NAME, self._load, kept=lambda found: found.fault is None)
        self.path = self._file.path
        self._fault: str | None = None

    @property
    def declared(self) -> DeclaredSwitches:
        """The file's current switches. An unusable file gives none, and one log line for each new fault."""
        return self._file.current

    def _load(self, path: Path) -> DeclaredSwitches:
        declared_switches = load_declared_switches(path.parent)
        if declared_switches.fault is not None and declared_switches.fault != self._fault:
            log.error("switches_file_unusable", fault=declared_switches.fault)
        self._fault = declared_switches.fault
        return declared_switches


def load_declared_switches(directory: Path) -> DeclaredSwitches:
    """Read the folder's switches, or the fault that makes the file unusable. Never raises, writes no log."""
    try:
        return DeclaredSwitches(read_switches(directory / FILE_NAME))
    except PolicyError as error:
        return DeclaredSwitches(fault=str(error))


def read_switches(path: Path, gates: Collection[str] | None = None) -> dict[str, DeclaredSwitch]:
    """Read the declared switches by name. Raises the first `PolicyError`, also for a missing or unreadable file.

    A switch is refused if its policy is not in the file's folder, or its gate is not one of `gates`; if the folder has
    no policy, or no `gates` are given, any name is accepted.
    """
    source, root = read_source(path, regular=True)
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
    """Return the policy ids that the folder's files declare, whether the policies are valid or not."""
    found = set()
    for path in directory.glob("*.yaml"):
        with contextlib.suppress(PolicyError, OSError, UnicodeDecodeError):
            if not path.is_file():
                continue
            text = path.read_text(encoding="utf-8")
            # Parse only the `policy:` line where one is found: every program does this when it starts, and whole files
            # take long.
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
        raise source.error(table.place, f"{what}: gate and policy must be given together")
    default_on = source.boolean(table.entries["default"], f"{what}: default")
    if default_on and "gate" in table.entries:
        raise source.error(
            table.entries["default"].place, f"{what} has a launch gate, so its default must be false",
            f"turn it on with `sentinel switches on {name}`",
        )  # fmt: skip
    gate, policy = (
        source.text(table.entries[key], f"{what}: {key}", form=form, means=means) if key in table.entries else None
        for key, form, means in (("gate", _WORD, "a scenario's name"), ("policy", _POLICY_ID, "a policy's id"))
    )
    about = source.text(table.entries["about"], f"{what}: about")
    return DeclaredSwitch(name, default_on, gate, policy, about, _first_canary(source, what, table))


def _first_canary(source: Source, what: str, table: Table) -> int:
    """Return the first canary in percent; without one in the file, `FIRST_CANARY` for a gated switch and 100 for others."""
    node = table.entries.get("first_canary")
    if node is None:
        return FIRST_CANARY if "gate" in table.entries else 100
    return source.integer(node, f"{what}: first_canary", least=1, most=100)


def known_switch(declared_switches: DeclaredSwitches, name: str) -> DeclaredSwitch:
    """Return the declared switch of that name. Raises `NotFound`, naming the nearest one."""
    found = declared_switches.switches.get(name)
    if found is None:
        hint = declared_switches.hint(name) or f"known: {', '.join(declared_switches.switches) or 'none'}"
        raise NotFound(f'there is no switch "{name[:64]}" ({hint})')
    return found

"""Reads labelled cases (`policies/gates/*.yaml` or `.jsonl`): the inputs of a row, and where the row must end.

    scenario: fee
    systems: {private: private_refund}      # where each channel's money must come from
    base: {channel: private, currency: EUR, amount: "4.90", paid: "120.00", shipping_fee: same}
    cases:
      - id: tenth
        each: {currency: [USD, EUR], "paid amount": [["80.00", "8.00"], ["123.45", "12.34"]]}
        given: {delivered: 6d}
        want: {end: execute}

`each` makes one case per combination; a key of several field names varies those fields together. In a `.jsonl` file the
first line is the head (scenario, systems, base) and every other line a case. A fault or an unknown name raises
`PolicyError` with its position.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sentinel.core.decision import REASONS
from sentinel.core.wording import counted
from sentinel.policy.errors import PolicyError
from sentinel.policy.source import (
    MAX_BYTES,
    Listing,
    Node,
    Scalar,
    Source,
    Table,
    bytes_of,
    decode_source,
    parse_source,
)
from worker.gates.case_inputs import FIELDS, CaseInputs, read_inputs
from worker.refunds.workflow.graph import Escalation
from worker.refunds.workflow.routes import CHANNELS, SCENARIOS
from worker.settlement.registry import system_names

ENDS = ("execute", "person", "deny", "error", "waiting")
MOST_CASES = 2000
_LONGEST_ID = 110
"""In characters, with the values of `each`: the ids of a case's rows are made of it, and are bounded."""
AWAITING_CUSTOMER = "awaiting_customer"  # the only reason that neither the authority nor an escalation gives
_HEAD = ("scenario", "systems", "base")
_CASE = ("id", "each", "given", "want")
_REASONS = (*dict.fromkeys([*REASONS, *Escalation]), AWAITING_CUSTOMER)
_ID = re.compile(r"[a-z0-9][a-z0-9_.-]{0,59}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Want:
    """The end that a row must come to, and its reason where that matters."""

    end: str
    reason: str | None = None

    def __str__(self) -> str:
        return f"{self.end} ({self.reason})" if self.reason else self.end


@dataclass(frozen=True, slots=True)
class Case:
    """One labelled case; `where` is "file:line:column"."""

    id: str
    where: str
    given: CaseInputs
    want: Want


@dataclass(frozen=True, slots=True)
class CaseFile:
    """A file of cases. `systems` maps a channel to the only settlement system that may execute its cases."""

    name: str
    digest: str
    scenario: str
    systems: Mapping[str, str]
    cases: tuple[Case, ...] = field(repr=False)


def read_cases(path: Path, *, regular: bool = False) -> CaseFile:
    """Read a file of cases, expanding `each`. Raises its first `PolicyError`, which names the line and the nearest known word.

    With `regular`, a pipe or device is refused.
    """
    # Read once: the digest is of the cases that run, also if the file is saved meanwhile.
    data = bytes_of(path, -1 if path.suffix == ".jsonl" else MAX_BYTES + 1, name=str(path), regular=regular)
    source, head, cases = (_lines if path.suffix == ".jsonl" else _document)(data, str(path))
    for key in ("scenario", "systems"):
        if key not in head.entries:
            raise source.error(head.place, f'a cases file: "{key}" is missing')
    scenario = source.one_of(head.entries["scenario"], "scenario", SCENARIOS)
    named = source.fields(head.entries["systems"], "systems", known=CHANNELS)
    systems = {
        channel: source.one_of(node, f"systems: {channel}", system_names()) for channel, node in named.entries.items()
    }
    base = source.fields(head.entries["base"], "base", known=FIELDS) if "base" in head.entries else None
    found: dict[str, Case] = {}
    for node in cases:
        for case in _expanded(source, node, dict(base.entries) if base else {}):
            _add(source, node, case, found, systems)
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    return CaseFile(path.name, digest, scenario, systems, tuple(found.values()))


def _document(data: bytes, name: str) -> tuple[Source, Table, tuple[Node, ...]]:
    source, root = decode_source(data, name=name)
    top = source.fields(root, "a cases file", known=(*_HEAD, "cases"), required=("cases",))
    return source, top, source.listing(top.entries["cases"], "cases")


def _lines(data: bytes, name: str) -> tuple[Source, Table, tuple[Node, ...]]:
    """Read a `.jsonl` file as YAML, of which JSON is a subset: each line becomes a list item, so line numbers stay right."""
    try:
        text = data.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise PolicyError(f"cannot be read: {type(error).__name__}", file=name) from error
    listed = "\n".join(f"- {line}" if line.strip() else "" for line in text.split("\n"))
    source, root = parse_source(listed, name=name)
    head, *cases = source.listing(root, "a cases file")
    return source, source.fields(head, "the first line", known=_HEAD), tuple(cases)


def _add(source: Source, node: Node, case: Case, found: dict[str, Case], systems: Mapping[str, str]) -> None:
    if case.id in found:
        raise source.error(node.place, f'two cases are named "{case.id}"', f"the other is at {found[case.id].where}")
    if case.want.end == "execute" and case.given.channel not in systems:
        raise source.error(node.place, f'"{case.id}" is to be executed, but systems has no "{case.given.channel}"')
    if len(case.id) > _LONGEST_ID:
        raise source.error(
            node.place, f'the name "{case.id}" with the values of `each` is longer than {_LONGEST_ID} characters'
        )
    if len(found) >= MOST_CASES:
        raise source.error(node.place, f"there are more than {MOST_CASES} cases")
    found[case.id] = case


def _expanded(source: Source, node: Node, base: dict[str, Node]) -> Iterator[Case]:
    table = source.fields(node, "a case", known=_CASE, required=("id", "want"))
    name = source.text(table.entries["id"], "id", form=_ID, means="a name of a-z 0-9 . _ -")
    view = source.within(name, "case")
    want = _want(view, table.entries["want"])
    own = view.fields(table.entries["given"], "given", known=FIELDS).entries if "given" in table.entries else {}
    where = f"{source.name}:{table.place.line}:{table.place.column}"
    for suffix, varied in _combinations(view, table.entries.get("each")):
        given = read_inputs(view, table.place, {**base, **own, **varied})
        yield Case(f"{name}{suffix}", where, given, want)


def _want(source: Source, node: Node) -> Want:
    table = source.fields(node, "want", known=("end", "reason"), required=("end",))
    end = source.one_of(table.entries["end"], "want: end", ENDS)
    reason = source.one_of(table.entries["reason"], "want: reason", _REASONS) if "reason" in table.entries else None
    return Want(end, reason)


def _combinations(source: Source, node: Node | None) -> Iterator[tuple[str, dict[str, Node]]]:
    """Yield (suffix of the id, fields) for every combination; one empty combination where there is no `each`."""
    if node is None:
        yield "", {}
        return
    columns = [
        [_values(source, key, item, n) for n, item in enumerate(source.listing(values, f"each: {key}"))]
        for key, values in source.table(node, "each").entries.items()
    ]
    for choice in itertools.product(*columns):
        fields = {name: value for _, part in choice for name, value in part.items()}
        yield "".join(f"/{label}" for label, _ in choice), fields


def _values(source: Source, key: str, item: Node, number: int) -> tuple[str, dict[str, Node]]:
    names = key.split()
    for name in names:
        if name not in FIELDS:
            # `fields` raises the usual error, with the nearest known name.
            source.fields(Table({name: item}, {name: item.place}, item.place), "each", known=FIELDS)
    parts = (item,) if len(names) == 1 else source.listing(item, f"each: {key}")
    if len(parts) != len(names):
        given = counted(len(parts), "is", "are")
        raise source.error(item.place, f"each: {key}: {len(names)} values are needed, {given} given")
    return _label(parts, number), dict(zip(names, parts, strict=True))


def _label(parts: tuple[Node, ...], number: int) -> str:
    if any(isinstance(part, (Listing, Table)) for part in parts):
        return str(number + 1)
    text = "-".join(part.text for part in parts if isinstance(part, Scalar))
    return text if re.fullmatch(r"[A-Za-z0-9._:@-]{1,30}", text) else str(number + 1)

"""Strict YAML: every node keeps its line and column, and everything ambiguous is refused.

Refused: duplicate keys, anchors and aliases, merge keys, tags, several documents, non-text keys, depth over
12, files over 256 KiB. Nothing here knows what a policy is; `Source` gives the checks that `parse` is made of, and
`ReloadedFile` reads a file again whenever it changed.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import yaml

from sentinel.core.utf8 import faulty_line
from sentinel.policy.errors import PolicyError, SourcePosition, nearest

T = TypeVar("T")

MAX_BYTES = 256 * 1024
MAX_DEPTH = 12
_KINDS = {f"tag:yaml.org,2002:{kind}": kind for kind in ("str", "int", "float", "bool", "null", "timestamp")}
_TAG_HINT = 'YAML reads a text that begins with "!" as a tag: put the whole text in quotes'
_QUOTES_AND_MORE = re.compile(r"""(['"])(?:(?!\1).)*\1\s*(?!#)\S""")
"""A text in quotes with something behind it that is no comment."""
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,15})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value as written: `kind` is the type that YAML gives it ("str", "int", …), `style` its quoting."""

    text: str
    kind: str
    style: str | None
    place: SourcePosition
    one_line: bool


@dataclass(frozen=True, slots=True)
class Listing:
    """A sequence of nodes."""

    items: tuple[Node, ...]
    place: SourcePosition


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping with text keys; `keys` has the position of each key."""

    entries: dict[str, Node]
    keys: dict[str, SourcePosition]
    place: SourcePosition


Node = Scalar | Listing | Table
_WORDS = {Scalar: "a value", Listing: "a list", Table: "a mapping"}


class Source:
    """An open policy file: its lines for messages, the errors met so far, and typed access to its nodes.

    Errors name `part` and `rule`, e.g. "limit" and "small"; `within` gives a view of the same file whose errors name
    another.
    """

    def __init__(self, name: str, lines: list[str]) -> None:
        self.name, self.lines = name, lines
        self.rule: str | None = None
        self.part = "rule"
        self.errors: list[PolicyError] = []
        self._parts: dict[str, str] = {}

    def within(self, rule: str, part: str | None = None) -> Source:
        """Return a view of the same file and error list whose errors name `rule`; without `part`, the part last given for that rule."""
        view = copy(self)
        view.rule, view.part = rule, part or self._parts.get(rule, "rule")
        self._parts[rule] = view.part
        return view

    def error(self, place: SourcePosition | None, message: str, hint: str | None = None) -> PolicyError:
        """Return the error for this place, with the text of its line."""
        line = self.line(place.line) if place else ""
        return PolicyError(
            message, file=self.name, place=place, rule=self.rule, part=self.part, hint=hint, source_line=line
        )

    def line(self, number: int) -> str:
        """Return a line of the file, counted from 1; "" past the end, where YAML reports what is missing there."""
        return self.lines[number - 1] if number <= len(self.lines) else ""

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Note a `PolicyError` of the block and go on after it, so that one run names everything that is wrong."""
        try:
            yield
        except PolicyError as error:
            self.errors.append(error)

    def table(self, node: Node, what: str) -> Table:
        """Return the node as a mapping. Raises `PolicyError`, as all checks here do."""
        if not isinstance(node, Table):
            raise self.error(node.place, f"{what} must be a mapping, not {_WORDS[type(node)]}")
        return node

    def fields(self, node: Node, what: str, *, known: Collection[str], required: Collection[str] = ()) -> Table:
        """Return the node as a mapping with only known keys and all required ones."""
        table = self.table(node, what)
        for key in table.entries:
            if key not in known:
                hint = nearest(key, known) or "known here: " + ", ".join(known)
                raise self.error(table.keys[key], f'{what}: unknown key "{key}"', hint)
        for key in required:
            if key not in table.entries:
                raise self.error(table.place, f'{what}: "{key}" is missing')
        return table

    def listing(self, node: Node, what: str) -> tuple[Node, ...]:
        """Return the items of a list that must not be empty."""
        if not isinstance(node, Listing):
            raise self.error(node.place, f"{what} must be a list, not {_WORDS[type(node)]}")
        if not node.items:
            raise self.error(node.place, f"{what} must not be empty")
        return node.items

    def text(self, node: Node, what: str, *, form: re.Pattern[str] | None = None, means: str = "") -> str:
        """Return a text value, of the given form if any; `means` describes that form in words."""
        if not isinstance(node, Scalar):
            raise self.error(node.place, f"{what} must be text, not {_WORDS[type(node)]}")
        if node.kind != "str":
            hint = f'write "{node.text}" in quotes' if node.text else self._comment_hint(node.place)
            raise self.error(node.place, f"{what} must be text; YAML reads this as {node.kind}", hint)
        if not node.text or (form and not form.fullmatch(node.text)):
            raise self.error(node.place, f'{what}: "{node.text}" is not {means or "a text"}')
        return node.text

    def _comment_hint(self, place: SourcePosition) -> str | None:
        begins = self.line(place.line)[place.column - 1 :].lstrip()
        return (
            'YAML reads a text that begins with "#" as a comment: put the text in quotes'
            if begins.startswith("#")
            else None
        )

    def integer(self, node: Node, what: str, *, least: int, most: int) -> int:
        """Return a whole number between two bounds, written in plain decimal digits."""
        if not isinstance(node, Scalar) or node.kind != "int" or not _WHOLE.fullmatch(node.text):
            raise self.error(node.place, f"{what} must be a whole number in plain digits")
        if not least <= int(node.text) <= most:
            raise self.error(node.place, f"{what} must be between {least} and {most}")
        return int(node.text)

    def boolean(self, node: Node, what: str) -> bool:
        """Return a boolean, written true or false and in no other spelling."""
        if not isinstance(node, Scalar) or node.kind != "bool" or node.text not in ("true", "false"):
            raise self.error(node.place, f"{what} must be true or false")
        return node.text == "true"

    def one_of(self, node: Node, what: str, known: Collection[str]) -> str:
        """Return a text that is one of a closed set."""
        text = self.text(node, what)
        if text not in known:
            hint = nearest(text, known) or nearest(text.upper(), known) or "known: " + ", ".join(known)
            raise self.error(node.place, f'{what}: unknown value "{text}"', hint)
        return text


def read_source(path: Path, *, name: str | None = None, regular: bool = False) -> tuple[Source, Node]:
    """A file → its `Source` and root node. Raises `PolicyError`, also for an unreadable file. `regular` as for `bytes_of`."""
    shown = name or str(path)
    return decode_source(bytes_of(path, MAX_BYTES + 1, name=shown, regular=regular), name=shown)


def bytes_of(path: Path, most: int, *, name: str, regular: bool) -> bytes:
    """Return the first `most` bytes of a file, -1 for all; `name` is what errors call it. Raises `PolicyError`.

    With `regular`, a pipe or device is refused: to read one may take for ever. Of one that a person names, what a shell
    writes into it is read.
    """
    source = Source(name, [])
    try:
        if regular and stat.S_IFMT(path.stat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            raise source.error(None, "is a pipe or device, not a file")
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise source.error(None, f"cannot be read: {error.strerror}") from error


def decode_source(data: bytes, *, name: str) -> tuple[Source, Node]:
    """The bytes of a file → its `Source` and root node; `name` is what errors call it. Raises `PolicyError`."""
    source = Source(name, [])
    if len(data) > MAX_BYTES:
        raise source.error(None, f"is larger than {MAX_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = faulty_line(data, error)
        hint = "it looks like UTF-16: save it as UTF-8" if line is None else f"see line {line}"
        raise source.error(None, "is not UTF-8 text", hint) from error
    return parse_source(text, name=source.name)


def parse_source(text: str, *, name: str) -> tuple[Source, Node]:
    """A text → its `Source` and root node; `name` is what errors call it. Raises `PolicyError`."""
    source = Source(name, text.splitlines())
    return source, _compose(source, text)


def plain(source: Source, node: Node) -> Any:
    """A node → dicts, lists, text, whole numbers, booleans and None; a number with a fraction is refused."""
    if isinstance(node, Table):
        return {key: plain(source, value) for key, value in node.entries.items()}
    if isinstance(node, Listing):
        return [plain(source, item) for item in node.items]
    if node.kind == "int":
        return source.integer(node, "a number", least=-(2**53), most=2**53)
    if node.kind in ("bool", "null"):
        return None if node.kind == "null" else node.text.lower() in ("true", "yes", "on")
    return source.text(node, "a value") if node.text else ""


def character_place(source: Source, parsed: Scalar, offset: int) -> SourcePosition:
    """Return the place in the file of a text's character, e.g. of a condition; the text's start where YAML folded its
    lines, or it is empty."""
    if parsed.one_line:
        return SourcePosition(parsed.place.line, parsed.place.column + offset + (parsed.style in ("'", '"')))
    kept = parsed.text.rstrip("\n")
    if parsed.style != "|" or not kept:
        return parsed.place
    # An error at the end of the text belongs to its last line, not to the line after the block.
    before = kept[:offset].split("\n")
    line = parsed.place.line + len(before)
    # A literal block keeps its lines, except that the block's own indentation is removed.
    indentation = max(0, len(source.line(line)) - len(kept.split("\n")[len(before) - 1]))
    return SourcePosition(line, indentation + len(before[-1]) + 1)


# libyaml is four times as fast as the parser in Python and gives the same nodes; not every platform has it.
_Reader: Any = yaml.SafeLoader
if yaml.__with_libyaml__:
    _Parser: Any = yaml.cyaml.CParser  # type: ignore[attr-defined]

    class _LibYaml(yaml.composer.Composer, _Parser, yaml.resolver.Resolver):  # type: ignore[misc]
        """Composes libyaml's events in Python, where `compose_node` can refuse a node."""

        def __init__(self, text: str) -> None:
            _Parser.__init__(self, text)
            yaml.composer.Composer.__init__(self)
            yaml.resolver.Resolver.__init__(self)

    _Reader = _LibYaml


class _Loader(_Reader):  # type: ignore[misc]
    """The safe loader, except that it refuses anchors, aliases and too much depth before it builds anything."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.composer.ComposerError(None, None, "anchors and aliases are not allowed", event.start_mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"nested deeper than {MAX_DEPTH}", event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _compose(source: Source, text: str) -> Node:
    try:
        root = _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = SourcePosition(mark.line + 1, mark.column + 1) if mark else None
        line = source.line(place.line) if place else ""
        hint = _yaml_hint(line, str(error.problem))
        raise source.error(place, f"not valid YAML: {error.problem or error.context}", hint) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise source.error(None, f"not valid YAML: {' '.join(str(error).split())[:200]}") from error
    if root is None:
        raise source.error(None, "is empty")
    return _convert(source, root)


def _yaml_hint(line: str, problem: str) -> str | None:
    """Return a hint at what is likely meant where YAML's own message is no help; else None."""
    value = line.partition(": ")[2].strip() or line.strip().removeprefix("- ")
    if value.startswith("!"):
        return _TAG_HINT
    if value[:1] in ("@", "`", "%"):
        return f'a text cannot begin with "{value[0]}": put it in quotes'
    if _QUOTES_AND_MORE.match(value):
        return f"a text in quotes ends at the next {value[0]}: use the other kind of quotes around it"
    if "tab character" in problem:
        return "indent with spaces"
    if "mapping values" in problem and ": " in value:
        return 'put a text with ": " in it in quotes'
    if "did not find expected" in problem or "mapping values" in problem:
        return "check the indentation of this line and of the line above"
    return None


def _convert(source: Source, node: yaml.Node) -> Node:
    place = SourcePosition(node.start_mark.line + 1, node.start_mark.column + 1)
    convert: dict[type, Callable[[Source, Any, SourcePosition], Node]] = {
        yaml.ScalarNode: _scalar,
        yaml.SequenceNode: _listing,
        yaml.MappingNode: _table,
    }
    return convert[type(node)](source, node, place)


def _scalar(source: Source, node: yaml.ScalarNode, place: SourcePosition) -> Scalar:
    if node.tag not in _KINDS:
        _refuse_tag(source, node, place)
    return Scalar(node.value, _KINDS[node.tag], node.style, place, node.start_mark.line == node.end_mark.line)


def _listing(source: Source, node: yaml.SequenceNode, place: SourcePosition) -> Listing:
    if node.tag != "tag:yaml.org,2002:seq":
        _refuse_tag(source, node, place)
    return Listing(tuple(_convert(source, item) for item in node.value), place)


def _table(source: Source, node: yaml.MappingNode, place: SourcePosition) -> Table:
    if node.tag != "tag:yaml.org,2002:map":
        _refuse_tag(source, node, place)
    entries: dict[str, Node] = {}
    keys: dict[str, SourcePosition] = {}
    for key_node, value_node in node.value:
        key = _convert(source, key_node)
        if not isinstance(key, Scalar) or key.kind != "str":
            hint = (
                f'YAML reads {key.text} as {key.kind}: write "{key.text}" in quotes'
                if isinstance(key, Scalar)
                else None
            )
            raise source.error(key.place, "a key must be plain text", hint)
        if key.text in entries:
            raise source.error(key.place, f'duplicate key "{key.text}"', f"first on line {keys[key.text].line}")
        entries[key.text], keys[key.text] = _convert(source, value_node), key.place
    return Table(entries, keys, place)


def _refuse_tag(source: Source, node: yaml.Node, place: SourcePosition) -> NoReturn:
    hint = _TAG_HINT if node.tag.startswith("!") else None
    message = f'"{node.tag.rpartition(":")[2]}" is not allowed: plain mappings, lists and values only'
    raise source.error(place, message, hint)


class ReloadedFile(Generic[T]):
    """The result of `load(path)`, loaded again whenever the file, which may be missing, has changed. Thread-safe.

    A result for which `kept` returns False is loaded again at every access: its fault may lie in another file of the
    folder.
    """

    def __init__(self, path: Path, load: Callable[[Path], T], kept: Callable[[T], bool] = lambda _: True) -> None:
        self.path = path
        self._load, self._kept = load, kept
        self._read: tuple[object, T] | None = None

    @property
    def current(self) -> T:
        """The current result. For a result that is kept, `load` is called once per change of the file."""
        stamp, known = self._stamp(), self._read
        if known is None or known[0] != stamp or not self._kept(known[1]):
            known = self._read = (stamp, self._load(self.path))
        return known[1]

    def _stamp(self) -> object:
        try:
            found = self.path.stat()
        except OSError as error:
            return (error.errno,)
        return (found.st_mtime_ns, found.st_size, found.st_ino)

"""A test process makes hundreds of apps, a program one: here YAML, policies, templates and routes are read and compiled once for all.

The apps stay the same: a policy or template of another text is compiled anew, a route builds addresses once asked to,
apps with the same routes look them up in one tree, and the authority's documents are made for the first who asks for one: most tests ask
for decisions alone.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar

from flask import Flask
from jinja2.bccache import Bucket, BytecodeCache
from werkzeug.routing import Map, Rule, RuleFactory

from sentinel.authority import app
from sentinel.platform.resources import policies_dir
from sentinel.policy import compile, library, source
from sentinel.policy.compile import CompiledPolicy, try_compile
from sentinel.policy.errors import PolicyError

T = TypeVar("T")
_compile_builder = Rule._compile_builder  # type: ignore[attr-defined]
_flask_app = app._flask_app


def compile_once() -> None:
    """Change this process so; before its first app is made."""
    read_once()
    Flask.jinja_options = {**Flask.jinja_options, "bytecode_cache": _Memory()}
    Rule._compile_builder = _when_wanted  # type: ignore[attr-defined]
    Flask.url_map_class = _KnownRoutes
    app._flask_app = _Documents  # type: ignore[assignment]


def read_once() -> None:
    """Only what it reads and compiles of policies."""
    library.try_compile = _compile_once
    source._compose = _compose_once


def read_shipped() -> None:
    """Read and compile the shipped policies, once for all processes that are forked from this one."""
    read_once()
    library.PolicyLibrary.load(policies_dir())
    for path in policies_dir().rglob("*.yaml"):
        source.read_source(path)


class _Memory(BytecodeCache):
    """Compiled templates by their name and file; jinja asks for their text's checksum itself."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._kept:
            bucket.bytecode_from_string(self._kept[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._kept[bucket.key] = bucket.bytecode_to_string()


class _KnownRoutes(Map):
    """Routes that are read once something is looked up in them, and of which apps with the same have one tree."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._added: list[Rule] = []
        self._read = 0
        super().__init__(*arguments, **named)

    def add(self, rulefactory: RuleFactory) -> None:
        self._added += rulefactory.get_rules(self)

    def update(self) -> None:
        if self._read < len(self._added):
            with _reading:
                tree = _tree(self, self._added)
                self._matcher, self._rules_by_endpoint = tree._matcher, tree._rules_by_endpoint
                self._read = len(self._added)


def _tree(routes: Map, rules: list[Rule]) -> Map:
    """The tree of these rules, read as `routes` says."""
    how = {name: getattr(routes, name) for name in _HOW}
    key = (
        *how.values(), *routes.converters.items(),
        *((*map(vars(rule).get, _RULE), frozenset(rule.methods or ()), repr(rule.defaults)) for rule in rules),
    )  # fmt: skip
    if key not in _trees:
        _trees[key] = tree = Map(converters=routes.converters, **how)
        for rule in rules:
            rule.map = None  # type: ignore[assignment]  # some may be in a tree already, to which another was added
            tree.add(rule)
        tree.update()
    return _trees[key]


_HOW = ("default_subdomain", "strict_slashes", "merge_slashes", "host_matching", "sort_parameters", "sort_key")
_RULE = (
    "rule", "endpoint", "provide_automatic_options", "strict_slashes", "merge_slashes", "subdomain", "host", "build_only", "alias",
    "websocket", "redirect_to",
)  # fmt: skip
_trees: dict[Hashable, Map] = {}
_reading = threading.Lock()


class _Documents:
    """A Flask app that is made when something of it is wanted; the arguments are those of `app._flask_app`."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments
        # What it says of an outage is read for every app, and the authority says the usual.
        self.extensions: dict[str, Any] = {}

    @functools.cached_property
    def _made(self) -> Flask:
        return _flask_app(*self._arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)

    def __call__(self, environ: Any, start_response: Any) -> Any:
        return self._made(environ, start_response)


def _when_wanted(rule: Rule, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
    made: list[Callable[..., tuple[str, str]]] = []

    def build(self: Rule, /, **values: Any) -> tuple[str, str]:
        if not made:
            made.append(_compile_builder(rule, append_unknown))
        return made[0](self, **values)

    return build


def _compile_once(path: Path, *, name: str | None = None) -> tuple[CompiledPolicy | None, list[PolicyError]]:
    if path.parent == policies_dir():  # no test writes to these
        return _try_compile(path, name=name)
    try:
        read, root = source.read_source(path, name=name, regular=True)
        return _compile_text(read, root), []
    except Exception:  # what is refused is read again: its errors name the file
        return try_compile(path, name=name)


def _compile_text(read: source.Source, root: source.Node) -> CompiledPolicy:
    text = "\n".join(read.lines)
    if text not in _compiled:
        found, errors = compile._try_compile(read, root)
        if found is None:
            raise errors[0]
        _keep(_compiled, text, found)
    return _compiled[text]


def _compose_once(reader: source.Source, text: str) -> source.Node:
    # A text that is refused is read again: its error names the file.
    if text not in _composed:
        _keep(_composed, text, _compose(reader, text))
    return _composed[text]


def _keep(kept: dict[str, T], text: str, made: T) -> None:
    kept[text] = made
    if len(kept) > 200:
        del kept[next(iter(kept))]


_try_compile = functools.cache(try_compile)
_compose = source._compose
_compiled: dict[str, CompiledPolicy] = {}
_composed: dict[str, source.Node] = {}

"""A test process makes hundreds of apps, a program one: here YAML, policies, templates and routes are read and compiled once for all.

The apps stay the same: only the shipped policies are kept, a template of another text is compiled anew, a route builds addresses once asked to,
and the authority's documents are made for the first who asks for one: most tests ask for decisions alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flask import Flask
from jinja2.bccache import Bucket, BytecodeCache
from werkzeug.routing import Rule

from sentinel.authority import app
from sentinel.platform.resources import policies_dir
from sentinel.policy import library, source
from sentinel.policy.compile import CompiledPolicy, try_compile
from sentinel.policy.errors import PolicyError

_compile_builder = Rule._compile_builder  # type: ignore[attr-defined]
_flask_app = app._flask_app


def compile_once() -> None:
    """Change this process so; before its first app is made."""
    library.try_compile = _compile_once
    source._compose = _compose_once
    Flask.jinja_options = {**Flask.jinja_options, "bytecode_cache": _Memory()}
    Rule._compile_builder = _when_wanted  # type: ignore[attr-defined]
    app._flask_app = _Documents  # type: ignore[assignment]


class _Memory(BytecodeCache):
    """Compiled templates by their name and file; jinja asks for their text's checksum itself."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._kept:
            bucket.bytecode_from_string(self._kept[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._kept[bucket.key] = bucket.bytecode_to_string()


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
    # Only what no test writes to.
    return _try_compile(path, name=name) if path.parent == policies_dir() else try_compile(path, name=name)


_try_compile = functools.cache(try_compile)


def _compose_once(reader: source.Source, text: str) -> source.Node:
    # A text that is refused is read again: its error names the file.
    if text not in _composed:
        _composed[text] = _compose(reader, text)
        if len(_composed) > 200:
            del _composed[next(iter(_composed))]
    return _composed[text]


_compose = source._compose
_composed: dict[str, source.Node] = {}

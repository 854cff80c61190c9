"""The error of policy files: file, line, column, part and hint, with a compiler-style explanation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from sentinel.core.errors import SentinelError


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """A position in a file; both numbers start at 1."""

    line: int
    column: int


class PolicyError(SentinelError):
    """One fault of a policy or cases file that is not accepted, with its place.

    `file` is the path as the caller gave it; `line` and `column` are 0 where the fault has no place
    (an unreadable file, a missing folder); `rule` is the id of the faulty part of the file, `part` its kind
    ("rule", "limit", "breaker", "tool", "case", …), and `source_line` the text of the line.
    """

    code = "policy-invalid"

    def __init__(
        self,
        message: str,
        *,
        file: str,
        place: SourcePosition | None = None,
        rule: str | None = None,
        part: str = "rule",
        hint: str | None = None,
        source_line: str = "",
    ) -> None:
        self.message, self.file, self.rule, self.part, self.hint = message, file, rule, part, hint
        self.line, self.column = (place.line, place.column) if place else (0, 0)
        self.source_line = source_line
        super().__init__(self._one_line())

    @property
    def where(self) -> str:
        """ "file:line:column", or the file alone."""
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file

    @property
    def _named(self) -> str:
        return f'{self.part} "{self.rule}": ' if self.rule else ""

    def _one_line(self) -> str:
        return f"{self.where}: {self._named}{self.message}" + (f" ({self.hint})" if self.hint else "")

    def as_json(self) -> dict[str, Any]:
        """Return the fault as JSON data, for `--json`; `source_line` is the text of the faulty line."""
        return {
            "file": self.file, "line": self.line, "column": self.column, "rule": self.rule, "part": self.part,
            "message": self.message, "hint": self.hint, "source_line": self.source_line,
        }  # fmt: skip

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> PolicyError:
        """The inverse of `as_json`."""
        place = SourcePosition(found["line"], found["column"]) if found["line"] else None
        return cls(found["message"], file=found["file"], place=place, rule=found["rule"], part=found["part"],
                   hint=found["hint"], source_line=found["source_line"])  # fmt: skip

    def explain(self) -> str:
        """Return several lines: what is wrong, the faulty line with a caret under the place, and the hint."""
        lines = [f"{self.where}: error: {self._named}{self.message}"]
        if self.line:
            margin = f"{self.line:>5} | "
            lines += [margin + self.source_line, " " * (len(margin) - 2) + "| " + " " * (self.column - 1) + "^"]
        if self.hint:
            lines.append(f"      = {self.hint}")
        return "\n".join(lines)


def first_fault(read: Callable[[], object]) -> list[PolicyError]:
    """Return the `PolicyError` that `read` raises, in a list; an empty list where it raises none."""
    try:
        read()
    except PolicyError as error:
        return [error]
    return []


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return a hint naming the known name closest to a misspelt one; None where nothing is close."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f'did you mean "{close[0]}"?' if close else None

"""A rule's condition in words, for people who read policies: comparisons, "and", "or", "not", and numbers as amounts.

The condition stays beside it and is what decides. What is not understood here whole has no words at all: half a sentence
would say more, or less, than the condition does. Names stay the policy's own, with blanks for their dots and strokes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ops_console.pages.text import wire_money

Amounts = Mapping[str, Mapping[str, str]]
"""By a number's name: its amount in major units by currency."""

_TOKEN = re.compile(
    r"""\s*(?: (?P<text>"(?:[^"\\\n])*"|'(?:[^'\\\n])*')
      | (?P<number>0|[1-9][0-9]*)(?![\w.])
      | (?P<name>[A-Za-z_]\w*(?:\s*\.\s*[A-Za-z_]\w*)*)
      | (?P<mark>==|!=|<=|>=|&&|\|\||[*+<>!,()\[\]]) )""",
    re.VERBOSE | re.ASCII,
)
_COMPARED = {
    "==": "is", "!=": "is not", "<": "is less than", "<=": "is at most", ">": "is more than", ">=": "is at least",
}  # fmt: skip
_NAMES = {
    "action": "the action", "amount": "the amount", "amount_minor": "the amount in minor units", "currency": "the currency",
}  # fmt: skip
_TRUTHS = {
    "currency_covered": ("the policy has figures for its currency", "the policy has no figures for its currency")
}
_STARTS = ".startsWith"


class _Unknown(Exception):
    """A condition that has no words here."""


@dataclass(frozen=True, slots=True)
class _Said:
    """A part in words. `joined` is the word that joins its own parts, `denied` says its contrary where there is a way to.

    `is_value` marks what is compared; `name` is that of a value that is a name alone.
    """

    text: str
    joined: str = ""
    denied: str = ""
    is_value: bool = False
    name: str = ""

    def within(self, joined: str) -> str:
        """As a part of something that is joined by a word: in brackets unless nothing can be misread."""
        return f"({self.text})" if self.joined not in ("", joined) else self.text


@dataclass
class _Reader:
    """Reads a condition from the left, in CEL's order of precedence."""

    tokens: list[tuple[str, str]]
    numbers: Amounts
    at: int = field(default=0)

    def either(self) -> _Said:
        return self._joined("||", "or", self.all_of)

    def all_of(self) -> _Said:
        return self._joined("&&", "and", self.denial)

    def _joined(self, mark: str, word: str, read: Callable[[], _Said]) -> _Said:
        parts = [read()]
        while self.takes(mark):
            parts.append(read())
        if len(parts) == 1:
            return parts[0]
        return _Said(f" {word} ".join(_truth(part).within(word) for part in parts), word)

    def denial(self) -> _Said:
        if not self.takes("!"):
            return self.relation()
        # CEL's "!" holds more tightly than a comparison.
        said = _truth(self.denial_of())
        return _Said(said.denied or f"not ({said.text})", denied=said.text if not said.joined else f"({said.text})")

    def denial_of(self) -> _Said:
        return self.denial() if self.peek() == "!" else self.atom()

    def relation(self) -> _Said:
        left_at = self.at
        left = self.sum()
        mark = self.peek()
        if mark == "in":
            self.at += 1
            return self._listed(left)
        if mark not in _COMPARED:
            return left
        self.at += 1
        right_at = self.at
        right = self.sum()
        return self._amounts(left_at, right_at, mark) or self._compared(left, right, mark)

    def _listed(self, left: _Said) -> _Said:
        if not left.is_value or not self.takes("["):
            raise _Unknown
        members = [self._member()]
        while self.takes(","):
            members.append(self._member())
        self.need("]")
        listed = ", ".join(members)
        return _Said(f"{left.text} is one of {listed}", denied=f"{left.text} is none of {listed}")

    def _member(self) -> str:
        kind, text = self.next()
        if kind != "text":
            raise _Unknown
        return _quoted(text)

    def _amounts(self, left: int, right: int, mark: str) -> _Said | None:
        """The amount against one of the policy's numbers: as money, by currency."""
        if self.at != right + 1 or right != left + 2 or self.tokens[left] != ("name", "amount_minor"):
            return None
        kind, name = self.tokens[right]
        known = (
            self.numbers.get(name.removeprefix("numbers.")) if name.startswith("numbers.") and kind == "name" else None
        )
        if not known:
            return None
        return _Said(f"the amount {_COMPARED[mark]} {_figures(known)}")

    def _compared(self, left: _Said, right: _Said, mark: str) -> _Said:
        if not (left.is_value and right.is_value) or "numbers " in left.text + right.text:
            raise _Unknown
        return _Said(f"{left.text} {_COMPARED[mark]} {right.text}")

    def sum(self) -> _Said:
        parts = [self.product()]
        while self.takes("+"):
            parts.append(self.product())
        is_text = any(part.text.startswith("“") for part in parts)
        return self._counted(parts, " followed by " if is_text else " plus ")

    def product(self) -> _Said:
        parts = [self.atom()]
        while self.takes("*"):
            parts.append(self.atom())
        return self._counted(parts, " times ")

    def _counted(self, parts: list[_Said], word: str) -> _Said:
        if len(parts) == 1:
            return parts[0]
        if not all(part.is_value for part in parts):
            raise _Unknown
        return _Said(word.join(part.text for part in parts), is_value=True)

    def atom(self) -> _Said:
        kind, text = self.next()
        if kind == "text":
            return _Said(_quoted(text), is_value=True)
        if kind == "number":
            return _Said(f"{int(text):,}", is_value=True)
        if kind == "name":
            return self._named(text)
        if text != "(":
            raise _Unknown
        inner = self.either()
        self.need(")")
        if inner.is_value:
            raise _Unknown
        return inner

    def _named(self, name: str) -> _Said:
        if self.peek() == "(":
            return self._begins(name)
        if name in ("true", "false", "null", "in"):
            raise _Unknown
        if name.startswith("present."):
            text = _name(name.removeprefix("present."))
            return _Said(f"{text} is given", denied=f"{text} is not given")
        return _Said(_name(name), is_value=True, name=name)

    def _begins(self, name: str) -> _Said:
        if not name.endswith(_STARTS):
            raise _Unknown
        self.need("(")
        beginning = self._member()
        self.need(")")
        text = _name(name.removesuffix(_STARTS))
        return _Said(f"{text} begins with {beginning}", denied=f"{text} does not begin with {beginning}")

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def next(self) -> tuple[str, str]:
        if self.at == len(self.tokens):
            raise _Unknown
        self.at += 1
        return self.tokens[self.at - 1]

    def takes(self, mark: str) -> bool:
        found = self.at < len(self.tokens) and self.tokens[self.at] == ("mark", mark)
        self.at += found
        return found

    def need(self, mark: str) -> None:
        if not self.takes(mark):
            raise _Unknown


def in_words(condition: str, numbers: Amounts) -> str:
    """A CEL condition in words; empty where it has none. `numbers` are the policy's."""
    try:
        reader = _Reader(_tokens(condition), numbers)
        said = _truth(reader.either())
        if reader.at != len(reader.tokens):
            return ""
    except _Unknown:
        return ""
    return said.text


def _tokens(condition: str) -> list[tuple[str, str]]:
    found, at = [], 0
    text = condition.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise _Unknown
        kind, at = match.lastgroup, match.end()
        found.append((kind, re.sub(r"\s", "", match[kind]) if kind == "name" else match[kind]))
    return found


def _truth(said: _Said) -> _Said:
    """A name that stands alone is one that is true or false."""
    if not said.is_value:
        return said
    if not said.name:
        raise _Unknown
    held, denied = _TRUTHS.get(said.name) or (f"{said.text} is true", f"{said.text} is false")
    return _Said(held, denied=denied)


def _name(name: str) -> str:
    return _NAMES.get(name) or re.sub("minor$", "in minor units", name.replace(".", " ").replace("_", " "))


def _quoted(text: str) -> str:
    return f"“{text[1:-1]}”"


def _figures(known: Mapping[str, str]) -> str:
    """A number's amounts: once where they are the same in every currency."""
    amounts = [wire_money({"value": text, "currency": currency}) for currency, text in known.items()]
    values = {amount.rpartition(" ")[0] for amount in amounts}
    if len(amounts) == 1:
        return amounts[0]
    return (
        f"{values.pop()} ({', '.join(known)})" if len(values) == 1 else f"its currency's figure ({', '.join(amounts)})"
    )

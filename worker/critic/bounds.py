"""Reads `policies/critic.yaml`: the languages and the text lengths that the rules critic accepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sentinel.platform.resources import policies_dir
from sentinel.policy.source import read_source
from worker.critic.common_words import READABLE
from worker.critic.readings import MAX_LOOKED_AT

FILE_NAME = "critic.yaml"
PLACES = ("reason", "order_note", "image_text")
"""The fields of `CriticCase` with untrusted text."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The whole file; immutable. `languages` are from `READABLE`; `longest` is in characters, for each of `PLACES`."""

    languages: frozenset[str]
    longest: Mapping[str, int]

    @classmethod
    def load(cls, path: Path) -> Bounds:
        """Read the file. Raises the first `PolicyError` in it."""
        source, root = read_source(path, regular=True)
        at = source.fields(root, "the file", known=("languages", "longest"), required=("languages", "longest")).entries
        languages = [
            source.one_of(node, "a language", READABLE) for node in source.listing(at["languages"], "languages")
        ]
        lengths = source.fields(at["longest"], "longest", known=PLACES, required=PLACES).entries
        longest = {place: source.integer(node, place, least=1, most=MAX_LOOKED_AT) for place, node in lengths.items()}
        return cls(frozenset(languages), longest)


def load_bounds(policies: Path) -> Bounds:
    """Load the bounds of a policies folder; the shipped ones where it has no such file. Raises `PolicyError`."""
    file = policies / FILE_NAME
    return Bounds.load(file if file.exists() else policies_dir() / FILE_NAME)

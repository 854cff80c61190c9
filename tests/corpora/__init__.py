"""Texts and orders that tests read: our own, in this folder, and public ones where they lie beside the checkout.

What needs data of others is an extra case: where they are absent it is not collected, so nothing is skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
BESIDE = Path(os.environ.get("SENTINEL_SHARED", HERE.parents[2] / "shared")) / "data"
"""Where public data may lie: `injections.jsonl` (texts) and `online_retail.csv` (orders)."""


@dataclass(frozen=True, slots=True)
class Text:
    """One text that a customer, or somebody in a customer's name, may write. `lang` is an ISO 639 code, "" if unknown."""

    text: str
    is_hostile: bool
    lang: str


@dataclass(frozen=True, slots=True)
class TextCorpus:
    """Texts by id. `recognised` is the share of the hostile English ones that the rules must name: what they claim."""

    name: str
    texts: Mapping[str, Text]
    recognised: float

    def of(self, *, hostile: bool, lang: str | None = None) -> list[str]:
        """The hostile or the harmless texts, of one language or all."""
        return [one.text for one in self.texts.values() if one.is_hostile == hostile and lang in (None, one.lang)]


def _read(file: Path, name: str, recognised: float) -> TextCorpus:
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    hostile = ("hostile", "malicious")
    texts = {one["id"]: Text(one["text"], one["label"] in hostile, one.get("lang", "")) for one in lines}
    return TextCorpus(name, texts, recognised)


def _cases(own: Any, others: list[Any]) -> list[Any]:
    return [pytest.param(own, id="own"), *(pytest.param(one, id="public") for one in others)]


def text_corpora() -> list[Any]:
    """Parameters: our own corpus, and the public one where it is. Our own says more than the rules can read."""
    beside = BESIDE / "injections.jsonl"
    others = [_read(beside, "public", 0.98)] if beside.is_file() else []
    return _cases(_read(HERE / "texts.jsonl", "own", 0.75), others)


def public_orders() -> list[Path]:
    """The public CSV of orders, or none."""
    beside = BESIDE / "online_retail.csv"
    return [beside] if beside.is_file() else []

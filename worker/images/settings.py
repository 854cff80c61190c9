"""The recogniser that a setting names (`choice.py`)."""

from __future__ import annotations

from pathlib import Path

from worker.images.choice import parse_choice
from worker.images.labelled import LabelledImages
from worker.images.over_http import HttpRecogniser
from worker.images.recogniser import NoRecogniser, Recogniser


def recogniser_from(setting: str, *, api_key: str = "", timeout_seconds: float = 5.0) -> Recogniser:
    """The recogniser. Raises `BadRecogniser`, and `BadLabels` for a file that cannot be used."""
    kind, place = parse_choice(setting)
    if kind == "labels":
        return LabelledImages(Path(place))
    if kind == "http":
        return HttpRecogniser(place, api_key, timeout_seconds)
    return NoRecogniser()

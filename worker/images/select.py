"""Selects the recogniser of a setting: "none", "labels:FILE" or "http:URL" (a URL alone will do)."""

from __future__ import annotations

from pathlib import Path

from sentinel.platform.outbound.client import is_http_url
from worker.images.http_recogniser import HttpRecogniser
from worker.images.labelled import LabelFileRecogniser
from worker.images.recogniser import NoRecogniser, Recogniser


class InvalidRecogniser(Exception):
    """The setting names no recogniser."""


def parse_recogniser(setting: str) -> tuple[str, str]:
    """("none", ""), ("labels", file) or ("http", address). Raises `InvalidRecogniser`; files are not looked at."""
    kind, _, place = setting.partition(":")
    if setting in ("", "none"):
        return "none", ""
    if kind == "labels" and place:
        return "labels", place
    for url in (setting, place if kind == "http" else ""):
        if is_http_url(url):
            return "http", url
    raise InvalidRecogniser("must be none, labels:FILE or http:URL")


def recogniser_from(setting: str, *, api_key: str = "", timeout_seconds: float = 5.0) -> Recogniser:
    """The recogniser. Raises `BadRecogniser`, and `BadLabels` for a file that cannot be used."""
    kind, place = parse_recogniser(setting)
    if kind == "labels":
        return LabelFileRecogniser(Path(place))
    if kind == "http":
        return HttpRecogniser(place, api_key, timeout_seconds)
    return NoRecogniser()

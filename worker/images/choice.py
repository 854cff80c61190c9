"""How a setting names a recogniser: "none", "labels:FILE" or "http:URL" (an address alone will do)."""

from __future__ import annotations

from worker.addresses import is_http_url


class BadRecogniser(Exception):
    """The setting names no recogniser."""


def parse_choice(setting: str) -> tuple[str, str]:
    """("none", ""), ("labels", file) or ("http", address). Raises `BadRecogniser`; files are not looked at."""
    kind, _, place = setting.partition(":")
    if setting in ("", "none"):
        return "none", ""
    if kind == "labels" and place:
        return "labels", place
    for url in (setting, place if kind == "http" else ""):
        if is_http_url(url):
            return "http", url
    raise BadRecogniser("must be none, labels:FILE or http:URL")

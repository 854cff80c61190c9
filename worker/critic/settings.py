"""The settings of critic and image recogniser, and the checks of them. Opens no connection."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from sentinel.platform.outbound.client import is_http_url
from worker.images import InvalidRecogniser, parse_recogniser


class CriticSettings(Protocol):
    """The fields that a critic is made from."""

    @property
    def policies_dir(self) -> Path: ...
    @property
    def critic_url(self) -> str: ...
    @property
    def critic_model(self) -> str: ...
    @property
    def critic_api_key(self) -> str: ...
    @property
    def critic_timeout_seconds(self) -> float: ...
    @property
    def critic_branches(self) -> str: ...
    @property
    def recogniser(self) -> str: ...
    @property
    def recogniser_api_key(self) -> str: ...
    @property
    def recogniser_timeout_seconds(self) -> float: ...


def branches(text: str) -> frozenset[str]:
    """Split "private/fee, public/price_diff" into its parts; {"all"} means every branch. Names are checked against the routes later."""
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def faults(settings: CriticSettings) -> list[str]:
    """One sentence for each setting of the critic or the recogniser that cannot be used."""
    return _critic_faults(settings) + _recogniser_faults(settings)


def _critic_faults(settings: CriticSettings) -> list[str]:
    found = []
    if settings.critic_url and not is_http_url(settings.critic_url):
        found.append("SENTINEL_CRITIC_URL must look like https://host/v1")
    if bool(settings.critic_url) != bool(settings.critic_model):
        found.append("SENTINEL_CRITIC_URL and SENTINEL_CRITIC_MODEL are needed together")
    if branches(settings.critic_branches) and not settings.critic_url:
        # Without a URL every row of these branches would go to a person, which cannot be intended.
        found.append("SENTINEL_CRITIC_BRANCHES needs SENTINEL_CRITIC_URL")
    return found + _key_faults("SENTINEL_CRITIC_API_KEY", settings.critic_api_key)


def _recogniser_faults(settings: CriticSettings) -> list[str]:
    found = []
    try:
        parse_recogniser(settings.recogniser)
    except InvalidRecogniser as error:
        found.append(f"WORKER_RECOGNISER {error}")
    return found + _key_faults("WORKER_RECOGNISER_API_KEY", settings.recogniser_api_key)


def _key_faults(variable: str, key: str) -> list[str]:
    good = key.isascii() and (key == "" or key.isprintable()) and " " not in key
    return [] if good else [f"{variable} must be printable ASCII without spaces"]

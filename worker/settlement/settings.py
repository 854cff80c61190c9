"""Checks the settings of the outside settlement systems."""

from __future__ import annotations

import importlib.util
import re
from typing import Protocol

from sentinel.platform.outbound.client import is_http_url
from sentinel.platform.outside_systems import OUTSIDE_SYSTEMS

_STRIPE_KEY = re.compile(r"(rk_(live|test)|sk_test)_[A-Za-z0-9_]{1,200}", re.ASCII)


class SettlementSettings(Protocol):
    """The settings that are checked here, besides the URL and key of each of `OUTSIDE_SYSTEMS`."""

    @property
    def stripe_key(self) -> str | None: ...
    @property
    def stripe_url(self) -> str: ...


def faults(settings: SettlementSettings) -> list[str]:
    """The faults of the settings, one text each."""
    found: list[str] = []
    for system in OUTSIDE_SYSTEMS:
        url: str | None = getattr(settings, system.url_field)
        key: str | None = getattr(settings, system.key_field)
        if url and not is_http_url(url):
            found.append(f"{system.url_variable} must look like https://host or https://host/path")
        if bool(url) != bool(key):
            found.append(f"{system.url_variable} and {system.key_variable} go together")
        if key and (not key.isascii() or not key.isprintable() or " " in key):
            found.append(f"{system.key_variable} must be printable ASCII without spaces")
    return found + _stripe_faults(settings.stripe_key, settings.stripe_url)


def _stripe_faults(key: str | None, url: str) -> list[str]:
    found = []
    if key and not _STRIPE_KEY.fullmatch(key):
        found.append("WORKER_STRIPE_KEY must be a restricted key, rk_live_… or rk_test_… (or a test key, sk_test_…)")
    if key and importlib.util.find_spec("stripe") is None:
        found.append("WORKER_STRIPE_KEY needs the extra `stripe`, which is not installed")
    if not is_http_url(url):
        found.append("WORKER_STRIPE_URL must look like https://host")
    return found

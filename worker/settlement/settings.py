"""What can be wrong with the settings of the outside settlement systems."""

from __future__ import annotations

from typing import Protocol

from worker.outbound.client import is_http_url


class SettlementSettings(Protocol):
    """The fields that are looked at here."""

    @property
    def settlement_timeout_seconds(self) -> float: ...
    @property
    def price_difference_url(self) -> str | None: ...
    @property
    def price_difference_key(self) -> str | None: ...
    @property
    def platform_url(self) -> str | None: ...
    @property
    def platform_key(self) -> str | None: ...
    @property
    def ticket_url(self) -> str | None: ...
    @property
    def ticket_key(self) -> str | None: ...


def faults(settings: SettlementSettings) -> list[str]:
    """One text per fault."""
    found = _timeout_faults(settings.settlement_timeout_seconds)
    systems = {
        "PRICE_DIFFERENCE": (settings.price_difference_url, settings.price_difference_key),
        "PLATFORM": (settings.platform_url, settings.platform_key),
        "TICKET": (settings.ticket_url, settings.ticket_key),
    }
    for name, (url, key) in systems.items():
        if url and not is_http_url(url):
            found.append(f"WORKER_{name}_URL must look like https://host or https://host/path")
        if bool(url) != bool(key):
            found.append(f"WORKER_{name}_URL and WORKER_{name}_KEY go together")
        if key and (not key.isascii() or not key.isprintable() or " " in key):
            found.append(f"WORKER_{name}_KEY must be printable ASCII without spaces")
    return found


def _timeout_faults(seconds: float) -> list[str]:
    if 0 < seconds <= 60:
        return []
    return ["WORKER_SETTLEMENT_TIMEOUT_SECONDS must be more than 0 and at most 60"]

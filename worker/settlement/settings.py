"""What can be wrong with the settings of the settlement systems outside the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worker.addresses import is_http_url

if TYPE_CHECKING:
    from worker.settings import WorkerSettings


def faults(settings: WorkerSettings) -> list[str]:
    """One text per fault."""
    found = _timeout_faults(settings.settlement_timeout_seconds)
    for name in ("PRICE_DIFFERENCE", "PLATFORM", "TICKET"):
        url, key = getattr(settings, f"{name.lower()}_url"), getattr(settings, f"{name.lower()}_key")
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

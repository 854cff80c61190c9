"""Why a request had no use, as codes and in words. Loads no HTTP client: pages and commands say these words."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class FailureKind(StrEnum):
    """Why there is no answer."""

    NOT_SENT = "not_sent"
    """No connection, or nothing that can be sent: surely the server has not been asked."""
    TIMEOUT = "timeout"
    BROKEN = "broken"
    TOO_LARGE = "too_large"


FAULTS: Mapping[str, str] = MappingProxyType({
    "form": "is not an address such as https://host/path", "scheme": "begins with another scheme than may be called",
    "port": "names a port that may not be called: of public addresses 443 and 8443 may", "host": "names no host that the internet knows, such as host.example",
    "inside_address": "is an address inside a network", "inside_name": "is a name inside a network",
})  # fmt: skip
"""What is wrong with an address, by the code that `PublicHttpClient.fault` gives."""

_FAILURES: Mapping[str, str] = MappingProxyType({
    FailureKind.NOT_SENT: "no connection", FailureKind.TIMEOUT: "no answer in time",
    FailureKind.BROKEN: "the connection broke", FailureKind.TOO_LARGE: "an answer that is too long",
    **{f"not_allowed: {code}": f"not called: it {fault}" for code, fault in FAULTS.items()},
})  # fmt: skip


def failure_text(code: str) -> str:
    """What the code of a request in vain says: `not_sent`, `http_500`, `not_allowed: inside_address`; another text is its own."""
    answered = code.removeprefix("http_")
    return f"answered {answered}" if answered.isdigit() and answered != code else _FAILURES.get(code, code)

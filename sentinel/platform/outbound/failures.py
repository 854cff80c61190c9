"""Why an outbound request failed, as codes and in words. Loads no HTTP client, because pages and commands import it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class FailureKind(StrEnum):
    """Why there is no answer."""

    NOT_SENT = "not_sent"
    """No connection, or nothing that can be sent: the server certainly did not get the request."""
    TIMEOUT = "timeout"
    BROKEN = "broken"
    TOO_LARGE = "too_large"


FAULTS: Mapping[str, str] = MappingProxyType({
    "form": "is not an address such as https://host/path", "scheme": "begins with another scheme than may be called",
    "port": "names a port that may not be called: of public addresses 443 and 8443 may", "host": "names no host that the internet knows, such as host.example",
    "inside_address": "is an address inside a network", "inside_name": "is a name inside a network",
})  # fmt: skip
"""What is wrong with an address, by the code that `PublicHttpClient.fault` gives."""

UNREADABLE_EVENT = "unreadable_event"
"""The code for an event of which no message could be made, so that nothing was sent."""

_FAILURES: Mapping[str, str] = MappingProxyType({
    FailureKind.NOT_SENT: "no connection", FailureKind.TIMEOUT: "no answer in time",
    FailureKind.BROKEN: "the connection broke", FailureKind.TOO_LARGE: "an answer that is too long",
    UNREADABLE_EVENT: "no message could be made of the event; the sender's log says why",
    **{f"not_allowed: {code}": f"not called: it {fault}" for code, fault in FAULTS.items()},
})  # fmt: skip


def failure_text(code: str) -> str:
    """The words for a failed request's code: `not_sent`, `http_500`, `not_allowed: inside_address`; any other text as it is."""
    answered = code.removeprefix("http_")
    return f"answered {answered}" if answered.isdigit() and answered != code else _FAILURES.get(code, code)

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
    "form": "is not an address such as https://host/path", "scheme": "has a scheme that is not allowed",
    "port": "has a port that is not allowed: public addresses may have 443 or 8443", "host": "has no public host name, such as host.example",
    "inside_address": "is an address inside a private network", "inside_name": "is a name inside a private network",
})  # fmt: skip
"""What is wrong with an address, by the code that `PublicHttpClient.fault` gives."""

UNREADABLE_EVENT = "unreadable_event"
"""The code for an event of which no message could be made, so that nothing was sent."""

_FAILURES: Mapping[str, str] = MappingProxyType({
    FailureKind.NOT_SENT: "no connection", FailureKind.TIMEOUT: "no answer in time",
    FailureKind.BROKEN: "the connection broke", FailureKind.TOO_LARGE: "the answer was too long",
    UNREADABLE_EVENT: "the event could not be turned into a message; the sender's log says why",
    **{f"not_allowed: {code}": f"not called: it {fault}" for code, fault in FAULTS.items()},
})  # fmt: skip


def failure_text(code: str) -> str:
    """The words for a failed request's code: `not_sent`, `http_500`, `not_allowed: inside_address`; any other text as it is."""
    answered = code.removeprefix("http_")
    return f"answered {answered}" if answered.isdigit() and answered != code else _FAILURES.get(code, code)

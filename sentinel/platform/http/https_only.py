"""Strict-Transport-Security (RFC 6797): a browser that once came over TLS never again sends a password or cookie in the clear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HEADER = "Strict-Transport-Security"
ONE_YEAR = "max-age=31536000"
_PAIRS = ((HEADER.lower().encode(), ONE_YEAR.encode()),)


@dataclass(frozen=True, slots=True)
class HttpsOnly:
    """Which answers of a server say so: all with `behind_tls`, else those to requests that came over TLS.

    What the outermost of the trusted proxies says of its connection counts (`X-Forwarded-Proto`); what was put into the header
    before it is anybody's word and does not.
    """

    behind_tls: bool = False
    trusted_proxies: int = 0

    @property
    def always(self) -> dict[str, str]:
        """The header, where every answer has it: also one to what could not be read as a request."""
        return {HEADER: ONE_YEAR} if self.behind_tls else {}

    def headers(self, scope: Mapping[str, Any]) -> tuple[tuple[bytes, bytes], ...]:
        """What is added to the answer to an ASGI request."""
        values = (
            [value for name, value in scope["headers"] if name == b"x-forwarded-proto"] if self.trusted_proxies else []
        )
        came_over_tls = self._came_over_tls(b",".join(values).decode("latin-1"), scope.get("scheme"))
        return _PAIRS if self.behind_tls or came_over_tls else ()

    def of_request(self, environ: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
        """The same for a request by its WSGI environment; without a scheme it came in the clear."""
        forwarded, scheme = environ.get("HTTP_X_FORWARDED_PROTO", ""), environ.get("wsgi.url_scheme")
        return ((HEADER, ONE_YEAR),) if self.behind_tls or self._came_over_tls(forwarded, scheme) else ()

    def _came_over_tls(self, forwarded: str, scheme: str | None) -> bool:
        said = [part.strip().lower() for part in forwarded.split(",") if part.strip()] if self.trusted_proxies else []
        if said and len(said) >= self.trusted_proxies:
            return said[-self.trusted_proxies] == "https"
        return scheme == "https"

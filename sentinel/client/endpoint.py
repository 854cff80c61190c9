"""The address that is asked: its parts, the bytes of a request to it, and a response as it came. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sentinel.client.http_reader import HttpResponse
from sentinel.client.trace_context import current_traceparent

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class RawResponse:
    """A response, unparsed."""

    status: int
    content_type: str
    retry_after: str | None
    replayed: bool
    data: bytes


class Endpoint:
    """One base address and the headers of every request to it. Raises `ValueError` for what is no address."""

    def __init__(self, base_url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("the authority's address must look like http://host:port")
        self.host = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.tls = _tls() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._head = _common_head(parts.netloc.rpartition("@")[2], headers)

    def request(self, method: str, path: str, body: bytes | None) -> bytes:
        """One request's bytes."""
        line = f"{method} {self._prefix}{path} HTTP/1.1\r\n".encode("ascii")
        if (trace := current_traceparent()) is not None:
            line += b"traceparent: %s\r\n" % trace.encode("ascii")
        if body is None:
            return line + self._head + b"\r\n"
        return b"%s%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
            line,
            self._head,
            len(body),
            body,
        )


def raw_response(answer: HttpResponse) -> RawResponse:
    """The response as its callers read it."""
    content_type = answer.header(b"content-type").partition(";")[0].strip().lower()
    replayed = answer.header(b"idempotent-replayed").lower() == "true"
    return RawResponse(answer.status, content_type, answer.header(b"retry-after") or None, replayed, answer.data)


def _tls() -> ssl.SSLContext:
    # Imported for https alone: it is a tenth of what `import sentinel.client` would take.
    import ssl

    return ssl.create_default_context()


def _common_head(host: str, headers: Mapping[str, str]) -> bytes:
    lines = {"Host": host, "Accept": "application/json", "Accept-Encoding": "identity", **headers}
    for name, value in lines.items():
        # A line end in a header would be a second header: refuse it here, once.
        if not value.isascii() or not value.isprintable():
            raise ValueError(f"{name} must be printable ASCII")
    return "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode("ascii")


def describe(error: BaseException) -> str:
    """An error in one line."""
    text = str(getattr(error, "strerror", None) or error).strip()
    return (text.splitlines() or [""])[0][:200] or type(error).__name__

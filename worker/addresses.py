"""Which addresses of servers a setting may name."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_http_url(url: str) -> bool:
    """Whether `url` is an address that can be asked: http or https, a host, no credentials, query or fragment."""
    if not url.isascii() or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        bad = parts.username or parts.password or parts.query or parts.fragment
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not bad
    except ValueError:
        return False

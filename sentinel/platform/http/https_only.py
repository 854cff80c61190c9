"""Strict-Transport-Security (RFC 6797): a browser that once came over TLS never again sends a password or cookie in the clear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import Flask, Response, request

HEADER = "Strict-Transport-Security"
ONE_YEAR = "max-age=31536000"


def install(app: Flask, *, behind_tls: bool, trusted_proxies: int = 0) -> None:
    """Have every answer say so that goes out over TLS: all with `behind_tls`, else those of requests that came over it."""

    @app.after_request
    def say_https_only(response: Response) -> Response:
        if behind_tls or came_over_tls(request.environ, trusted_proxies):
            response.headers[HEADER] = ONE_YEAR
        return response


def came_over_tls(environ: Mapping[str, Any], trusted_proxies: int) -> bool:
    """Whether the connection is TLS, or the outermost trusted proxy says that its was (`X-Forwarded-Proto`).

    What was put into the header before that proxy is anybody's word and does not count.
    """
    if trusted_proxies:
        told = [
            part.strip().lower() for part in str(environ.get("HTTP_X_FORWARDED_PROTO", "")).split(",") if part.strip()
        ]
        if len(told) >= trusted_proxies:
            return told[-trusted_proxies] == "https"
    return environ.get("wsgi.url_scheme") == "https"

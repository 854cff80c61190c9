"""Logs: one JSON object a line on standard error, with the request's and the operation's ids and no customer data."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import orjson
import structlog
from flask import has_request_context

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def _with_request_id(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if "request_id" not in event and has_request_context():
        from sentinel.http.problems import request_id

        event["request_id"] = request_id()
    return event


def _line(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> bytes:
    # JSON escapes control characters; the two line separators it leaves alone are escaped too: one event, one line.
    return orjson.dumps(event, default=str).replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")


def configure_logs(level: str, *, program: str) -> None:
    """Set up structlog for this process; the standard library's loggers join at warning and above."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _with_request_id,
            # Frames without their locals: those hold requests, and requests hold customers.
            structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False)),
            _line,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.BytesLoggerFactory(file=sys.stderr.buffer),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(program=program)
    logging.basicConfig(level=max(LEVELS[level], logging.WARNING), stream=sys.stderr, force=True, format="%(message)s")

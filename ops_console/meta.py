"""Health, metrics and documentation of the console."""

from __future__ import annotations

import orjson
from flask import Blueprint, Response, current_app

from ops_console import metrics
from ops_console.api.documentation import DESCRIPTION, SECURITY_SCHEMES
from ops_console.api.rendering import json_response
from ops_console.context import Context
from sentinel.core.errors import SentinelError
from sentinel.http.openapi import documented, openapi_document
from sentinel.store.database import Pool
from sentinel.store.figures import readiness
from sentinel.store.migrate import HEAD
from sentinel.store.tenants import public_tenants


def routes(blueprint: Blueprint, context: Context) -> None:
    """Add the meta routes."""

    @blueprint.get("/healthz")
    @documented("Whether the process answers", responses={200: ("It does.", {"type": "object"})})
    def healthz() -> Response:
        return json_response({"status": "ok"})

    @blueprint.get("/readyz")
    @documented("Whether operators and the public can be served",
                responses={200: ("They can.", {"type": "object"}), 503: ("Not now, and why.", {"type": "object"})})  # fmt: skip
    def readyz() -> Response:
        checks = {**_console_checks(context.pool), "board": _board_answers(context.board.pool)}
        ready = all(checks.values())
        response = json_response({"status": "ready" if ready else "not ready", "checks": checks}, 200 if ready else 503)
        response.headers["Cache-Control"] = "no-store"
        if not ready:
            response.headers["Retry-After"] = "1"
        return response

    @blueprint.get("/metrics")
    @documented(
        "Prometheus metrics", responses={200: ("The exposition.", {"type": "string"})}, content_type="text/plain"
    )
    def exposition() -> Response:
        metrics.POOL_IN_USE.labels("operators").set(context.pool.in_use)
        metrics.POOL_IN_USE.labels("board").set(context.board.pool.in_use)
        return Response(metrics.exposition(), content_type="text/plain; version=0.0.4; charset=utf-8")

    @blueprint.get("/openapi.json")
    @documented("This document", responses={200: ("OpenAPI 3.1.", {"type": "object"})})
    def openapi() -> Response:
        document = openapi_document(
            current_app, title="sentinel console", description=DESCRIPTION, security_schemes=SECURITY_SCHEMES
        )
        return Response(orjson.dumps(document), content_type="application/json")


def _console_checks(pool: Pool) -> dict[str, bool]:
    try:
        revision, writable = readiness(pool)
    except SentinelError:
        revision, writable = "", False
    return {"database": bool(revision), "writable": writable, "schema": revision == HEAD}


def _board_answers(pool: Pool) -> bool:
    try:
        public_tenants(pool)
    except SentinelError:
        return False
    return True

"""Health, metrics and documentation of the console."""

from __future__ import annotations

from flask import Blueprint, Response, current_app

from ops_console.api.rendering import DESCRIPTION, SECURITY_SCHEMES
from ops_console.context import ConsoleContext
from sentinel.authority.tenants import public_tenants
from sentinel.platform.http.openapi import OpenApiText, document_health, documented
from sentinel.platform.http.readiness import Readiness, database_checks, exposition, exposition_answer, holds
from sentinel.store.database import BOARD, Pool
from sentinel.store.safety import database_status


def routes(blueprint: Blueprint, context: ConsoleContext) -> None:
    """Add the meta routes."""
    document = OpenApiText(title="sentinel console", description=DESCRIPTION, security_schemes=SECURITY_SCHEMES)

    document_health(blueprint, "Whether operators and the public can be served")

    @blueprint.get("/metrics")
    @documented(
        "Prometheus metrics", responses={200: ("The exposition.", {"type": "string"})}, content_type="text/plain"
    )
    def show_metrics() -> Response:
        return exposition_answer(exposition())

    @blueprint.get("/openapi.json")
    @documented("This document", responses={200: ("OpenAPI 3.1.", {"type": "object"})})
    def openapi() -> Response:
        return Response(document.of(current_app), content_type="application/json")


def readiness_of(context: ConsoleContext) -> Readiness:
    """Return the checks behind /readyz: the console's and the board's database, and that their schema is the expected one."""

    def checks() -> dict[str, bool]:
        found = database_checks(lambda: database_status(context.pool, context.login.role))
        board = database_checks(lambda: database_status(context.board.pool, BOARD), "board")
        answers = board["board"] and holds(lambda: _board_answers(context.board.pool))
        return {**found, "board": answers}

    return Readiness(checks)


def _board_answers(pool: Pool) -> bool:
    public_tenants(pool)
    return True

"""Health, metrics and documentation of the authority."""

from __future__ import annotations

from flask import Blueprint, Flask, Response, send_from_directory

from sentinel.authority import metrics
from sentinel.authority.api.context import Context
from sentinel.authority.engine import Authority
from sentinel.authority.guard import try_guard
from sentinel.authority.policies import are_policies_declared
from sentinel.platform.http.docs_page import FILES, docs_page
from sentinel.platform.http.openapi import OpenApiText, document_health, documented
from sentinel.platform.http.readiness import Readiness, database_checks, exposition, exposition_answer, holds
from sentinel.platform.http.ready_gauge import ReadyGauge
from sentinel.store.database import AUTHORITY
from sentinel.store.safety import database_status

DESCRIPTION = (
    "The policy-decision service that an agent asks before it moves money. Every route also answers under"
    " `/api/haltstate/sentinel/`. Amounts of money are integers or decimal strings in major units."
)
SECURITY_SCHEMES = {
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "bearer": {"type": "http", "scheme": "bearer"},
}


def routes(app: Flask, context: Context, readiness: Readiness, *, left_out: tuple[str, ...] = ()) -> None:
    """Add the meta routes to the app. Paths that begin with one of `left_out` are not in its OpenAPI document."""
    meta = Blueprint("meta", __name__)
    document = OpenApiText(
        title="sentinel authority", description=DESCRIPTION, security_schemes=SECURITY_SCHEMES, left_out=left_out
    )

    document_health(meta, "Whether decisions can be given")

    @meta.get("/metrics")
    @documented(
        "Prometheus metrics", responses={200: ("The metrics as text.", {"type": "string"})}, content_type="text/plain"
    )
    def show_metrics() -> Response:
        metrics.note_connections(context.authority.pool, context.authority.connections)
        ready = ReadyGauge("sentinel_ready", readiness)
        return exposition_answer(exposition(metrics.DatabaseGauges(context.authority.pool), ready))

    @meta.get("/openapi.json")
    @documented("This document", responses={200: ("OpenAPI 3.1.", {"type": "object"})})
    def openapi() -> Response:
        return Response(document.of(app), content_type="application/json")

    @meta.get("/favicon.ico")
    @documented("The icon", responses={200: ("An icon.", {"type": "string"})}, content_type="image/svg+xml")
    def favicon() -> Response:
        return send_from_directory(FILES, "icon.svg", mimetype="image/svg+xml", max_age=86400)

    app.register_blueprint(meta)
    app.register_blueprint(docs_page("sentinel authority"))


def readiness_of(authority: Authority) -> Readiness:
    """Return the checks of /readyz: the database and its schema, whether the policies are declared, and a guard as a trial."""

    def checks() -> dict[str, bool]:
        found = database_checks(lambda: database_status(authority.pool, AUTHORITY))
        declared = found["schema"] and holds(lambda: are_policies_declared(authority))
        return {**found, "policies": declared, "guard": found["schema"] and try_guard(authority)}

    return Readiness(checks)

"""The console's apps, put together in one place: operators' pages and API, the public's board and confirm page, health."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

from flask import Blueprint, Flask, Response, redirect, request
from werkzeug.routing import PathConverter
from werkzeug.wrappers import Response as AnyResponse

from ops_console import identity, meta, metrics, pages
from ops_console.api import approvals, halts, orders, public_ids, refunds, session, switches, webhooks
from ops_console.audience import Audience
from ops_console.board import routes as board_routes
from ops_console.board import stream
from ops_console.confirm import routes as confirm_routes
from ops_console.context import build_context
from ops_console.headers import HEADERS, PUBLIC_HEADERS
from ops_console.pages import shell
from ops_console.settings import ConsoleSettings
from sentinel.platform.http import problems
from sentinel.platform.http.asgi import Edge, StreamHandler, WsgiApp, by_path
from sentinel.platform.http.bodies import MAX_BYTES
from sentinel.platform.http.docs_page import docs_page
from sentinel.platform.http.wire import HttpsOnly, address_of

PUBLIC_PLACES = ("/live", "/live/<anything:rest>", "/verify/", "/verify/<anything:rest>", "/confirm/", "/confirm/<anything:rest>", "/ops/api/live/<anything:rest>")  # fmt: skip
"""Paths that the public listener serves; the operators' listener redirects them there."""
PUBLIC_PATHS = ("/ops/api/live/", "/verify/")
_STEPS = ("", ".", "..")
FRAMED = "top.widget"
"""The endpoint of the only page that other sites may frame: it is read-only, and its own content policy allows framing."""


class GivenId(PathConverter):
    """An id chosen by another system, slashes included. Browsers resolve the path segments "", "." and ".." as relative
    steps, so the address has a "~" in front of such a segment; no id contains a "~".
    """

    def to_url(self, value: str) -> str:
        return super().to_url("/".join(f"~{part}" if part in _STEPS else part for part in value.split("/")))

    def to_python(self, value: str) -> str:
        return "/".join(part[1:] if part[:1] == "~" and part[1:] in _STEPS else part for part in value.split("/"))


def create_app(
    settings: ConsoleSettings, *, audience: Audience = Audience.BOTH, stopping: Callable[[], bool] = lambda: False
) -> Edge:
    """Build the app with every route of `audience`: streams run on the event loop, everything else in threads.

    No database connection is opened before the first request. `stopping()` is True once the process drains. The
    `ConsoleContext` is the Flask app's extension "console".
    """
    app = Flask("ops_console")
    app.config["MAX_CONTENT_LENGTH"] = MAX_BYTES + 1
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    context = build_context(settings, audience, stopping=stopping)
    app.extensions["console"] = context
    app.url_map.converters |= {"given_id": GivenId, "anything": confirm_routes.Anything}
    if audience.is_operators:
        identity.install(app, context)
        api = Blueprint("api", __name__, url_prefix="/ops/api")
        for part in (session, approvals, halts, switches, refunds, orders, public_ids, webhooks):
            part.routes(api, context)
        app.register_blueprint(api)
        app.register_blueprint(pages.blueprint(context))
    shell.install(app)
    streams: dict[str, StreamHandler] = {}
    top = Blueprint("top", __name__)
    if audience.is_public:
        streams[stream.PATH] = board_routes.routes(top, context)
        app.register_blueprint(confirm_routes.blueprint(context))
    else:
        _redirect_public(top, settings.public_origin)
    meta.routes(top, context)
    app.register_blueprint(top)
    app.register_blueprint(docs_page("sentinel console", home="/ops" if audience.is_operators else "/live"))
    app.after_request(_finish)
    problems.register(app, outage_text=problems.outage_text_for_people)
    https_only = HttpsOnly(settings.behind_tls, settings.trusted_proxies)
    if settings.trusted_proxies:
        app.wsgi_app = _BehindProxies(app.wsgi_app, https_only)  # type: ignore[method-assign]
    is_public = audience is Audience.PUBLIC
    return Edge(
        app,
        threads=settings.board_threads if is_public else settings.threads,
        streams=by_path(streams),
        readiness=meta.readiness_of(context),
        health_port=settings.board_health_port if is_public else settings.health_port,
        https_only=https_only,
        headers=HEADERS,
    )


class _BehindProxies:
    """A WSGI app whose requests have the client's address and scheme, as the outermost of the trusted proxies saw them.

    Not werkzeug's `ProxyFix`: an unclosed quotation mark that a client sends makes it ignore the whole header.
    """

    def __init__(self, app: WsgiApp, https_only: HttpsOnly) -> None:
        self._app, self._https_only = app, https_only

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        environ["REMOTE_ADDR"] = address_of(environ, self._https_only.trusted_proxies)
        environ["wsgi.url_scheme"] = "https" if self._https_only.came_over_tls(environ) else "http"
        return self._app(environ, start_response)


def _redirect_public(blueprint: Blueprint, public_origin: str) -> None:
    """Redirect public paths to the public listener; the method and the body are kept."""

    def elsewhere(rest: str = "") -> AnyResponse:
        # Percent-encoded: a raw line break in the Location header would raise ValueError, which is answered with a 500.
        query = request.query_string.decode("latin-1")
        return redirect(public_origin + quote(request.path) + (f"?{query}" if query else ""), 307)

    for place in PUBLIC_PLACES:
        blueprint.add_url_rule(place, "elsewhere", elsewhere, methods=["GET", "POST"])


def _finish(response: Response) -> Response:
    """Add the headers that every answer has, and count it. An answer without a Cache-Control of its own gets `no-store`."""
    for name, value in HEADERS.items():
        if (name, request.endpoint) != ("X-Frame-Options", FRAMED):
            response.headers.setdefault(name, value)
    if (
        request.endpoint == "static"
        and response.status_code in (200, 304)
        and shell.names_content(request.view_args, request.args)
    ):
        # The address contains the content's digest, so the file never has to be revalidated.
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
    response.headers.setdefault("Cache-Control", "no-store")
    if request.method in ("GET", "HEAD") and request.path.startswith(PUBLIC_PATHS):
        response.headers.update(PUBLIC_HEADERS)
    route = str(request.url_rule) if request.url_rule is not None else "other"
    metrics.REQUESTS.labels(route, str(response.status_code)).inc()
    return response

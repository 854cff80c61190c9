"""The authority as a Flask app, put together in one place from parts that are handed in."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime
from functools import partial

import orjson
from flask import Blueprint, Flask, Response, request
from flask.json.provider import JSONProvider

from sentinel.authority.api import approvals, check, guard, heartbeat, key, meta, switches
from sentinel.authority.api.approval_stream import BACKLOG, ApprovalFeed, Places, approvals_stream
from sentinel.authority.api.calls import Call, handlers_of, waiting_handlers_of
from sentinel.authority.api.context import Context
from sentinel.authority.api.identity import Identity
from sentinel.authority.approvals import Decided, decided_since
from sentinel.authority.decisions import peek_decisions, record_decisions, report_outcomes, start_operations
from sentinel.authority.engine import Authority
from sentinel.authority.settings import Settings
from sentinel.core.permit import PermitSigner
from sentinel.platform.http import https_only, problems, wire
from sentinel.platform.http.asgi import AsgiApp, Documents, HotRoutes
from sentinel.platform.http.rate_limit import SharedRateLimit
from sentinel.platform.http.responses import wire_response
from sentinel.platform.http.strict_json import MAX_BYTES
from sentinel.platform.http.wire import Handler, answer
from sentinel.policy.library import PolicyHolder
from sentinel.policy.switches import SwitchFile
from sentinel.store.clock import DatabaseClock
from sentinel.store.database import AUTHORITY, Pool, with_role
from sentinel.store.group_commit import GroupCommit

PREFIXES = ("/api/sentinel", "/api/haltstate/sentinel")
"""Both answer identically; the released client tries the second first (`CONTRACT.md` §1)."""


class _OrjsonProvider(JSONProvider):
    def dumps(self, obj: object, **_: object) -> str:
        return orjson.dumps(obj).decode()

    def loads(self, s: str | bytes, **_: object) -> object:
        return orjson.loads(s)


def build_authority(settings: Settings, policies: PolicyHolder) -> Authority:
    """The authority's parts for one process."""
    pool = Pool(with_role(settings.database_url, AUTHORITY, application_name="sentinel"), size=settings.pool_size)
    return Authority(
        pool=pool,
        decisions=GroupCommit(partial(record_decisions, pool)),
        starts=GroupCommit(partial(start_operations, pool)),
        reports=GroupCommit(partial(report_outcomes, pool)),
        checks=GroupCommit(partial(peek_decisions, pool)),
        policies=policies,
        permits=PermitSigner(settings.secret_keys),
        clock=DatabaseClock(pool),
        permit_seconds=settings.permit_seconds,
        report_deadline_seconds=settings.report_deadline_seconds,
        open_permits_per_key=settings.open_permits_per_key,
        longest_act_seconds=settings.longest_act_seconds,
    )


def create_app(
    settings: Settings, authority: Authority, limit: SharedRateLimit, *, stopping: Callable[[], bool] = lambda: False
) -> Flask:
    """The app with every route. `limit` is shared by all processes; `stopping` turns true when this one drains."""
    return _flask_app(_context(settings, authority, limit, stopping), behind_tls=settings.behind_tls)


def create_edge(
    settings: Settings, authority: Authority, limit: SharedRateLimit, *, stopping: Callable[[], bool] = lambda: False
) -> AsgiApp:
    """The same routes for an event loop: one decision at a time on the loop itself, all else in `settings.threads`."""
    context = _context(settings, authority, limit, stopping)
    hot = waiting_handlers_of(context, _calls(context))
    rest = Documents(_flask_app(context, behind_tls=settings.behind_tls), settings.threads)
    places = Places(settings.max_streams, settings.max_streams_per_tenant, settings.max_streams_per_key)
    feed = ApprovalFeed(partial(_decided_since, authority.pool), places, stopping)
    stream = approvals_stream(context.identity, feed)
    return HotRoutes(
        rest,
        {prefix + path: handler for prefix in PREFIXES for path, handler in hot.items()}.get,
        {f"{prefix}/approvals/stream": stream for prefix in PREFIXES}.get,
    )


def _decided_since(pool: Pool, tenant_id: uuid.UUID, since: datetime, principal_id: uuid.UUID | None) -> list[Decided]:
    return decided_since(pool, tenant_id, since, BACKLOG, principal_id=principal_id)


def _context(settings: Settings, authority: Authority, limit: SharedRateLimit, stopping: Callable[[], bool]) -> Context:
    return Context(
        authority=authority,
        identity=Identity(authority.pool, limit, uses=authority.key_uses),
        switches=SwitchFile(authority.policies.directory),
        stopping=stopping,
    )


def _calls(context: Context) -> dict[str, Call]:
    return {**guard.calls(context), **check.calls(context)}


def _flask_app(context: Context, *, behind_tls: bool) -> Flask:
    app = Flask("sentinel.api", static_folder=None)
    app.json = _OrjsonProvider(app)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BYTES + 1
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    hot: dict[str, Handler] = {**handlers_of(context, _calls(context)), **check.handlers(context)}
    for prefix in PREFIXES:
        blueprint = Blueprint(prefix.strip("/").replace("/", "_"), __name__, url_prefix=prefix)
        for path, handler in hot.items():
            blueprint.add_url_rule(path, path.strip("/").replace("/", "_"), _view(path, handler), methods=["POST"])
        for part in (approvals, heartbeat, key, switches):
            part.routes(blueprint, context)
        app.register_blueprint(blueprint)
    meta.routes(app, context)
    https_only.install(app, behind_tls=behind_tls)
    problems.register(app)
    # The decision routes answer before Flask is asked; the same handlers stand behind its routes for everything else.
    app.wsgi_app = wire.HotRoutes(  # type: ignore[method-assign]
        app.wsgi_app, {prefix + path: handler for prefix in PREFIXES for path, handler in hot.items()}.get
    )
    return app


def _view(path: str, handler: Handler) -> Callable[[], Response]:
    def view() -> Response:
        return wire_response(answer(handler, request.environ))

    view.documentation = {**guard.DOCUMENTATION, **check.DOCUMENTATION}[path]  # type: ignore[attr-defined]
    return view

"""The authority as a Flask app, put together in one place from parts that are handed in."""

from __future__ import annotations

import threading
from collections.abc import Callable

import orjson
from flask import Blueprint, Flask
from flask.json.provider import JSONProvider

from sentinel.api import approvals, check, guard, heartbeat, meta
from sentinel.api.context import Context
from sentinel.api.identity import Identity
from sentinel.api.rate_limit import SharedRateLimit
from sentinel.core.permit import PermitSigner
from sentinel.http import problems
from sentinel.http.strict_json import MAX_BYTES
from sentinel.policy.library import PolicyHolder
from sentinel.services.authority import Authority
from sentinel.settings import Settings
from sentinel.store.database import AUTHORITY, Pool, with_role

PREFIXES = ("/api/sentinel", "/api/haltstate/sentinel")
"""Both answer identically; the released client tries the second first (`CONTRACT.md` §1)."""


class _OrjsonProvider(JSONProvider):
    def dumps(self, obj: object, **_: object) -> str:
        return orjson.dumps(obj).decode()

    def loads(self, s: str | bytes, **_: object) -> object:
        return orjson.loads(s)


def build_authority(settings: Settings, policies: PolicyHolder) -> Authority:
    """The authority's parts for one process."""
    return Authority(
        pool=Pool(with_role(settings.database_url, AUTHORITY, application_name="sentinel"), size=settings.pool_size),
        policies=policies,
        permits=PermitSigner(settings.secret_keys),
        permit_seconds=settings.permit_seconds,
        report_deadline_seconds=settings.report_deadline_seconds,
    )


def create_app(
    settings: Settings, authority: Authority, limit: SharedRateLimit, *, stopping: Callable[[], bool] = lambda: False
) -> Flask:
    """The app with every route. `limit` is shared by all processes; `stopping` turns true when this one drains."""
    app = Flask("sentinel.api", static_folder=None)
    app.json = _OrjsonProvider(app)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BYTES + 1
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    context = Context(
        authority=authority,
        identity=Identity(authority.pool, limit),
        stream_slots=threading.BoundedSemaphore(settings.max_streams),
        stopping=stopping,
    )
    for prefix in PREFIXES:
        blueprint = Blueprint(prefix.strip("/").replace("/", "_"), __name__, url_prefix=prefix)
        for part in (guard, check, approvals, heartbeat):
            part.routes(blueprint, context)
        app.register_blueprint(blueprint)
    meta.routes(app, context)
    problems.register(app)
    return app

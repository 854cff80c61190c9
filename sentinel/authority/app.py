"""The authority's app: the one place where its parts are built and put together."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path

import orjson
import structlog
from flask import Blueprint, Flask
from flask.json.provider import JSONProvider

from sentinel.authority.api import (
    aap,
    aap_wire,
    access_requests,
    agent_status,
    approvals,
    authzen,
    check,
    guard,
    meta,
)
from sentinel.authority.api.approval_stream import BACKLOG, ApprovalFeed, StreamSlots, Whose, approvals_stream
from sentinel.authority.api.authority_calls import AuthorityCalls
from sentinel.authority.api.calls import handlers_of
from sentinel.authority.api.context import Context
from sentinel.authority.api.identity import Identity
from sentinel.authority.approvals import DecidedApproval, decided_since
from sentinel.authority.decisions import PEEK_DECISIONS, RECORD_DECISIONS, START_OPERATIONS, commit_reports
from sentinel.authority.engine import Authority
from sentinel.authority.settings import Settings
from sentinel.core.signing import PermitSigner
from sentinel.platform.http import problems
from sentinel.platform.http.asgi import Edge, by_path, first_of
from sentinel.platform.http.bodies import MAX_BYTES
from sentinel.platform.http.openapi import answered_on_the_loop
from sentinel.platform.http.rate_limit import SharedRateLimit
from sentinel.platform.http.readiness import Readiness
from sentinel.platform.http.wire import HttpsOnly
from sentinel.policy.errors import PolicyError
from sentinel.policy.library import ReloadablePolicies
from sentinel.policy.source import ReloadedFile
from sentinel.policy.switches import SwitchFile
from sentinel.store.batch_commit import BatchCommitter
from sentinel.store.database import AUTHORITY, Pool, with_role
from sentinel.store.loop_connections import LoopConnections
from sentinel.store.queries import DatabaseClock
from sentinel.tools.mapping import ToolTable
from sentinel.tools.parse import FILE_NAME as TOOLS
from sentinel.tools.parse import read_tool_table

log = structlog.get_logger("sentinel.tools")

PREFIXES = ("/api/sentinel", "/api/haltstate/sentinel")
"""Prefixes of the routes. Both answer identically; the released client tries the second first (`docs/CONTRACT.md` §1)."""
TOLERATED = tuple(f"/ops{prefix}" for prefix in PREFIXES)
"""Prefixes for clients whose base address ends in `/ops`: the same routes, which the OpenAPI document leaves out."""


class _OrjsonProvider(JSONProvider):
    def dumps(self, obj: object, **_: object) -> str:
        return orjson.dumps(obj).decode()

    def loads(self, s: str | bytes, **_: object) -> object:
        return orjson.loads(s)


def build_authority(settings: Settings, policies: ReloadablePolicies) -> Authority:
    """Build the authority's parts for one process; half of the pool's connections are for commits on the event loop."""
    conninfo = with_role(settings.database_url, AUTHORITY, application_name="sentinel")
    for_commits = max(1, settings.pool_size // 2)
    connections = LoopConnections(conninfo, size=for_commits)
    pool = Pool(conninfo, size=max(1, settings.pool_size - for_commits))
    pool.closes_with.append(connections.close)
    return Authority(
        pool=pool,
        connections=connections,
        decisions=BatchCommitter(partial(connections.commit, RECORD_DECISIONS)),
        starts=BatchCommitter(partial(connections.commit, START_OPERATIONS)),
        reports=BatchCommitter(partial(commit_reports, connections, pool)),
        checks=BatchCommitter(partial(connections.commit, PEEK_DECISIONS)),
        policies=policies,
        permits=PermitSigner(settings.secret_keys),
        clock=DatabaseClock(pool),
        permit_seconds=settings.permit_seconds,
        report_deadline_seconds=settings.report_deadline_seconds,
        open_permits_per_key=settings.open_permits_per_key,
        open_questions_per_key=settings.open_questions_per_key,
        longest_act_seconds=settings.longest_act_seconds,
    )


def create_app(
    settings: Settings, authority: Authority, limit: SharedRateLimit, *, stopping: Callable[[], bool] = lambda: False
) -> Edge:
    """Build the app with every route: decisions and streams run on the event loop, everything else in threads.

    `limit` is shared by all processes; `stopping` returns True once this process drains its connections to stop.
    """
    context = Context(
        authority=authority,
        identity=Identity(authority.pool, limit, uses=authority.key_uses),
        switches=SwitchFile(authority.policies.directory),
        tools=ReloadedFile(authority.policies.directory / TOOLS, _tool_table),
        threads=ThreadPoolExecutor(settings.threads, thread_name_prefix="calls"),
    )
    posts = {**handlers_of(context, {**guard.calls(context), **check.calls(context)}), **check.handlers(context)}
    calls = AuthorityCalls(context)
    requests = None
    if settings.authzen_access_requests:
        requests = access_requests.AccessRequests(context, behind_tls=settings.behind_tls)
    own = authzen.Evaluations(context, calls, requests).handlers()
    places = StreamSlots(settings.max_streams, settings.max_streams_per_tenant, settings.max_streams_per_key)
    feed = ApprovalFeed(partial(_decided_since, authority.pool), authority.clock, places, stopping)
    stream = approvals_stream(context.identity, feed)
    readiness = meta.readiness_of(authority)
    return Edge(
        _flask_app(context, settings, readiness),
        threads=settings.threads,
        posts=by_path({prefix + path: one for prefix in (*PREFIXES, *TOLERATED) for path, one in posts.items()} | own),
        streams=by_path({f"{prefix}/approvals/stream": stream for prefix in (*PREFIXES, *TOLERATED)}),
        others=first_of([one.find for one in (aap.AapRoutes(context, calls, feed), requests) if one is not None]),
        readiness=readiness,
        health_port=settings.health_port,
        https_only=HttpsOnly(settings.behind_tls),
    )


def _tool_table(path: Path) -> ToolTable:
    """Read a tool table; return an empty one if the file is missing or faulty, so that every tool call is denied."""
    if not path.exists():
        return ToolTable(())
    try:
        return read_tool_table(path, regular=True)
    except PolicyError as error:
        log.error("tools_file_unusable", fault=str(error))
        return ToolTable(())


def _decided_since(pool: Pool, owner: Whose, since: datetime) -> list[DecidedApproval]:
    return decided_since(
        pool, owner.tenant_id, since, BACKLOG, principal_id=owner.principal_id, agent_id=owner.agent_id
    )


def _flask_app(context: Context, settings: Settings, readiness: Readiness) -> Flask:
    app = Flask("sentinel.api", static_folder=None)
    app.json = _OrjsonProvider(app)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BYTES + 1
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    for prefix in (*PREFIXES, *TOLERATED):
        blueprint = Blueprint(prefix.strip("/").replace("/", "_"), __name__, url_prefix=prefix)
        for path, documentation in {**guard.DOCUMENTATION, **check.DOCUMENTATION}.items():
            name = path.strip("/").replace("/", "_")
            blueprint.add_url_rule(path, name, answered_on_the_loop(documentation), methods=["POST"])
        for part in (approvals, agent_status):
            part.routes(blueprint, context)
        app.register_blueprint(blueprint)
    # Standard protocols have fixed paths, without a prefix.
    root = Blueprint("protocols", __name__)
    authzen.routes(root, behind_tls=settings.behind_tls, has_access_requests=settings.authzen_access_requests)
    if settings.authzen_access_requests:
        access_requests.routes(root, context)
    aap_wire.routes(root, context)
    app.register_blueprint(root)
    meta.routes(app, context, readiness, left_out=TOLERATED)
    problems.register(app)
    return app

"""A scratch environment for gate runs: a temporary database with a tenant, an agent key and an authority on loopback.

The database is created on the given server where its login may do that, else on an embedded server of its own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psycopg
from psycopg import errors as pg
from psycopg.conninfo import make_conninfo

from sentinel.authority.keys import WORKER_SCOPES, issue_key
from sentinel.authority.settings import Settings
from sentinel.authority.tenants import create_tenant
from sentinel.cli.scratch_databases import PREFIX, SERVER
from sentinel.core.errors import EngineUnavailable
from sentinel.platform.settings import UnsafeConfiguration
from sentinel.policy.library import ReloadablePolicies
from sentinel.store.database import CONSOLE, Pool, describe, first_line, parts_to_connect, with_role
from sentinel.store.embedded import remove, running
from sentinel.store.migrate import SchemaNotReady, migrate


@dataclass(frozen=True, slots=True)
class ScratchEnvironment:
    """A scratch environment. The login of `database_url` may do everything in the database; `api_key` is an agent's."""

    database_url: str
    tenant_id: uuid.UUID
    api_key: str
    authority_url: str


@contextlib.contextmanager
def scratch_environment(url: str | None, policies: ReloadablePolicies) -> Iterator[ScratchEnvironment]:
    """Yield a scratch environment, which is removed after the block, also after an error in it.

    The variable SERVER takes precedence over `url`, and its login must be able to create databases and roles. Raises
    `EngineUnavailable`, `EmbeddedError`, `UnsafeConfiguration`.
    """
    with _database(url) as database:
        pool = Pool(with_role(database, CONSOLE, application_name="sentinel-scratch"), size=1)
        try:
            tenant_id = create_tenant(pool, "scratch")
            key = issue_key(pool, tenant_id, agent_id=None, scopes=WORKER_SCOPES).key
        finally:
            pool.close()
        with authority_on_loopback(database, policies) as address:
            yield ScratchEnvironment(database, tenant_id, key, address)


@contextlib.contextmanager
def _database(url: str | None) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        named = os.environ.get(SERVER)
        server = named or url
        beside = _beside(server, stack) if server else None
        if beside is None and named:
            raise UnsafeConfiguration(f"{SERVER}: its login must be able to create databases and roles")
        if beside is None:
            beside = _beside(_own_server(stack), stack)
        assert beside is not None
        yield beside


def _beside(url: str, stack: contextlib.ExitStack) -> str | None:
    """Create and migrate a database on the server of `url` and return its URL; None where the login may not do that."""
    name, given = PREFIX + secrets.token_hex(6), parts_to_connect(url)
    try:
        admin = stack.enter_context(contextlib.closing(psycopg.connect(make_conninfo(**given), autocommit=True)))
    except psycopg.OperationalError as error:
        raise EngineUnavailable(f"cannot use the database at {describe(url)}: {first_line(error)}") from error
    # Registered first: a run that is interrupted while the server creates it removes it too.
    stack.callback(_drop, admin, name)
    try:
        admin.execute(f"create database {name}".encode())
    except pg.InsufficientPrivilege:
        return None
    except psycopg.Error as error:  # e.g. a replica, or a full disk
        raise EngineUnavailable(f"cannot create a database at {describe(url)}: {first_line(error)}") from error
    # Durability is not needed: the database is dropped anyway.
    admin.execute(f"alter database {name} set synchronous_commit = off".encode())
    parts: dict[str, Any] = {**given, "dbname": name}
    found = make_conninfo(**parts)
    try:
        migrate(found)
    except SchemaNotReady:
        return None  # e.g. a login that may make databases, but no roles
    return found


def _drop(admin: psycopg.Connection[Any], name: str) -> None:
    """Drop the scratch database. Where that fails, as on a server that has gone, it must not hide how the run ended."""
    try:
        admin.execute(f"drop database if exists {name} with (force)".encode())
    except psycopg.Error as error:
        click.echo(f"The scratch database {name} was not dropped: {first_line(error)}", err=True)


def _own_server(stack: contextlib.ExitStack) -> str:
    base = Path(tempfile.gettempdir()) / f"sentinel-scratch-{secrets.token_hex(6)}"
    stack.callback(shutil.rmtree, base, ignore_errors=True)
    stack.callback(remove, base)
    return stack.enter_context(running(base, own=True)).admin_url


@contextlib.contextmanager
def listening(app: Any, handler: Any = None) -> Iterator[str]:
    """Serve a WSGI application over HTTP in this process on a free port; yield its URL. `handler` is werkzeug's if not given."""
    from werkzeug.serving import make_server

    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@contextlib.contextmanager
def authority_on_loopback(database: str, policies: ReloadablePolicies) -> Iterator[str]:
    """Serve the complete authority in this process, on loopback; yield its URL."""
    from werkzeug.serving import WSGIRequestHandler

    from sentinel.authority.app import build_authority, create_app
    from sentinel.authority.policies import declare_policies
    from sentinel.platform.http.in_process import InProcess
    from sentinel.platform.http.rate_limit import SharedRateLimit

    class QuietHandler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, type: str, message: str, *args: object) -> None:
            """Log nothing: the requests are recorded in the scratch database."""

    settings = Settings(database_url=database, secret_keys=(secrets.token_hex(32),), pool_size=8)
    authority = build_authority(settings, policies)
    try:
        declare_policies(authority)
        edge = create_app(settings, authority, SharedRateLimit(per_second=1_000_000, burst=1_000_000))
        with contextlib.closing(InProcess(edge)) as app, listening(app, QuietHandler) as url:
            yield url
    finally:
        authority.pool.close()

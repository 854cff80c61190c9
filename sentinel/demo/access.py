"""The demo's credentials: tenant, operators and keys, created once and kept over restarts."""

from __future__ import annotations

import json
import os
import threading
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from sentinel.cli.scratch_databases import drop_leftover_databases
from sentinel.demo.processes import raise_if_stopped
from sentinel.platform.private_files import replace_private

if TYPE_CHECKING:
    from sentinel.store.database import Pool

TENANT = "public-demo"
OPERATORS = ("viewer", "approver", "admin")
REFUND_AGENT = "retail-refund-agent"


@dataclass(frozen=True, slots=True)
class DemoAccess:
    """The demo's credentials; kept in the data folder, readable by its owner only, so that a restart shows the same.

    `worker_key` is the refund worker's own, bound to its agent, so that the board may name it; "" in an older folder.
    """

    tenant_id: str
    agent_api_key: str
    operators: list[dict[str, str]]
    worker_key: str = ""


def prepare(admin_url: str, data_dir: Path, stop: threading.Event) -> DemoAccess:
    """Migrate the database, create the tenant, the operators and the keys where they are missing, and return the credentials."""
    from sentinel.store.migrate import migrate

    raise_if_stopped(stop)
    migrate(admin_url)
    raise_if_stopped(stop)
    with psycopg.connect(admin_url.replace("postgresql+psycopg://", "postgresql://"), autocommit=True) as connection:
        if not os.environ.get("SENTINEL_DATABASE_URL"):
            drop_leftover_databases(connection)
        path = data_dir / "demo.json"
        kept = _kept(path)
        known = "select 1 from sentinel.tenants where tenant_id = %s"
        if kept is not None and not connection.execute(known, [kept.tenant_id]).fetchone():
            kept = None
    # `stop` is not checked during this: a tenant that is half made would be made again under another label.
    access = _make_access(admin_url) if kept is None else _with_usable_keys(admin_url, kept)
    if access != kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_private(path, json.dumps(asdict(access)).encode())
    return access


def _kept(path: Path) -> DemoAccess | None:
    """Return the credentials in the file; None where it is missing, or incomplete after a full disk or a power cut."""
    try:
        return DemoAccess(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _make_access(admin_url: str) -> DemoAccess:
    import secrets

    from ops_console.accounts.operator_changes import create_operator
    from sentinel.authority.tenants import create_tenant, list_tenants
    from sentinel.store.database import CONSOLE, Pool, with_role

    pool = Pool(with_role(admin_url, CONSOLE), size=1)
    try:
        label = TENANT if all(one.label != TENANT for one in list_tenants(pool)) else f"demo-{uuid.uuid4().hex[:8]}"
        tenant_id = create_tenant(pool, label)
        operators = []
        for role in OPERATORS:
            password = secrets.token_urlsafe(12)
            email = f"{role}@demo.example"
            create_operator(pool, tenant_id, email=email, password=password, role=role)
            operators.append({"email": email, "password": password, "role": role})
        key, worker_key = _agent_key(pool, tenant_id), _worker_key(pool, tenant_id)
    finally:
        pool.close()
    with psycopg.connect(admin_url.replace("postgresql+psycopg://", "postgresql://"), autocommit=True) as connection:
        connection.execute("insert into refunds.defaults (tenant_id) values (%s) on conflict do nothing", [tenant_id])
    return DemoAccess(str(tenant_id), key, operators, worker_key)


def _with_usable_keys(admin_url: str, kept: DemoAccess) -> DemoAccess:
    """Return the credentials with another key for each that a visitor has revoked since, without which nothing would start."""
    from sentinel.authority.keys import find_key, secret_hash
    from sentinel.store.database import CONSOLE, Pool, with_role

    tenant_id = uuid.UUID(kept.tenant_id)
    pool = Pool(with_role(admin_url, CONSOLE), size=1)

    def is_usable(key: str) -> bool:
        found = find_key(pool, secret_hash(key))
        return found is not None and found.usable

    try:
        if not is_usable(kept.agent_api_key):
            kept = replace(kept, agent_api_key=_agent_key(pool, tenant_id))
        if kept.worker_key and not is_usable(kept.worker_key):
            kept = replace(kept, worker_key=_worker_key(pool, tenant_id))
    finally:
        pool.close()
    return kept


def _agent_key(pool: Pool, tenant_id: uuid.UUID) -> str:
    from sentinel.authority.keys import WORKER_SCOPES, issue_key

    return issue_key(pool, tenant_id, agent_id=None, label="demo agent", scopes=WORKER_SCOPES).key


def _worker_key(pool: Pool, tenant_id: uuid.UUID) -> str:
    from sentinel.authority.keys import WORKER_SCOPES, issue_key

    return issue_key(pool, tenant_id, agent_id=REFUND_AGENT, label="demo refund worker", scopes=WORKER_SCOPES).key

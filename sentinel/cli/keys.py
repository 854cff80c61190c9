"""`sentinel keys`: agent keys. A key is printed once, when it is made; only its hash is kept.

`operators.py` says when a key waits for a second administrator.
"""

from __future__ import annotations

import click

from ops_console.accounts.operator_changes import known_operator
from sentinel.authority.keys import (
    DEFAULT_SCOPES,
    OVERLAP_SECONDS,
    SCOPES,
    WORKER_SCOPE,
    IssuedKey,
    issue_key,
    list_keys,
    revoke_key,
    rotate_key,
)
from sentinel.cli.common import (
    FreeText,
    as_uuid,
    json_option,
    open_pool,
    show,
    show_rows,
    show_secret,
    tenant_of,
    tenant_option,
)
from sentinel.platform.command_line import OneLineErrors
from sentinel.store.embedded import SUPERUSER

COLUMNS = ("key_id", "hint", "label", "agent_id", "scopes", "owner", "created_at", "expires_at", "revoked_at", "last_used_at",
           "usable")  # fmt: skip


@click.group(cls=OneLineErrors)
def group() -> None:
    """Agent keys: create, list, rotate, revoke."""


def _show_once(issued: IssuedKey, as_json: bool) -> None:
    note = f"Key {issued.key_id}. It is shown only once; store it where the agent reads it."
    show_secret(issued, as_json, issued.key, note)


@group.command()
@click.option("--agent-id", help="Bind the key to this agent; without it, the key is for any agent of the tenant.")
@click.option("--label", default="", type=FreeText(100, least=0), help="What the key is for; at most 100 characters.")
@click.option("--scope", "scopes", multiple=True, type=click.Choice(SCOPES), default=DEFAULT_SCOPES, show_default=True,
              help="What the key may do; may be given several times.")  # fmt: skip
@click.option("--worker", is_flag=True, help="A worker's key: it vouches for facts with `vouched_by: worker`.")
@click.option("--expires-days", type=int, help="Days until the key expires; without it, it never does.")
@click.option("--owner", metavar="EMAIL", help="Key owner: this operator can then never approve what the key asks for.")
@click.option("--test", is_flag=True, help="Create a key that begins with snt_test_.")
@tenant_option
@json_option
def create(
    agent_id: str | None, label: str, scopes: tuple[str, ...], worker: bool, expires_days: int | None, owner: str | None, test: bool,
    tenant: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Create a key and print it; it is shown only once."""
    with open_pool(login=SUPERUSER) as pool:
        tenant_id = tenant_of(pool, tenant)
        owner_id = known_operator(pool, tenant_id, owner).operator_id if owner else None
        issued = issue_key(
            pool, tenant_id, agent_id=agent_id, label=label, owner_operator_id=owner_id,
            scopes=(*scopes, WORKER_SCOPE) if worker and WORKER_SCOPE not in scopes else scopes,
            expires_days=expires_days, test=test,
        )  # fmt: skip
    _show_once(issued, as_json)


@group.command("list")
@tenant_option
@json_option
def list_(tenant: str | None, as_json: bool) -> None:
    """List keys by their first characters; the keys themselves are not kept."""
    with open_pool(login=SUPERUSER) as pool:
        rows = list_keys(pool, tenant_of(pool, tenant))
    show_rows(rows, COLUMNS, as_json=as_json, empty="There is no key yet.")


@group.command()
@click.argument("key_id", metavar="KEY_ID")
@tenant_option
@json_option
def revoke(key_id: str, tenant: str | None, as_json: bool) -> None:
    """Revoke a key; it is refused within a second, by an MCP proxy within two."""
    with open_pool(login=SUPERUSER) as pool:
        revoke_key(pool, tenant_of(pool, tenant), as_uuid(key_id, "KEY_ID"))
    show({"key_id": key_id, "revoked": True}, as_json, "Revoked.")


@group.command()
@click.argument("key_id", metavar="KEY_ID")
@click.option("--overlap-hours", type=click.IntRange(0, 24 * 90), default=OVERLAP_SECONDS // 3600, show_default=True,
              help="Hours for which the old key still works.")  # fmt: skip
@click.option("--expires-days", type=int, help="Days until the new key expires; without it, it never does.")
@tenant_option
@json_option
def rotate(key_id: str, overlap_hours: int, expires_days: int | None, tenant: str | None, as_json: bool) -> None:
    """Create a successor of a key, with the same rights, and print it; it is shown only once."""
    with open_pool(login=SUPERUSER) as pool:
        issued = rotate_key(
            pool, tenant_of(pool, tenant), as_uuid(key_id, "KEY_ID"),
            overlap_seconds=overlap_hours * 3600, expires_days=expires_days,
        )  # fmt: skip
    _show_once(issued, as_json)

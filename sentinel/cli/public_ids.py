"""`sentinel public-ids`: look up an identifier of the public board."""

from __future__ import annotations

import click

from sentinel.authority.public_ids import load_public_id_generators, look_up_public_id
from sentinel.cli.common import json_option, open_pool, print_json, tenant_of, tenant_option
from sentinel.platform.command_line import OneLineErrors
from sentinel.platform.settings import public_id_secrets


@click.group(cls=OneLineErrors)
def group() -> None:
    """Identifiers of the public board and of public proofs."""


@group.command("find")
@click.argument("public_id", metavar="PUBLIC_ID")
@tenant_option
@json_option
def find(public_id: str, tenant: str | None, as_json: bool) -> None:
    """Tell what PUBLIC_ID (pag_…, pac_…, ple_…, prf_…, or a proof's pf_…) stands for.

    Needs the console's SENTINEL_PUBLIC_ID_SECRETS, where it is set there.
    """
    with open_pool() as pool:
        ids = load_public_id_generators(pool, public_id_secrets())[0]
        found = look_up_public_id(pool, tenant_of(pool, tenant), ids, public_id)
    if as_json:
        print_json(found)
        return
    click.echo(f"{found.public_id} is {found.kind.replace('_', ' ')} {found.value}")
    rows = (
        ("operation", found.operation_id), ("proof", found.proof_id), ("agent", found.agent_id), ("action", found.action),
        ("ledger entry", found.ledger_entry_id), ("refund", found.refund_id), ("decided", found.decided_at.isoformat()),
    )  # fmt: skip
    for name, value in rows:
        if value is not None:
            click.echo(f"  {name:<13}{value}")

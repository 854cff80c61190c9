"""`sentinel tenants`: list and create tenants."""

from __future__ import annotations

import click

from sentinel.authority.tenants import create_tenant, list_tenants
from sentinel.cli.common import json_option, open_pool, show, show_rows
from sentinel.platform.command_line import OneLineErrors


@click.group(cls=OneLineErrors)
def group() -> None:
    """List and create tenants, which are separate in one database."""


@group.command()
@click.argument("label")
@json_option
def create(label: str, as_json: bool) -> None:
    """Add a tenant; its label is public, e.g. on the board."""
    with open_pool() as pool:
        tenant_id = create_tenant(pool, label)
    show({"tenant_id": tenant_id, "label": label}, as_json, f"Tenant {label}: {tenant_id}")


@group.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List tenants."""
    with open_pool() as pool:
        rows = list_tenants(pool)
    show_rows(rows, ("label", "tenant_id", "created_at"), as_json=as_json, empty="There is no tenant yet.")

"""`sentinel migrate`: create or migrate the schema, and apply the grants."""

from __future__ import annotations

import json

import click

from sentinel.cli.common import json_option
from sentinel.store.address import administrator_url


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Bring the database to this program's schema and grants; safe to run repeatedly and concurrently.

    The login of SENTINEL_DATABASE_URL must be able to create roles and schemas. Without that variable the embedded
    database of SENTINEL_DATA_DIR is created, if it does not exist, and migrated.
    """
    from sentinel.store.migrate import migrate

    with administrator_url() as url:
        before, after = migrate(url)
    if as_json:
        click.echo(json.dumps({"before": before, "after": after}))
    elif before == after:
        click.echo(f"The database is already at revision {after}; grants applied.")
    else:
        click.echo(f"The database was migrated from {before or 'empty'} to revision {after}; grants applied.")

"""`sentinel migrate`: the schema and the grants."""

from __future__ import annotations

import json

import click

from sentinel.cli.common import json_option
from sentinel.store.address import administrator_url


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Bring the database to this program's schema and grants; safe to run as often as you like, and at once.

    The login of SENTINEL_DATABASE_URL must be able to create roles and schemas. Without that variable the embedded
    database of SENTINEL_DATA_DIR is made, if it is not there, and migrated.
    """
    from sentinel.store.migrate import migrate

    with administrator_url() as url:
        before, after = migrate(url)
    if as_json:
        click.echo(json.dumps({"before": before, "after": after}))
    elif before == after:
        click.echo(f"The database is at revision {after} already; grants applied.")
    else:
        click.echo(f"The database went from {before or 'empty'} to revision {after}; grants applied.")

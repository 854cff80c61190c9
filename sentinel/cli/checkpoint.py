"""`sentinel checkpoint`: append a checkpoint of the event log to a local file."""

from __future__ import annotations

from pathlib import Path

import click

from sentinel.authority.checkpoints import CheckpointFile
from sentinel.cli.common import json_option, open_pool, show
from sentinel.core.wording import counted
from sentinel.platform.command_line import InvalidUsage


@click.command()
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    envvar="SENTINEL_CHECKPOINT_FILE",
    help="The checkpoint file; created when missing.  [SENTINEL_CHECKPOINT_FILE]",
)
@json_option
def command(file: Path, as_json: bool) -> None:
    """Append a checkpoint of the new events, as the authority does each minute where a file is configured.

    Meant for a timer on a machine that the database's administrators have no access to; `sentinel doctor --checkpoint
    FILE` compares there. Exit 1 when a tenant's evidence is no longer what the file says; nothing of it is written then.
    """
    with open_pool() as pool:
        try:
            written = CheckpointFile(file).append(pool)
        except OSError as error:
            raise InvalidUsage(f"the checkpoint file {file} cannot be written: {error.strerror}") from None
    events = sum(len(one.entries) for one in written)
    show({"file": str(file), "events": events}, as_json, f"{counted(events, 'new event')} recorded in {file}")

"""`sentinel proof`: anyone can recompute a proof pack's hash."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from sentinel.cli.common import json_option
from sentinel.core.canonical import canonical_json
from sentinel.core.errors import InvalidInput
from sentinel.core.proof import is_intact, pack_hash
from sentinel.http.strict_json import read_object


@click.group()
def group() -> None:
    """Verify proof packs offline."""


@group.command()
@click.argument("file", type=click.File("rb"))
@click.option("--show-bytes", is_flag=True, help="Print the canonical bytes that are hashed.")
@json_option
def verify(file: Any, show_bytes: bool, as_json: bool) -> None:
    """Recompute the hash of the proof pack in FILE ("-" reads standard input), alone or inside a guard answer.

    Exit 0 when the pack is intact, 1 when it is not.
    """
    found = read_object(file.read())
    pack = found.get("proof_pack", found)
    if not isinstance(pack, dict) or "hash" not in pack:
        raise InvalidInput.of("hash", "is missing: this is not a proof pack")
    intact = is_intact(pack)
    if as_json:
        click.echo(
            json.dumps(
                {"proof_id": pack.get("proof_id"), "intact": intact, "hash": pack["hash"], "computed": pack_hash(pack)}
            )
        )
    else:
        if show_bytes:
            click.echo(canonical_json({key: value for key, value in pack.items() if key != "hash"}))
        click.echo(
            f"{pack.get('proof_id')}: "
            + ("intact" if intact else f"ALTERED\n  carries  {pack['hash']}\n  computed {pack_hash(pack)}")
        )
    sys.exit(0 if intact else 1)

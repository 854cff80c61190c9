"""`sentinel proof`: verify a proof pack by its hash, or compare it with the recorded decision."""

from __future__ import annotations

import dataclasses
import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import click

from sentinel.authority.policy_inspector import PolicyInspector
from sentinel.authority.proofs import compare_with_record
from sentinel.authority.public_ids import load_public_id_generators
from sentinel.cli.common import json_option, open_pool, policies_option, print_json, tenant_of, tenant_option
from sentinel.core.canonical import canonical_json
from sentinel.core.customer_text import visible_text
from sentinel.core.errors import InvalidInput
from sentinel.core.proof import is_intact, pack_hash
from sentinel.platform.command_line import one_line_errors
from sentinel.platform.http.bodies import read_object
from sentinel.platform.resources import policies_dir
from sentinel.platform.settings import public_id_secrets


@click.group()
def group() -> None:
    """Verify proof packs offline."""


@group.command()
@click.argument("file", type=click.File("rb"))
@click.option("--show-bytes", is_flag=True, help="Print the canonical bytes that are hashed.")
@json_option
def verify(file: BinaryIO, show_bytes: bool, as_json: bool) -> None:
    """Recompute the hash of the proof pack in FILE ("-" reads standard input), alone or inside a guard answer.

    Exit 0 when the pack is intact, 1 when it is not.
    """
    pack = _pack_in(file)
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
        # On one line each: no line of a pack from outside may look like one of ours.
        carried = visible_text(str(pack["hash"]))
        click.echo(
            f"{visible_text(str(pack.get('proof_id')))}: "
            + ("intact" if intact else f"ALTERED\n  carries  {carried}\n  computed {pack_hash(pack)}")
        )
    sys.exit(0 if intact else 1)


@group.command()
@click.argument("file", type=click.File("rb"))
@policies_option
@tenant_option
@json_option
@one_line_errors
def compare(file: BinaryIO, policies: Path | None, tenant: str | None, as_json: bool) -> None:
    """Compare the proof pack in FILE, an agent's or the public one, with the decision recorded under its name.

    A public pack must equal the recorded pack with its identifiers replaced by public ids, field by field. The recorded
    pack must have its recorded hash, and its commitment must be to the operation that was decided. Exit 0 when all of
    that holds, 1 when not. Needs the public board's SENTINEL_PUBLIC_ID_SECRETS where it is set there: with another
    value no public pack matches.
    """
    pack = _pack_in(file)
    inspector = PolicyInspector(policies or policies_dir())
    with open_pool() as pool:
        comparison = compare_with_record(
            pool, tenant_of(pool, tenant), load_public_id_generators(pool, public_id_secrets()), lambda digest: inspector.actions_of(pool, digest), pack
        )  # fmt: skip
    if as_json:
        print_json({**dataclasses.asdict(comparison), "holds": comparison.holds})
    else:
        which = "the recorded pack" if comparison.is_recorded else "the public form of the recorded pack"
        click.echo(
            f"{pack['proof_id']}: "
            + (which if comparison.is_recorded or comparison.is_published else "NOT what is recorded")
        )
        click.echo(f"record: {'intact' if comparison.record_intact else 'ALTERED'}, {comparison.recorded_hash}")
    sys.exit(0 if comparison.holds else 1)


def _pack_in(file: BinaryIO) -> dict[str, Any]:
    found = read_object(file.read())
    pack = found.get("proof_pack", found)
    if not isinstance(pack, dict) or "hash" not in pack:
        raise InvalidInput.of("hash", "is missing: this is not a proof pack")
    _refuse_fractions(pack, "proof_pack")
    return pack


def _refuse_fractions(value: Any, path: str) -> None:
    """Raise `InvalidInput` for a fraction: no pack contains one, and the canonical form that is hashed has none."""
    if isinstance(value, Decimal):
        raise InvalidInput.of(path, "must not be a fraction: no proof pack contains one")
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in members:
        _refuse_fractions(member, f"{path}.{name}")

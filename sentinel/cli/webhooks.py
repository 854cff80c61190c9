"""`sentinel webhooks`: the receivers of events, the secrets that sign them, and what could not be delivered.

`operators.py` says when adding or enabling waits for a second administrator. Secrets are printed only where the
sender's setting is readable (`SENTINEL_EXPORT_SECRETS`, or the file beside the embedded database).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import click

from sentinel.authority.actor import local_administrator
from sentinel.authority.webhooks import (
    EVENT_TYPES,
    OVERLAP_SECONDS,
    add_webhook,
    disable_webhook,
    discard_dead_letters,
    enable_webhook,
    find_endpoint,
    list_dead_letters,
    list_endpoints,
    resend,
    rotate_secret,
)
from sentinel.cli.common import (
    as_uuid,
    json_option,
    open_pool,
    reason_option,
    show,
    show_rows,
    show_secret,
    tenant_of,
    tenant_option,
)
from sentinel.core.errors import Conflict, InvalidInput
from sentinel.export.build import webhook_receiver
from sentinel.export.cloud_events import test_message
from sentinel.export.deliveries import Claim
from sentinel.export.settings import SECRET_FILE, ExportSettings, load_export_settings
from sentinel.export.signing_secrets import SigningSecrets
from sentinel.platform.command_line import OneLineErrors
from sentinel.platform.outbound.failures import FAULTS, failure_text
from sentinel.platform.settings import data_dir_secret
from sentinel.store.address import data_dir, require_embedded_database
from sentinel.store.embedded import SUPERUSER
from sentinel.store.ids import new_id

COLUMNS = ("endpoint_id", "kind", "url", "event_types", "behind", "attempts", "last_error", "delivered_at", "dead_letters",
           "disabled_reason")  # fmt: skip
LETTERS = ("endpoint_id", "event_id", "event", "operation_id", "position", "attempts", "last_error", "died_at")
MOST = 10_000
"""The most dead letters that one list has."""


@click.group(cls=OneLineErrors)
def group() -> None:
    """Webhooks: add, list, test, rotate, disable; dead letters."""


def _settings() -> ExportSettings:
    """Load the sender's settings; with an embedded database, create the sender's secret if there is none yet."""
    if not (os.environ.get("SENTINEL_EXPORT_DATABASE_URL") or os.environ.get("SENTINEL_DATABASE_URL")):
        require_embedded_database(data_dir(), "SENTINEL_EXPORT_DATABASE_URL", "SENTINEL_DATABASE_URL")
        data_dir_secret(data_dir(), SECRET_FILE)
    return load_export_settings()


def _why(code: str) -> str:
    """Return in words why a receiver did not accept an event, with the setting that forbids calling it."""
    return failure_text(code) + (" (SENTINEL_EXPORT_ADDRESSES)" if code.startswith("not_allowed") else "")


def _table_rows(rows: Sequence[Any], as_json: bool) -> Sequence[Any]:
    """Return the rows unchanged for scripts, and with `last_error` in words for people."""
    return (
        rows
        if as_json
        else [row if row.last_error is None else replace(row, last_error=_why(row.last_error)) for row in rows]
    )


def _secret(settings: ExportSettings, endpoint_id: str, number: int) -> str:
    return SigningSecrets(settings.secrets).shown(as_uuid(endpoint_id, "WEBHOOK_ID"), number)


@group.command()
@click.argument("url", metavar="URL")
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(EVENT_TYPES),
    help="Send only this type; may be given several times. Without it, every type.",
)
@tenant_option
@json_option
def add(url: str, types: tuple[str, ...], tenant: str | None, as_json: bool) -> None:
    """Send a tenant's events from now on to URL; prints the id and the signing secret for the receiver."""
    settings, made = _settings(), new_id()
    if (why := settings.client.fault(url)) is not None:
        raise InvalidInput.of("URL", f"{FAULTS[why]} (SENTINEL_EXPORT_ADDRESSES is {settings.addresses})")
    with open_pool(login=SUPERUSER) as pool:
        add_webhook(pool, local_administrator(tenant_of(pool, tenant)), url, types, made)
    secret = _secret(settings, str(made), 1)
    show_secret(
        {"endpoint_id": made, "secret": secret}, as_json, secret,
        f"Webhook {made}. `sentinel export` sends to it; the receiver checks signatures with the secret above.",
    )  # fmt: skip


@group.command("list")
@tenant_option
@json_option
def list_(tenant: str | None, as_json: bool) -> None:
    """List receivers, and how many events each is behind."""
    with open_pool(login=SUPERUSER) as pool:
        rows = list_endpoints(pool, tenant_of(pool, tenant))
    show_rows(_table_rows(rows, as_json), COLUMNS, as_json=as_json, empty="There is no receiver of events.")


@group.command()
@click.argument("webhook_id", metavar="WEBHOOK_ID")
@tenant_option
@json_option
def secret(webhook_id: str, tenant: str | None, as_json: bool) -> None:
    """Print the signing secret of a webhook, as the receiver needs it."""
    settings = _settings()
    with open_pool(login=SUPERUSER) as pool:
        found = find_endpoint(pool, tenant_of(pool, tenant), as_uuid(webhook_id, "WEBHOOK_ID"))
    text = _secret(settings, webhook_id, found.secret_number)
    show({"endpoint_id": webhook_id, "secret": text}, as_json, text)


@group.command()
@click.argument("webhook_id", metavar="WEBHOOK_ID")
@tenant_option
@json_option
def test(webhook_id: str, tenant: str | None, as_json: bool) -> None:
    """Send a test message to a webhook now, and print whether the receiver accepted it."""
    settings = _settings()
    with open_pool(login=SUPERUSER) as pool:
        tenant_id = tenant_of(pool, tenant)
        found = find_endpoint(pool, tenant_id, as_uuid(webhook_id, "WEBHOOK_ID"))
    if found.url is None:
        raise InvalidInput.of("WEBHOOK_ID", "is not a webhook: its address is a setting of the sender")
    now = datetime.now(UTC)
    old_too = found.old_secret_until is not None and found.old_secret_until > now
    claim = Claim(
        tenant_id, found.endpoint_id, found.kind, found.url, found.event_types, found.secret_number, old_too, 0, 0, 0, 0
    )
    message = test_message(tenant_id, found.endpoint_id, new_id(), now)
    error = webhook_receiver(settings).post(claim, message)
    if error is not None:
        raise Conflict(f"the receiver did not accept the message: {_why(error)}")
    show({"endpoint_id": webhook_id, "taken": True}, as_json, "The receiver accepted the message.")


@group.command()
@click.argument("webhook_id", metavar="WEBHOOK_ID")
@click.option("--overlap-hours", type=click.IntRange(0, 24 * 90), default=OVERLAP_SECONDS // 3600, show_default=True,
              help="Hours for which messages are also signed with the old secret.")  # fmt: skip
@tenant_option
@json_option
def rotate(webhook_id: str, overlap_hours: int, tenant: str | None, as_json: bool) -> None:
    """Create a new signing secret and print it; the old one signs too until the overlap is over."""
    settings = _settings()
    with open_pool(login=SUPERUSER) as pool:
        actor = local_administrator(tenant_of(pool, tenant))
        number = rotate_secret(
            pool, actor, as_uuid(webhook_id, "WEBHOOK_ID"), overlap_seconds=overlap_hours * 3600
        )  # fmt: skip
    text = _secret(settings, webhook_id, number)
    show({"endpoint_id": webhook_id, "secret": text}, as_json, text)


@group.command()
@click.argument("webhook_id", metavar="WEBHOOK_ID")
@tenant_option
@json_option
def disable(webhook_id: str, tenant: str | None, as_json: bool) -> None:
    """Stop sending events to a webhook; its position in the feed is kept."""
    with open_pool(login=SUPERUSER) as pool:
        disable_webhook(pool, local_administrator(tenant_of(pool, tenant)), as_uuid(webhook_id, "WEBHOOK_ID"))
    show({"endpoint_id": webhook_id, "disabled": True}, as_json, "Disabled.")


@group.command()
@click.argument("webhook_id", metavar="WEBHOOK_ID")
@tenant_option
@json_option
def enable(webhook_id: str, tenant: str | None, as_json: bool) -> None:
    """Enable a disabled webhook; it continues where it stopped."""
    with open_pool(login=SUPERUSER) as pool:
        enable_webhook(pool, local_administrator(tenant_of(pool, tenant)), as_uuid(webhook_id, "WEBHOOK_ID"))
    show({"endpoint_id": webhook_id, "disabled": False}, as_json, "Enabled.")


@group.command("dead-letters")
@click.option("--limit", type=click.IntRange(1, MOST), default=200, show_default=True)
@tenant_option
@json_option
def dead_letters(limit: int, tenant: str | None, as_json: bool) -> None:
    """List the events that receivers did not accept in time, oldest first."""
    with open_pool(login=SUPERUSER) as pool:
        rows = list_dead_letters(pool, tenant_of(pool, tenant), limit=limit + 1)
    show_rows(
        _table_rows(rows, as_json), LETTERS, as_json=as_json, empty="There is no dead letter.", limit=limit, most=MOST
    )


@group.command("resend")
@click.argument("webhook_id", metavar="WEBHOOK_ID")
@click.argument("event_id", metavar="[EVENT_ID]", required=False)
@tenant_option
@json_option
def resend_(webhook_id: str, event_id: str | None, tenant: str | None, as_json: bool) -> None:
    """Have one dead letter of a receiver, or all of them, sent once more."""
    with open_pool(login=SUPERUSER) as pool:
        about = as_uuid(event_id, "EVENT_ID") if event_id else None
        asked = resend(
            pool, local_administrator(tenant_of(pool, tenant)), as_uuid(webhook_id, "WEBHOOK_ID"), about
        )  # fmt: skip
    show(
        {"endpoint_id": webhook_id, "asked": asked},
        as_json,
        f"Dead letters that `sentinel export` will send again: {asked}.",
    )


@group.command("discard")
@click.argument("webhook_id", metavar="WEBHOOK_ID")
@click.argument("event_id", metavar="[EVENT_ID]", required=False)
@reason_option("Reason; recorded as evidence.", most=500)
@tenant_option
@json_option
def discard(webhook_id: str, event_id: str | None, reason: str, tenant: str | None, as_json: bool) -> None:
    """Discard one dead letter of a receiver, or all of them, e.g. where the receiver is gone; they are not delivered any more."""
    with open_pool(login=SUPERUSER) as pool:
        about = as_uuid(event_id, "EVENT_ID") if event_id else None
        actor = local_administrator(tenant_of(pool, tenant))
        count = discard_dead_letters(pool, actor, as_uuid(webhook_id, "WEBHOOK_ID"), about, reason=reason)
    show({"endpoint_id": webhook_id, "discarded": count}, as_json, f"Dead letters discarded: {count}.")

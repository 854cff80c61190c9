"""The worker everybody writes first: pay, then remember that it was paid. Doubles whenever it dies between the two."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg


class Died(Exception):
    """The process ended here."""


def without_safety_net(connection: psycopg.Connection[Any]) -> None:
    """Take away what the database itself refuses."""
    connection.execute(
        "alter table refunds.executions drop constraint executions_entry_once, drop constraint executions_operation_once,"
        " drop constraint if exists executions_refund_once"
    )
    connection.execute("drop index if exists refunds.executions_refund_once")
    for table in ("executions", "ledger_entries"):
        connection.execute(f"alter table refunds.{table} disable trigger user".encode())


def pay_then_remember(connection: psycopg.Connection[Any], tenant_id: uuid.UUID, *, dies: bool) -> None:
    """One run over everything NEW, as a naive worker does it. `dies` after the first payment."""
    for entry, refund, minor, currency in connection.execute(
        "select ledger_entry_id, refund_id, amount_minor, currency from refunds.ledger_entries where tenant_id = %s and status = 'NEW'",
        [tenant_id],
    ).fetchall():
        connection.execute(
            "insert into refunds.executions (tenant_id, execution_id, ledger_entry_id, refund_id, amount_minor, currency, operation_id, start_id, start_event_id, claim_epoch)"
            " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, 1)",
            [tenant_id, uuid.uuid4(), entry, refund, minor, currency, uuid.uuid4(), uuid.uuid4(), uuid.uuid4()],
        )
        if dies:
            raise Died
        connection.execute(
            "update refunds.ledger_entries set status = 'EXECUTED' where tenant_id = %s and ledger_entry_id = %s",
            [tenant_id, entry],
        )

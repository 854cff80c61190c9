"""Writes the fixtures of every case into the scratch database: orders, flags, proof images, the row itself.

They are entered through the ordinary calls, except earlier rows that have ended already: those are inserted by SQL with
the check of state transitions disabled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from sentinel.core.money import Money, money_out
from sentinel.platform.private_files import write_private
from worker.gates.cases import Case, CaseFile
from worker.refunds.ledger import Ledger
from worker.refunds.rows import NewRow, OrderFacts

_PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"

WRITE_FORMER = """
insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, channel, scenario, account_ref,
  order_ref, budget_part, reason, status, requested_at, created_at, next_attempt_at)
values (%(tenant_id)s, %(entry)s, %(refund_id)s, 1, %(currency)s, %(channel)s, %(scenario)s, %(account)s, %(order_ref)s,
  case when %(status)s = 'EXECUTED' then 'executed' end, %(reason)s,
  %(status)s, clock_timestamp() - interval '2 days', clock_timestamp() - interval '2 days', 'infinity')
"""


@dataclass(frozen=True, slots=True)
class CaseNames:
    """The identifiers of a case's objects, unique to the case so that cases do not affect each other."""

    entry: str
    refund: str
    account: str
    order: str


def names_of(case: Case) -> CaseNames:
    """The identifiers of a case's objects, derived from its id."""
    return CaseNames(f"g/{case.id}", f"rf/{case.id}", f"acct/{case.id}", f"ord/{case.id}")


def enter_cases(ledger: Ledger, admin: psycopg.Connection[Any], file: CaseFile) -> None:
    """Enter the fixtures of all cases. Their requests are dated now, by the database's clock, in whole seconds."""
    moment = ledger.now().replace(microsecond=0)
    ledger.add_orders([_order(case, moment) for case in file.cases if case.given.order == "known"])
    ledger.flag_orders([flag for case in file.cases for flag in _order_flags(case)])
    ledger.blacklist([
        {"channel": case.given.channel, "account_ref": names_of(case).account}
        for case in file.cases if "blacklisted" in case.given.flags
    ])  # fmt: skip
    _write_former(admin, ledger, file)
    ledger.add_rows([_row(case, file, moment) for case in file.cases])
    for case in file.cases:
        for sha256, content, _ in case_images(case):
            ledger.add_image(names_of(case).entry, sha256, "image/png", content)


def write_labels(cases: Iterable[Case], path: Path) -> None:
    """Write the file of labels for the recogniser `labels:FILE`."""
    write_private(
        path, json.dumps({sha256: label for case in cases for sha256, _, label in case_images(case)}).encode()
    )


def case_images(case: Case) -> list[tuple[str, bytes, Mapping[str, Any]]]:
    """(digest, bytes, label) of each picture of a case."""
    found: list[tuple[str, bytes, Mapping[str, Any]]] = []
    for number, label in enumerate(case.given.images):
        content = _PNG + f"{case.id}#{number}".encode()
        amount = {"amount": money_out(Money(*label["amount"]))} if "amount" in label else {}
        found.append((hashlib.sha256(content).hexdigest(), content, {**label, **amount}))
    return found


def _order(case: Case, moment: datetime) -> OrderFacts:
    given, names = case.given, names_of(case)
    delivered = moment - timedelta(seconds=given.delivered_seconds)
    owner = names.account + "/other" if "other_account" in given.flags else names.account
    return OrderFacts(
        names.order, ordered_at=delivered, paid_minor=given.paid_minor, currency=given.order_currency, account_ref=owner,
        channel=given.channel, delivered_at=delivered, shipping_fee_minor=given.shipping_fee_minor,
        item_paid_minor=given.item_paid_minor, price_now_minor=given.price_now_minor, note=given.note,
    )  # fmt: skip


def _row(case: Case, file: CaseFile, moment: datetime) -> NewRow:
    given, names = case.given, names_of(case)
    risk: dict[str, Any] = {"suspicious_reason": True} if given.suspicious else {}
    if given.attempts is not None:
        risk["customer_attempts_24h"] = given.attempts
    return NewRow(
        names.entry, names.refund, given.amount_minor, given.currency, channel=given.channel,
        scenario=given.scenario or file.scenario, mode=given.mode, account_ref=names.account,
        order_ref=None if given.order == "missing" else names.order, requested_at=moment, reason=given.reason, risk=risk,
        language="en", contact="customer@example.com",
    )  # fmt: skip


def _order_flags(case: Case) -> list[dict[str, Any]]:
    order, channel = names_of(case).order, case.given.channel
    wanted = sorted(case.given.flags & {"open_complaint", "delayed_shipment"})
    return [{"channel": channel, "order_ref": order, "flag": flag, "closed": False} for flag in wanted]


def _write_former(admin: psycopg.Connection[Any], ledger: Ledger, file: CaseFile) -> None:
    rows = [row for case in file.cases for row in _former(case, file)]
    if not rows:
        return
    with admin.transaction(), admin.cursor() as cursor:
        cursor.execute("alter table refunds.ledger_entries disable trigger check_transition")
        cursor.executemany(WRITE_FORMER, [{"tenant_id": ledger.tenant_id, **row} for row in rows])
        cursor.execute("alter table refunds.ledger_entries enable trigger check_transition")


def _former(case: Case, file: CaseFile) -> Sequence[dict[str, Any]]:
    """The earlier rows of a case: of the same order, of the same refund id, or of other accounts with the same words."""
    given, names = case.given, names_of(case)
    like: dict[str, Any] = {
        "currency": given.currency, "channel": given.channel, "scenario": given.scenario or file.scenario, "account": None,
        "order_ref": None, "reason": None, "status": "EXECUTED",
    }  # fmt: skip
    found = []
    if "refunded_before" in given.flags:
        entry = f"before/{case.id}"
        found.append({**like, "entry": entry, "refund_id": f"rf/{entry}", "order_ref": names.order})
    if "duplicate" in given.flags:
        found.append({**like, "entry": f"same/{case.id}", "refund_id": names.refund})
    for number in range(given.echoes):
        entry = f"echo/{case.id}/{number}"
        found.append({**like, "entry": entry, "refund_id": f"rf/{entry}", "account": f"acct/{entry}", "reason": given.reason,
                      "status": "DENIED"})  # fmt: skip
    return found

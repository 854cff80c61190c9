"""The ledger page's filter: parsing and checking its fields in the query string."""

from __future__ import annotations

from datetime import UTC, datetime

from flask import request

from ops_console.board.figures import OUTCOMES
from ops_console.read_models.ledger_search import LedgerFilter
from ops_console.read_models.refund_views import STATUSES
from sentinel.core.errors import InvalidInput
from sentinel.core.money import DIGITS, parse_money

FIELDS = ("q", "status", "channel", "scenario", "currency", "decision", "reason", "least", "most", "since", "until")
_MOST_CHARACTERS = 128


def given() -> dict[str, str]:
    """Return the filter's fields in the query string, without blank ones."""
    return {name: text for name in FIELDS if (text := request.args.get(name, "").strip())}


def read_filter(asked: dict[str, str]) -> LedgerFilter:
    """Parse the fields into the read model's filter, without the search by operation. Raises `InvalidInput` with every bad field."""
    faults: dict[str, str] = {}
    for name, text in asked.items():
        if len(text) > _MOST_CHARACTERS or not text.isascii() or not text.isprintable():
            faults[name] = f"must be printable ASCII of at most {_MOST_CHARACTERS} characters"
    _one_of(asked, "status", STATUSES, faults)
    _one_of(asked, "decision", OUTCOMES, faults)
    _one_of(asked, "currency", tuple(DIGITS), faults)
    least, most = (_amount(asked, name, faults) for name in ("least", "most"))
    since, until = (_moment(asked, name, faults) for name in ("since", "until"))
    if faults:
        raise InvalidInput("some of the filters are not valid", errors=faults)
    return LedgerFilter(
        status=asked.get("status"), channel=asked.get("channel"), scenario=asked.get("scenario"), currency=asked.get("currency"),
        decision=asked.get("decision"), reason_code=asked.get("reason"), least_minor=least, most_minor=most, since=since,
        until=until, prefix=asked.get("q"),
    )  # fmt: skip


def _one_of(asked: dict[str, str], name: str, allowed: tuple[str, ...], faults: dict[str, str]) -> None:
    if name in asked and asked[name] not in allowed:
        faults.setdefault(name, "is not a known value")


def _amount(asked: dict[str, str], name: str, faults: dict[str, str]) -> int | None:
    """Parse an amount into minor units. Their number of digits depends on the currency, so the currency must be given too."""
    if name not in asked or name in faults:
        return None
    if asked.get("currency") not in DIGITS:
        faults[name] = "needs a currency"
        return None
    try:
        return parse_money(asked[name], asked["currency"]).amount_minor
    except InvalidInput as error:
        faults[name] = next(iter(error.errors.values()))
        return None


def _moment(asked: dict[str, str], name: str, faults: dict[str, str]) -> datetime | None:
    if name not in asked or name in faults:
        return None
    try:
        found = datetime.fromisoformat(asked[name])
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        faults[name] = "must be a date and time, such as 2026-11-30T13:05 (UTC)"
        return None

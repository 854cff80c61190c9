"""Reads facts from JSON lines: orders, flags against them, blacklisted accounts and proof images.

One object per line, named by its `kind`; every refusal names the field and the rule it breaks. Money is in major units,
as everywhere on input.
"""

from __future__ import annotations

import base64
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sentinel.core.errors import InvalidInput
from sentinel.core.moments import moment_of
from sentinel.core.money import CURRENCY_RULE, DIGITS, parse_money
from sentinel.core.operation import check_identifier
from sentinel.policy.errors import nearest
from worker.images import MAX_IMAGE_BYTES, ImageRefused, ProofImage, proof_image
from worker.refunds.intake import Refusal, known_name, read_objects
from worker.refunds.ledger import Ledger
from worker.refunds.rows import OrderFacts
from worker.refunds.workflow.routes import CHANNELS

_MAX_NAME, _MAX_SOURCE, _MAX_NOTE = 128, 64, 2000
_ZERO = re.compile(r"0(\.0{1,6})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Flag:
    """An open complaint or a delayed shipment; `closed` ends it."""

    channel: str
    order_ref: str
    flag: str
    closed: bool
    source: str = ""


@dataclass(frozen=True, slots=True)
class Blacklisted:
    """An account whose refunds all need a person."""

    channel: str
    account_ref: str


Fact = OrderFacts | Flag | Blacklisted | ProofImage


def read_facts(text: str, folder: Path) -> Iterator[Fact | Refusal]:
    """Every fact of a file, good or refused, in order. Image files are looked up from `folder`."""
    for line, found in read_objects(text):
        if isinstance(found, Refusal):
            yield found
            continue
        try:
            yield _fact(found, folder)
        except InvalidInput as error:
            (name, rule), *_ = error.errors.items()
            yield Refusal(line, name, rule)


def store_facts(ledger: Ledger, facts: Sequence[Fact]) -> int:
    """Store facts in the ledger; returns how many there were. Raises `LedgerUnavailable`."""
    ledger.add_orders([fact for fact in facts if isinstance(fact, OrderFacts)])
    ledger.flag_orders([asdict(fact) for fact in facts if isinstance(fact, Flag)])
    ledger.blacklist([asdict(fact) for fact in facts if isinstance(fact, Blacklisted)])
    for image in (fact for fact in facts if isinstance(fact, ProofImage)):
        ledger.add_image(image.ledger_entry_id, image.sha256, image.media_type, image.content)
    return len(facts)


def _fact(found: Any, folder: Path) -> Fact:
    if not isinstance(found, dict):
        raise InvalidInput.of("fact", "must be an object")
    given = {name: value for name, value in found.items() if value is not None}
    kind = given.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        hint = nearest(kind, _KINDS) if isinstance(kind, str) else None
        raise InvalidInput.of("kind", f"must be one of {', '.join(_KINDS)}" + (f"; {hint}" if hint else ""))
    return _KINDS[kind](_Fields(given), folder)


class _Fields:
    """The fields of one object: each is read once, and `done` refuses those left over."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def name(self, field: str, default: str | None = None) -> str:
        if field not in self._fields and default is not None:
            return default
        if field not in self._fields:
            raise InvalidInput.of(field, "is required")
        return check_identifier(self._fields.pop(field), field, _MAX_NAME)

    def channel(self, default: str | None = None) -> str:
        return known_name(self.name("channel", default), "channel", CHANNELS)

    def source(self) -> str:
        """The shop that the order belongs to; "" where none is named."""
        return check_identifier(self._fields.pop("source"), "source", _MAX_SOURCE) if "source" in self._fields else ""

    def maybe_name(self, field: str) -> str | None:
        return self.name(field) if field in self._fields else None

    def moment(self, field: str) -> datetime | None:
        found = self._fields.pop(field, None)
        return None if found is None else moment_of(found, field)

    def minor(self, field: str, currency: str) -> int | None:
        """A decimal in major units → minor units; "0" is allowed here."""
        found = self._fields.pop(field, None)
        if found is None:
            return None
        if not isinstance(found, bool) and _ZERO.fullmatch(str(found)):
            return 0
        return parse_money(found, currency, field=field).amount_minor

    def currency(self) -> str:
        """The currency of every amount of the fact; an amount is text, not an object with a currency of its own."""
        if "currency" not in self._fields:
            raise InvalidInput.of("currency", "is required")
        found = self.text("currency", 3) or ""
        if found not in DIGITS:
            raise InvalidInput.of("currency", CURRENCY_RULE)
        return found

    def text(self, field: str, most: int) -> str | None:
        found = self._fields.pop(field, None)
        if found is not None and (not isinstance(found, str) or len(found) > most or "\x00" in found):
            raise InvalidInput.of(field, f"must be text of at most {most} characters")
        return found

    def flag(self, field: str) -> bool:
        found = self._fields.pop(field, False)
        if not isinstance(found, bool):
            raise InvalidInput.of(field, "must be true or false")
        return found

    def done(self) -> None:
        for extra in sorted(self._fields):
            raise InvalidInput.of(extra[:60], "is not a field of this kind of fact")


def _order(given: _Fields, folder: Path) -> OrderFacts:
    currency = given.currency()
    ordered_at, paid = given.moment("ordered_at"), given.minor("paid", currency)
    if ordered_at is None or paid is None:
        raise InvalidInput.of("ordered_at" if ordered_at is None else "paid", "is required")
    found = OrderFacts(
        given.name("order_ref"), ordered_at, paid, currency, given.maybe_name("account_ref"),
        given.channel("retail"), given.moment("delivered_at"), given.minor("shipping_fee", currency),
        given.minor("item_paid", currency), given.minor("price_now", currency), given.text("note", _MAX_NOTE),
        given.source(), given.maybe_name("payment_ref"),
    )  # fmt: skip
    given.done()
    return found


def _flagged(flag: str) -> Callable[[_Fields, Path], Flag]:
    def read(given: _Fields, folder: Path) -> Flag:
        found = Flag(given.channel(), given.name("order_ref"), flag, given.flag("closed"), given.source())
        given.done()
        return found

    return read


def _blacklisted(given: _Fields, folder: Path) -> Blacklisted:
    found = Blacklisted(given.channel(), given.name("account_ref"))
    given.done()
    return found


def _image(given: _Fields, folder: Path) -> ProofImage:
    entry = given.name("ledger_entry_id")
    file, encoded = given.text("file", 1000), given.text("content", 8 * 1024 * 1024)
    given.done()
    if (file is None) == (encoded is None):
        raise InvalidInput.of("file", "give either file, or content in base64")
    try:
        content = _read_file(folder, file) if file is not None else base64.b64decode(encoded or "", validate=True)
        return proof_image(entry, content)
    except ValueError:
        raise InvalidInput.of("content", "is not base64") from None
    except ImageRefused as error:
        raise InvalidInput.of("file" if file else "content", str(error)) from None


def _read_file(folder: Path, file: str) -> bytes:
    """Read a file in the folder or below it, up to one byte more than an image may have. Raises `InvalidInput`."""
    try:
        path = (folder / file).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise InvalidInput.of("file", "must be in the folder of the facts file")
        if not stat.S_ISREG(path.stat().st_mode):  # before it is opened: opening a pipe would block
            raise InvalidInput.of("file", "is not a regular file")
        with path.open("rb") as opened:
            return opened.read(MAX_IMAGE_BYTES + 1)
    except OSError as error:
        raise InvalidInput.of("file", f"cannot be read: {error.strerror}") from None
    except RuntimeError:  # a link to itself
        raise InvalidInput.of("file", "cannot be read") from None


_KINDS: Mapping[str, Callable[[_Fields, Path], Fact]] = {
    "order": _order,
    "complaint": _flagged("open_complaint"),
    "delay": _flagged("delayed_shipment"),
    "blacklist": _blacklisted,
    "image": _image,
}

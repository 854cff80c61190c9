"""The recogniser interface. What is read in a picture is untrusted: data, bounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, Protocol, get_args

from sentinel.core.errors import InvalidInput
from sentinel.core.money import Money, parse_money
from sentinel.platform.outbound.client import NoResponse
from worker.images.proof import ProofImage

MAX_TEXT = 4000
MAX_TRACKING_NUMBER = 64

Kind = Literal["fee_receipt", "defect_photo", "other"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Recognised:
    """What a picture shows. `text` is at most 4,000 characters of whatever is written in it."""

    kind: Kind
    amount: Money | None = None
    tracking_number: str | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Unrecognised:
    """Looked at, and nothing made of it."""


class Recogniser(Protocol):
    """One way of reading pictures. Never raises."""

    @property
    def name(self) -> str:
        """For trails and settings."""

    def is_ready(self) -> bool:
        """Whether it can be asked at all; cheap."""

    def recognise(self, image: ProofImage) -> Recognised | Unrecognised | NoResponse:
        """Read one picture."""


class NoRecogniser:
    """None is configured: never ready."""

    name = "none"

    def is_ready(self) -> bool:
        """No."""
        return False

    def recognise(self, image: ProofImage) -> Unrecognised:
        """Nothing is recognised."""
        return Unrecognised()


def read_label(found: Any) -> Recognised | Unrecognised:
    """{kind, amount?, tracking_number?, text?} → what was recognised. Raises `InvalidInput` naming the field.

    kind "none" says that nothing was recognised; amount is {value, currency} in major units, without binary floats.
    """
    if not isinstance(found, Mapping) or not found.keys() <= {"kind", "amount", "tracking_number", "text"}:
        raise InvalidInput.of("label", "must be an object of kind, amount, tracking_number and text")
    if found.get("kind") == "none":
        return Unrecognised()
    if found.get("kind") not in KINDS:
        raise InvalidInput.of("kind", f"must be one of {', '.join(KINDS)}, none")
    text = found.get("text") or ""
    if not isinstance(text, str):
        raise InvalidInput.of("text", "must be text")
    return Recognised(
        found["kind"], _amount(found.get("amount")), _tracking(found.get("tracking_number")), _storable(text)
    )


def plain_decimal(text: str) -> Decimal:
    """For a JSON reader: a number with a fraction, exact. Raises `ValueError` for an exponent or too many digits.

    A few characters with an exponent could otherwise become gigabytes of digits.
    """
    if len(text) > 32 or not text.replace(".", "").isdigit():
        raise ValueError("not a plain decimal number")
    return Decimal(text)


def _amount(given: Any) -> Money | None:
    if given is None:
        return None
    if not isinstance(given, Mapping) or given.keys() != {"value", "currency"}:
        raise InvalidInput.of("amount", "must be {value, currency}")
    return parse_money(given["value"], given["currency"])


def _storable(text: str) -> str:
    """Bounded, and without what a database cannot keep: NUL and halves of characters."""
    return "".join("\ufffd" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in text[:MAX_TEXT])


def _tracking(given: Any) -> str | None:
    if given is None:
        return None
    # It is compared and shown: letters, digits and dashes only, so that nothing else can be smuggled in it.
    if not isinstance(given, str) or not 0 < len(given) <= MAX_TRACKING_NUMBER or not given.isascii():
        raise InvalidInput.of("tracking_number", f"must be 1 to {MAX_TRACKING_NUMBER} ASCII characters")
    if not given.replace("-", "").replace(" ", "").isalnum():
        raise InvalidInput.of("tracking_number", "must be letters, digits, dashes and spaces")
    return given

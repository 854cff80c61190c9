"""Proof images: checks each image before anything reads it, and recognises it with the recogniser of a setting.

The setting is "none", "labels:FILE" or "http:URL" (also the URL alone). What is read from a picture is untrusted data
of bounded length.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from sentinel.core.errors import InvalidInput
from sentinel.core.money import Money, parse_money
from sentinel.platform.outbound.client import JsonClient, NoResponse, Response, is_http_url
from sentinel.platform.outbound.failures import FailureKind

MAX_IMAGE_BYTES = 5 << 20


class ImageRefused(Exception):
    """The image is not accepted; `code` is image_empty, image_too_large or image_unknown_type."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class ProofImage:
    """One image that was submitted for a ledger row; `sha256` is the digest of `content` in lower-case hex."""

    ledger_entry_id: str
    sha256: str
    media_type: str
    content: bytes = field(repr=False)


def proof_image(ledger_entry_id: str, content: bytes) -> ProofImage:
    """Check an image and make it the proof image of a row. Raises `ImageRefused`."""
    return ProofImage(ledger_entry_id, hashlib.sha256(content).hexdigest(), check_image(content), content)


def check_image(content: bytes) -> str:
    """The media type that the bytes themselves show: image/png, image/jpeg or image/webp. Raises `ImageRefused`.

    The media type that the sender declares does not count.
    """
    if not content:
        raise ImageRefused("image_empty")
    if len(content) > MAX_IMAGE_BYTES:
        raise ImageRefused("image_too_large")
    if content[:16] == b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR":
        return "image/png"
    if content[:3] == b"\xff\xd8\xff":
        return "image/jpeg"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    raise ImageRefused("image_unknown_type")


# The recogniser interface, and its labels.

MAX_TEXT = 4000
MAX_TRACKING_NUMBER = 64

Kind = Literal["fee_receipt", "defect_photo", "other"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Recognised:
    """What a picture shows. `text` is what is written in it, at most 4,000 characters."""

    kind: Kind
    amount: Money | None = None
    tracking_number: str | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Unrecognised:
    """The recogniser looked at the picture and recognised nothing."""


class Recogniser(Protocol):
    """One way of reading pictures. Never raises."""

    @property
    def name(self) -> str:
        """The name in trails and settings."""

    def is_ready(self) -> bool:
        """Whether it can be asked now; cheap to call."""

    def recognise(self, image: ProofImage) -> Recognised | Unrecognised | NoResponse:
        """Read one picture."""


class NoRecogniser:
    """The recogniser where none is configured; it is never ready."""

    name = "none"

    def is_ready(self) -> bool:
        """Return False."""
        return False

    def recognise(self, image: ProofImage) -> Unrecognised:
        """Recognise nothing."""
        return Unrecognised()


def read_label(found: Any) -> Recognised | Unrecognised:
    """Parse {kind, amount?, tracking_number?, text?} to a result. Raises `InvalidInput` naming the field.

    kind "none" means that nothing was recognised; amount is {value, currency} in major units, without binary floats.
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
    """Parse a JSON number with a fraction exactly. Raises `ValueError` for an exponent or more than 32 characters.

    With an exponent, a few characters could become gigabytes of digits.
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
    """The text cut to `MAX_TEXT`, with NUL and lone surrogates, which a database cannot store, replaced."""
    return "".join("\ufffd" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in text[:MAX_TEXT])


def _tracking(given: Any) -> str | None:
    if given is None:
        return None
    # It is compared and shown to people, so only letters, digits, dashes and spaces are accepted.
    if not isinstance(given, str) or not 0 < len(given) <= MAX_TRACKING_NUMBER or not given.isascii():
        raise InvalidInput.of("tracking_number", f"must be 1 to {MAX_TRACKING_NUMBER} ASCII characters")
    if not given.replace("-", "").replace(" ", "").isalnum():
        raise InvalidInput.of("tracking_number", "must be letters, digits, dashes and spaces")
    return given


# Fixed answers from a JSON file of image digest → label, for the demo, launch gates and tests.

_DIGEST = re.compile("[0-9a-f]{64}")


class InvalidLabels(Exception):
    """The file of labels cannot be used; the message is one line that names the entry and the rule."""


class LabelFileRecogniser:
    """Answers by the picture's digest; a picture that is not in the file is unrecognised."""

    name = "labels"

    def __init__(self, file: Path) -> None:
        """Read `file`: {"<sha256 in hex>": {kind, amount?, tracking_number?, text?}}. Raises `InvalidLabels`."""
        self._labels = _read_labels(file)

    def is_ready(self) -> bool:
        """Return True."""
        return True

    def recognise(self, image: ProofImage) -> Recognised | Unrecognised:
        """Return the label of exactly these bytes."""
        return self._labels.get(image.sha256, Unrecognised())


def _read_labels(file: Path) -> Mapping[str, Recognised | Unrecognised]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"), parse_float=plain_decimal)
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidLabels(f"{file}: cannot be read as JSON ({type(error).__name__})") from None
    if not isinstance(found, dict):
        raise InvalidLabels(f"{file}: must be an object of digest and label")
    labels = {}
    for digest, label in found.items():
        if not _DIGEST.fullmatch(digest):
            raise InvalidLabels(f"{file}: {digest[:80]!r} is not a SHA-256 digest in lower-case hex")
        try:
            labels[digest] = read_label(label)
        except InvalidInput as error:
            raise InvalidLabels(f"{file}: {digest}: {error}") from None
    return labels


# A recogniser behind HTTP: POST {url}/recognise.
#
# The request is {sha256, media_type, content_base64}. Only an answer in time of 200, application/json and {kind,
# amount, tracking_number, text} (`read_label`) counts; everything else is no answer.


class HttpRecogniser:
    """Asks the service at `url`. Thread-safe; ready while GET {url}/ready answers 200."""

    name = "http"

    def __init__(self, url: str, api_key: str = "", timeout_seconds: float = 5.0) -> None:
        self._client = JsonClient(url, api_key, timeout_seconds)

    def is_ready(self) -> bool:
        """Whether the recogniser answered its health check, asked at most every five seconds."""
        return self._client.is_ready()

    def recognise(self, image: ProofImage) -> Recognised | Unrecognised | NoResponse:
        """Ask the service about the picture: one attempt within one deadline. Never raises."""
        body = {
            "sha256": image.sha256, "media_type": image.media_type,
            "content_base64": base64.b64encode(image.content).decode("ascii"),
        }  # fmt: skip
        found = self._client.ask("POST", "/recognise", body)
        return found if isinstance(found, NoResponse) else _read(found)


def _read(answer: Response) -> Recognised | Unrecognised | NoResponse:
    if answer.status != 200 or answer.content_type != "application/json":
        return NoResponse(FailureKind.BROKEN)
    try:
        return read_label(json.loads(answer.body.decode("utf-8"), parse_float=plain_decimal))
    except (InvalidInput, ValueError, TypeError, RecursionError):
        return NoResponse(FailureKind.BROKEN)


# The setting.


class InvalidRecogniser(Exception):
    """The setting names no known recogniser."""


def parse_recogniser(setting: str) -> tuple[str, str]:
    """Parse the setting to ("none", ""), ("labels", file) or ("http", URL). Raises `InvalidRecogniser`; opens no file."""
    kind, _, place = setting.partition(":")
    if setting in ("", "none"):
        return "none", ""
    if kind == "labels" and place:
        return "labels", place
    for url in (setting, place if kind == "http" else ""):
        if is_http_url(url):
            return "http", url
    raise InvalidRecogniser("must be none, labels:FILE or http:URL")


def recogniser_from(setting: str, *, api_key: str = "", timeout_seconds: float = 5.0) -> Recogniser:
    """Make the recogniser of a setting. Raises `InvalidRecogniser`, and `InvalidLabels` for a file that cannot be used."""
    kind, place = parse_recogniser(setting)
    if kind == "labels":
        return LabelFileRecogniser(Path(place))
    if kind == "http":
        return HttpRecogniser(place, api_key, timeout_seconds)
    return NoRecogniser()

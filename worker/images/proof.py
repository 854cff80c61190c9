"""A proof image: its bytes, their SHA-256 digest and media type, checked before anything reads it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

MAX_IMAGE_BYTES = 5 << 20


class ImageRefused(Exception):
    """Not an image that is taken; `code` is image_empty, image_too_large or image_unknown_type."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class ProofImage:
    """One image that was handed in for a ledger row; `sha256` is lower-case hex of `content`."""

    ledger_entry_id: str
    sha256: str
    media_type: str
    content: bytes = field(repr=False)


def proof_image(ledger_entry_id: str, content: bytes) -> ProofImage:
    """The checked image of a row. Raises `ImageRefused`."""
    return ProofImage(ledger_entry_id, hashlib.sha256(content).hexdigest(), check_image(content), content)


def check_image(content: bytes) -> str:
    """The media type that the bytes themselves show: image/png, image/jpeg or image/webp. Raises `ImageRefused`.

    What the sender calls it does not count.
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

"""A recogniser with fixed answers: a JSON file of image digest → label. For the demo, launch gates and tests."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from sentinel.core.errors import InvalidInput
from worker.images.proof import ProofImage
from worker.images.recogniser import Recognised, Unrecognised, plain_decimal, read_label

_DIGEST = re.compile("[0-9a-f]{64}")


class InvalidLabels(Exception):
    """The file of labels cannot be used; one line that names the entry and the rule."""


class LabelFileRecogniser:
    """Answers by the picture's digest; a picture that is not in the file is unrecognised."""

    name = "labels"

    def __init__(self, file: Path) -> None:
        """Read `file`: {"<sha256 in hex>": {kind, amount?, tracking_number?, text?}}. Raises `InvalidLabels`."""
        self._labels = _read(file)

    def is_ready(self) -> bool:
        """Always."""
        return True

    def recognise(self, image: ProofImage) -> Recognised | Unrecognised:
        """The label of exactly these bytes."""
        return self._labels.get(image.sha256, Unrecognised())


def _read(file: Path) -> Mapping[str, Recognised | Unrecognised]:
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

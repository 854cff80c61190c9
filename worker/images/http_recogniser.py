"""A recogniser behind HTTP: POST {url}/recognise; only an exact answer in time counts.

Request {sha256, media_type, content_base64}; answer 200, application/json, {kind, amount, tracking_number, text}
(`recogniser.read_label`). Everything else is no answer.
"""

from __future__ import annotations

import base64
import json

from sentinel.core.errors import InvalidInput
from sentinel.platform.outbound.client import FailureKind, JsonClient, NoResponse, Response
from worker.images.proof import ProofImage
from worker.images.recogniser import Recognised, Unrecognised, plain_decimal, read_label


class HttpRecogniser:
    """Asks the service at `url`. Thread-safe; ready while GET {url}/ready answers 200."""

    name = "http"

    def __init__(self, url: str, api_key: str = "", timeout_seconds: float = 5.0) -> None:
        self._client = JsonClient(url, api_key, timeout_seconds)

    def is_ready(self) -> bool:
        """As it said itself at most five seconds ago."""
        return self._client.is_ready()

    def recognise(self, image: ProofImage) -> Recognised | Unrecognised | NoResponse:
        """What the service makes of the picture; one try, one deadline. Never raises."""
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

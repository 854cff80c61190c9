"""A recogniser behind HTTP: POST {url}/recognise, and only an exact answer in time counts.

Request {sha256, media_type, content_base64}; answer 200, application/json, {kind, amount, tracking_number, text}
(`recogniser.read_label`). Everything else is no answer.
"""

from __future__ import annotations

import base64
import json

from sentinel.core.errors import InvalidInput
from worker.images.proof import ProofImage
from worker.images.recogniser import Recognised, Unrecognised, exact_number, read_label
from worker.outside import Answered, NoAnswer, Readiness, Trouble, post_json

MAX_ANSWER_BYTES = 64 << 10


class HttpRecogniser:
    """Asks the service at `url`. Thread-safe; ready while GET {url}/ready answers 200."""

    name = "http"

    def __init__(self, url: str, api_key: str = "", timeout_seconds: float = 5.0) -> None:
        base = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._url = f"{base}/recognise"
        self._timeout_seconds = timeout_seconds
        self._readiness = Readiness(f"{base}/ready", self._headers)

    def is_ready(self) -> bool:
        """As it said itself at most five seconds ago."""
        return self._readiness()

    def recognise(self, image: ProofImage) -> Recognised | Unrecognised | NoAnswer:
        """What the service makes of the picture; one try, one deadline. Never raises."""
        body = {
            "sha256": image.sha256, "media_type": image.media_type,
            "content_base64": base64.b64encode(image.content).decode("ascii"),
        }  # fmt: skip
        found = post_json(
            self._url, body, headers=self._headers, deadline_seconds=self._timeout_seconds, max_bytes=MAX_ANSWER_BYTES
        )
        return found if isinstance(found, NoAnswer) else _read(found)


def _read(answer: Answered) -> Recognised | Unrecognised | NoAnswer:
    if answer.status != 200 or answer.content_type != "application/json":
        return NoAnswer(Trouble.BROKEN)
    try:
        return read_label(json.loads(answer.body.decode("utf-8"), parse_float=exact_number))
    except (InvalidInput, ValueError, TypeError, RecursionError):
        return NoAnswer(Trouble.BROKEN)

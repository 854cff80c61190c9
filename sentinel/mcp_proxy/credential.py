"""Keeps the server's credential from its own answers: a server that repeats what it was sent hands it to no agent."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from mcp import MCPError
from pydantic import BaseModel

WITHHELD = "[withheld by sentinel mcp-proxy]"
_LEAST_LENGTH = 8
"""Shorter values are words that answers may have."""

Answer = TypeVar("Answer", bound=BaseModel)


class CredentialFilter:
    """Withholds these values, as headers or variables have them, from what a server answers. Those encoded otherwise are not recognised."""

    def __init__(self, values: Iterable[str]) -> None:
        secrets = {secret for value in values for secret in _secrets_of(value) if len(secret) >= _LEAST_LENGTH}
        # What holds another one comes first, so that nothing of it is left.
        self._texts = sorted(secrets, key=len, reverse=True)

    def of_answer(self, answer: Answer) -> Answer:
        """The answer, without them."""
        if not self._texts:
            return answer
        text = answer.model_dump_json(by_alias=True)
        clean = text
        for one in self._texts:
            clean = clean.replace(json.dumps(one, ensure_ascii=False)[1:-1], WITHHELD)
        return answer if clean == text else type(answer).model_validate_json(clean)

    def of_error(self, error: MCPError) -> MCPError:
        """The error with its code and message, without them."""
        return MCPError(code=error.code, message=self.of_text(error.message))

    def of_text(self, text: str) -> str:
        """The text, without them."""
        for one in self._texts:
            text = text.replace(one, WITHHELD)
        return text


def _secrets_of(value: str) -> Iterator[str]:
    """The value, what stands in it behind a scheme (RFC 9110, 11.4: "token …"), and the name with password that Basic encodes."""
    scheme, _, secret = value.partition(" ")
    if scheme.lower() != "bearer" or not secret:
        yield value
    yield secret.strip()
    if scheme.lower() == "basic":
        with suppress(ValueError):
            pair = base64.b64decode(secret.strip()).decode()
            yield from (pair, pair.partition(":")[2])

"""Removes the server's credential from its answers, so that a server that repeats what it was sent reveals it to no agent."""

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
"""Shorter values are not withheld: they may be ordinary words of an answer."""

Answer = TypeVar("Answer", bound=BaseModel)


class CredentialFilter:
    """Withholds these values of headers or variables from a server's answers. Values encoded in another way are not recognised."""

    def __init__(self, values: Iterable[str]) -> None:
        secrets = {secret for value in values for secret in _secrets_of(value) if len(secret) >= _LEAST_LENGTH}
        # A secret that contains another one is replaced first, so that no part of it is left.
        self._texts = sorted(secrets, key=len, reverse=True)

    def of_answer(self, answer: Answer) -> Answer:
        """Return the answer without the secrets."""
        if not self._texts:
            return answer
        text = answer.model_dump_json(by_alias=True)
        clean = text
        for one in self._texts:
            clean = clean.replace(json.dumps(one, ensure_ascii=False)[1:-1], WITHHELD)
        return answer if clean == text else type(answer).model_validate_json(clean)

    def of_error(self, error: MCPError) -> MCPError:
        """Return the error with its code and its message without the secrets; its data is dropped."""
        return MCPError(code=error.code, message=self.of_text(error.message))

    def of_text(self, text: str) -> str:
        """Return the text without the secrets."""
        for one in self._texts:
            text = text.replace(one, WITHHELD)
        return text


def _secrets_of(value: str) -> Iterator[str]:
    """Yield the value, the part of it after a scheme (RFC 9110, 11.4: "token …"), and for Basic the name with password and the password."""
    scheme, _, secret = value.partition(" ")
    if scheme.lower() != "bearer" or not secret:
        yield value
    yield secret.strip()
    if scheme.lower() == "basic":
        with suppress(ValueError):
            pair = base64.b64decode(secret.strip()).decode()
            yield from (pair, pair.partition(":")[2])

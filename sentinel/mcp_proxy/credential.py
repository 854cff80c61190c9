"""Keeps the server's credential from its own answers: a server that repeats what it was sent hands it to no agent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TypeVar

from mcp import MCPError
from pydantic import BaseModel

WITHHELD = "[withheld by sentinel mcp-proxy]"
_LEAST_LENGTH = 8
"""Shorter values are words that answers may have."""

Answer = TypeVar("Answer", bound=BaseModel)


class CredentialFilter:
    """Withholds these values, as headers or variables have them, from what a server answers. Encoded ones are not recognised."""

    def __init__(self, values: Iterable[str]) -> None:
        bare = {value.rpartition(" ")[2] if value.startswith("Bearer ") else value for value in values}
        self._texts = [one for one in bare if len(one) >= _LEAST_LENGTH]

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
        message = error.message
        for one in self._texts:
            message = message.replace(one, WITHHELD)
        return MCPError(code=error.code, message=message)

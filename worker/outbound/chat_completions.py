"""Makes a request to a chat model behind an OpenAI-compatible endpoint (POST to `PATH`), and reads the one finished
message of the answer as strict JSON.

The answer is untrusted. Any other form than the requested one raises `BadCompletion` with a code of ours; the error
contains nothing of the answer itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.core.strict_json import strict_json
from sentinel.platform.outbound.client import Response

PATH = "/chat/completions"


class BadCompletion(Exception):
    """The answer has not the requested form; `detail` is a code of ours."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


def chat_request(
    model: str, *, system: str, user: str, schema_name: str, schema: Mapping[str, Any], max_tokens: int
) -> dict[str, Any]:
    """The body of a request for one message that is a JSON object of `schema`."""
    return {
        "model": model,
        "temperature": 0,
        "n": 1,
        "stream": False,
        "max_tokens": max_tokens,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": schema_name, "strict": True, "schema": schema},
        },
    }


def content_of(answer: Response) -> str:
    """The text of the one finished message of an answer with status 200. Raises `BadCompletion`."""
    if answer.content_type != "application/json":
        raise BadCompletion("content_type")
    return _content(strict_load(answer.body))


def strict_load(text: str | bytes) -> Any:
    """Parse strict JSON. Raises `BadCompletion`."""
    try:
        return strict_json(text)
    except (ValueError, RecursionError):
        raise BadCompletion("json") from None


def _content(body: Any) -> str:
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise BadCompletion("choices")
    choice, message = choices[0], choices[0].get("message")
    if choice.get("finish_reason") != "stop":
        raise BadCompletion("not_finished")
    if not isinstance(message, dict) or message.get("role", "assistant") != "assistant":
        raise BadCompletion("message")
    if message.get("refusal") is not None:
        raise BadCompletion("refusal")
    if message.get("tool_calls") or message.get("function_call"):
        raise BadCompletion("tool_call")
    content = message.get("content")
    if not isinstance(content, str):
        raise BadCompletion("content")
    return content

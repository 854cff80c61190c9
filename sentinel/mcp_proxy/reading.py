"""What an agent may read from the upstream: its resources and prompts, where the operator passes them on, and
completions of their arguments.

They are read with the credential that the agent does not have, and `tools.yaml` does not cover them, so each is offered
only where `--pass-on` names it. A request is passed on without answers to questions and without the client's `_meta`,
except for the log level that the client wants.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import mcp_types as types
from mcp import MCPError

from sentinel.mcp_proxy.log_messages import LogLevels, LogMessages
from sentinel.mcp_proxy.upstream import Upstream, UpstreamUnavailable, reason_of

PASSED_ON: dict[str, dict[str, tuple[Any, Any, tuple[str, ...]]]] = {
    "resources": {
        "on_list_resources": (types.ListResourcesRequest, types.ListResourcesResult, ("cursor",)),
        "on_list_resource_templates": (
            types.ListResourceTemplatesRequest, types.ListResourceTemplatesResult, ("cursor",),
        ),
        "on_read_resource": (types.ReadResourceRequest, types.ReadResourceResult, ("uri",)),
    },
    "prompts": {
        "on_list_prompts": (types.ListPromptsRequest, types.ListPromptsResult, ("cursor",)),
        "on_get_prompt": (types.GetPromptRequest, types.GetPromptResult, ("name", "arguments")),
    },
}  # fmt: skip
"""Kind that may be passed on → handler name of the SDK's server → types of the request and its result, params passed on."""


def reading_handlers(
    upstream: Upstream, passed_on: Collection[str], levels: LogLevels, *, seconds: float
) -> dict[str, Callable[..., Any]]:
    """Return the handlers of what is passed on, by the parameter names of the SDK's server."""

    def handler(request: Any, result: Any, names: tuple[str, ...]) -> Callable[..., Any]:
        async def read(ctx: Any, params: Any) -> Any:
            given = {name: getattr(params, name) for name in names if params is not None}
            kept = {name: value for name, value in given.items() if value is not None}
            made = request.model_validate({"method": request.model_fields["method"].default, "params": kept or None})
            async with levels.messages_of(ctx) as messages:
                return await _read(upstream, made, result, seconds, messages)

        return read

    found = {name: handler(*row) for kind in passed_on for name, row in PASSED_ON.get(kind, {}).items()}
    if found:
        complete = handler(types.CompleteRequest, types.CompleteResult, ("ref", "argument", "context"))
        found["on_completion"] = _of_what_is_passed_on(complete, passed_on)
    return found


def _of_what_is_passed_on(complete: Callable[..., Any], passed_on: Collection[str]) -> Callable[..., Any]:
    async def completed(ctx: Any, params: types.CompleteRequestParams) -> Any:
        kind = "prompts" if isinstance(params.ref, types.PromptReference) else "resources"
        if kind not in passed_on:
            raise MCPError(code=types.INVALID_PARAMS, message=f"the proxy does not pass on {kind}")
        return await complete(ctx, params)

    return completed


async def _read(upstream: Upstream, request: Any, result: Any, seconds: float, messages: LogMessages | None) -> Any:
    # An error that the server answered is raised after its connection is closed: raised inside, it would look like a
    # broken connection.
    answered: MCPError | None = None
    try:
        async with upstream.connect(messages) as connection:
            try:
                return await connection.ask(request, result, seconds=seconds)
            except MCPError as error:
                answered = error
    except Exception as error:
        name = str(error) if isinstance(error, UpstreamUnavailable) else reason_of(error)
        message = f"the server behind the proxy did not answer ({name})"
        raise MCPError(code=types.INTERNAL_ERROR, message=message) from error
    assert answered is not None
    raise answered

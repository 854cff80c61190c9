"""OpenAPI 3.1 from the running routes: each view declares once what it takes and answers, and a test finds any that does not."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from marshmallow import Schema

from sentinel import __version__
from sentinel.core.errors import NotFound, Unauthenticated

if TYPE_CHECKING:  # the worker's runs take documented routes from here and serve none
    from flask import Blueprint, Flask, Response

View = TypeVar("View", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Documentation:
    """The description of a route in the document. `responses`: status → (description, schema or None for problems);
    `headers`: name → description, of an answer 200."""

    summary: str
    description: str = ""
    request: Schema | dict[str, Any] | None = None
    responses: Mapping[int, tuple[str, type[Schema] | Schema | dict[str, Any] | None]] = field(default_factory=dict)
    problems: Sequence[int] = ()
    parameters: Sequence[dict[str, Any]] = ()
    security: Sequence[dict[str, list[str]]] = ()
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


def documented(summary: str, **rest: Any) -> Callable[[View], View]:
    """Attach `Documentation` to a view."""

    def attach(view: View) -> View:
        view.documentation = Documentation(summary, **rest)  # type: ignore[attr-defined]
        return view

    return attach


def answered_on_the_loop(
    documentation: Documentation, identify: Callable[[dict[str, Any]], object] | None = None
) -> Callable[..., Response]:
    """A view that only documents a route: the event loop answers it, Flask only other methods (405, and HEAD of a GET).

    HEAD of a route that needs credentials calls `identify` with the request's environment, which raises the refusals;
    without `identify` every such HEAD is `Unauthenticated`.
    """

    def view(**_: str) -> Response:
        from flask import Response, request

        if request.method != "HEAD":
            raise NotFound("there is nothing here")
        if documentation.security:
            if identify is None:
                raise Unauthenticated
            identify(request.environ)
        return Response(content_type=documentation.content_type)

    view.documentation = documentation  # type: ignore[attr-defined]
    return view


def document_health(routes: Flask | Blueprint, whether: str) -> None:
    """Add /healthz and /readyz, which every edge answers, to the documented routes; `whether` is the summary of /readyz."""
    alive = {"type": "object", "required": ["status"], "properties": {"status": {"const": "ok"}}}
    checks = {"type": "object", "additionalProperties": {"type": "boolean"}}
    status = {"enum": ["ready", "not ready"]}
    found = {"type": "object", "required": ["status", "checks"], "properties": {"status": status, "checks": checks}}
    healthz = Documentation("Whether the process answers", responses={200: ("The process answers.", alive)})
    readyz = Documentation(
        whether, responses={200: ("Ready.", found), 503: ("Not ready; `checks` says which check fails.", found)}
    )
    for name, documentation in (("healthz", healthz), ("readyz", readyz)):
        routes.add_url_rule(f"/{name}", name, answered_on_the_loop(documentation))


PROBLEM: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string", "description": "The request id."},
        "errors": {"type": "object", "additionalProperties": {"type": "string"}},
        "decision": {
            "enum": ["DENY", False],
            "description": "With `engine-unavailable`, for a client that reads only the decision; false in answers of AuthZEN.",
        },
        "reason_code": {"const": "engine_unavailable"},
        "retryable": {"const": True},
        "error": {
            "type": "object",
            "description": "Of the Agent Approval Protocol: the refusal in its terms.",
            "required": ["type", "code", "message", "request_id"],
            "properties": {name: {"type": "string"} for name in ("type", "code", "message", "request_id")},
        },
        "act_until": {
            "type": "string",
            "format": "date-time",
            "description": "With `still-acting`: until when the caller may act.",
        },
        "recorded_params": {
            "type": "object",
            "description": "With `idempotency-key-reused`, for the requester that asked first: the params that it asked about.",
        },
        "tightened": {
            "type": "object",
            "description": "Next to `recorded_params`, only if the policy is stricter about the params of this request, or counts them elsewhere: its"
            " decision on them, and the reason that is new.",
            "required": ["decision", "reason_code", "reason"],
            "properties": {
                "decision": {"enum": ["ALLOW", "APPROVAL_REQUIRED", "DENY"]},
                "reason_code": {"type": "string"},
                "reason": {"type": "string"},
            },
        },
    },
}

_RETRY_AFTER: dict[str, Any] = {
    "Retry-After": {
        "description": "In how many seconds the request may be sent again. With 409 only for `still-deciding`.",
        "schema": {"type": "integer"},
    }
}
_WITH_RETRY_AFTER = (409, 429, 503)

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def _resolver(schema: Any) -> str:
    name = schema.__name__ if isinstance(schema, type) else type(schema).__name__
    return name.removesuffix("Schema")


def openapi_document(
    app: Flask, *, title: str, description: str, security_schemes: Mapping[str, dict[str, Any]], left_out: tuple[str, ...],
) -> dict[str, Any]:  # fmt: skip
    """The OpenAPI 3.1 document of every documented route of `app` whose path begins with none of `left_out`."""
    from apispec import APISpec
    from apispec.ext.marshmallow import MarshmallowPlugin

    plugin = MarshmallowPlugin(schema_name_resolver=_resolver)
    spec = APISpec(
        title=title, version=__version__, openapi_version="3.1.0", plugins=[plugin], info={"description": description}
    )
    spec.components.schema("Problem", PROBLEM)
    for name, scheme in security_schemes.items():
        spec.components.security_scheme(name, scheme)
    for rule in app.url_map.iter_rules():
        told = getattr(app.view_functions[rule.endpoint], "documentation", None)
        if told is not None and not str(rule).startswith(left_out):
            operations = {
                method.lower(): _operation(rule, method, told) for method in _METHODS if method in (rule.methods or ())
            }
            spec.path(path=re.sub(r"<(?:[^:<>]+:)?([^<>]+)>", r"{\1}", str(rule)), operations=operations)
    document: dict[str, Any] = spec.to_dict()
    return document


class OpenApiText:
    """The document of one app as JSON, made at the first request and then cached. Thread-safe.

    Anybody may request it, and making it blocks the process for milliseconds; a process's routes do not change.
    """

    def __init__(
        self, *, title: str, description: str, security_schemes: Mapping[str, dict[str, Any]],
        left_out: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self._title, self._description, self._security_schemes = title, description, security_schemes
        self._left_out = left_out
        self._lock = threading.Lock()
        self._text = b""

    def of(self, app: Flask) -> bytes:
        """The document of this app, which is the same at each call."""
        with self._lock:
            if not self._text:
                document = openapi_document(
                    app, title=self._title, description=self._description, security_schemes=self._security_schemes,
                    left_out=self._left_out,
                )  # fmt: skip
                self._text = orjson.dumps(document)
            return self._text


def _operation(rule: Any, method: str, told: Documentation) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": told.summary,
        "operationId": re.sub(r"\W+", "_", f"{method.lower()}_{rule}").strip("_"),
        "parameters": [*told.parameters, *_path_parameters(rule, told)],
        "responses": {},
        "security": list(told.security),
    }
    if told.description:
        operation["description"] = told.description
    if told.request is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": told.request}}}
    for status, (text, schema) in told.responses.items():
        content = {told.content_type: {"schema": schema}} if schema is not None else {}
        headers = {name: _header(means) for name, means in told.headers.items()} if status == 200 else {}
        operation["responses"][str(status)] = {
            "description": text,
            **({"headers": headers} if headers else {}),
            **({"content": content} if content else {}),
        }
    for status in told.problems:
        operation["responses"][str(status)] = {
            "description": "A problem document.",
            **({"headers": _RETRY_AFTER} if status in _WITH_RETRY_AFTER else {}),
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    return operation


def _header(means: str) -> dict[str, Any]:
    return {"description": means, "schema": {"type": "string"}}


def _path_parameters(rule: Any, told: Documentation) -> list[dict[str, Any]]:
    named = {parameter["name"] for parameter in told.parameters}
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in sorted(rule.arguments - named)
    ]

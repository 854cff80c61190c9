"""A collector of OpenTelemetry spans on loopback: takes them by OTLP over HTTP and says what came."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.scripted_server import ScriptedServer

Span = dict[str, Any]


class Collector(ScriptedServer):
    """Takes spans as a collector does."""

    def __init__(self) -> None:
        super().__init__()
        self.script = lambda asked: asked.answer(200, b"", "application/x-protobuf")

    def spans(self) -> list[Span]:
        """What came so far, of each its name, service, ids and attributes."""
        found = []
        for asked in self.asked:
            assert (asked.method, asked.path) == ("POST", "/v1/traces")
            for resource in ExportTraceServiceRequest.FromString(asked.body).resource_spans:
                service = {one.key: one.value.string_value for one in resource.resource.attributes}["service.name"]
                for span in (one for scope in resource.scope_spans for one in scope.spans):
                    told = {one.key: one.value.string_value or one.value.int_value for one in span.attributes}
                    found.append({
                        "name": span.name, "service": service, "trace": span.trace_id, "id": span.span_id,
                        "parent": span.parent_span_id, "told": told, "events": len(span.events),
                    })  # fmt: skip
        return found

    def ways(self, name: str) -> list[tuple[str, ...]]:
        """Of each span of the name: the names from the root of its trace to it."""
        spans = self.spans()
        by_id = {(one["trace"], one["id"]): one for one in spans}

        def way(span: Span) -> tuple[str, ...]:
            parent = by_id.get((span["trace"], span["parent"]))
            assert parent is not None or not span["parent"], f"the parent of {span['name']} did not come"
            return (*(way(parent) if parent else ()), span["name"])

        return sorted(way(one) for one in spans if one["name"] == name)

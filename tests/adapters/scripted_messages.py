"""A model service on loopback that speaks the Messages API (streamed) and says what it is told: first some tool calls, then "ready"."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_USAGE = {"input_tokens": 1, "output_tokens": 1}


@contextmanager
def scripted_messages(calls: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, str]]]:
    """(address, what the tools answered, by call id): `calls` are made in the next turn, each {"name", "input", "id"}.

    The list is empty once they are made, and may be filled again.
    """
    results: dict[str, str] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(calls, results))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", results
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def _handler(calls: list[dict[str, Any]], results: dict[str, str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Nothing."""

        def do_GET(self) -> None:
            self._answer(b"{}", "application/json")

        do_HEAD = do_GET

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            if not self.path.startswith("/v1/messages") or "tools" not in body:
                self._answer(b'{"input_tokens": 1}', "application/json")
                return
            found = _results(body["messages"][-1])
            results.update(found)
            content = [{"type": "text", "text": "ready"}] if found or not calls else _uses(calls)
            self._answer(_events(content, body["model"]), "text/event-stream")

        def _answer(self, data: bytes, content_type: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    return Handler


def _uses(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    made = [{"type": "tool_use", **call} for call in calls]
    calls.clear()
    return made


def _results(message: dict[str, Any]) -> dict[str, str]:
    content = message["content"] if isinstance(message["content"], list) else []
    found = [part for part in content if part.get("type") == "tool_result"]
    return {part["tool_use_id"]: json.dumps(part["content"]) for part in found}


def _events(content: list[dict[str, Any]], model: str) -> bytes:
    base = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": [], "usage": _USAGE}
    events: list[tuple[str, dict[str, Any]]] = [
        ("message_start", {"message": {**base, "stop_reason": None, "stop_sequence": None}})
    ]
    for index, block in enumerate(content):
        if block["type"] == "text":
            start, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            start, delta = (
                {**block, "input": {}},
                {"type": "input_json_delta", "partial_json": json.dumps(block["input"])},
            )
        events.append(("content_block_start", {"index": index, "content_block": start}))
        events.append(("content_block_delta", {"index": index, "delta": delta}))
        events.append(("content_block_stop", {"index": index}))
    stop = "end_turn" if content[0]["type"] == "text" else "tool_use"
    events.append(
        ("message_delta", {"delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": 1}})
    )
    events.append(("message_stop", {}))
    return "".join(f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n" for name, data in events).encode()

"""Simulated outside systems for a run: the settlement systems of `OUTSIDE_SYSTEMS`, and a model critic that approves.

They serve the real HTTP interfaces, so the workflow runs unchanged. Their effects are kept in memory, to be compared
with the execution rows.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sentinel.platform.outside_systems import OUTSIDE_SYSTEMS

_CRITIC = "model_critic"
NAMES = (*(system.name for system in OUTSIDE_SYSTEMS), _CRITIC)
_MONEY = frozenset(system.name for system in OUTSIDE_SYSTEMS if system.moves_money)
_YES = json.dumps({"approved": True, "reason_code": "ok", "reason": "simulated"})


@dataclass(slots=True)
class SimulatedSystems:
    """The effects that were made and not undone, as (system, reference) → the request's body."""

    url: str = ""
    effects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def money(self) -> list[tuple[str, dict[str, Any]]]:
        """(system, body) of every effect that moved money."""
        return [(system, body) for (system, _), body in self.effects.items() if system in _MONEY]

    def settings(self) -> dict[str, str]:
        """The fields of the worker's settings that point to these systems."""
        urls = {system.url_field: f"{self.url}/{system.name}" for system in OUTSIDE_SYSTEMS}
        return urls | {"critic_url": f"{self.url}/{_CRITIC}", "critic_model": "simulated"}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # The default backlog of 5 drops connections that the worker's threads open at once; they are retried a second
    # later, when the readiness checks have timed out.
    request_queue_size = 128


@contextmanager
def serve_simulated_systems() -> Iterator[SimulatedSystems]:
    """Serve the simulated systems on a loopback port inside the context."""
    systems = SimulatedSystems()
    server = _Server(("127.0.0.1", 0), _handler(systems))
    systems.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield systems
    finally:
        server.shutdown()
        server.server_close()
        thread.join(2)


def _handler(systems: SimulatedSystems) -> type[BaseHTTPRequestHandler]:
    class SystemsHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            system, rest = self._place()
            if rest == "ready":
                self._say(200, {"status": "ready"})
            elif (system, rest.removeprefix("effects/")) in systems.effects:
                self._say(200, {"status": "done", "reference": rest.removeprefix("effects/")})
            else:
                self._say(404, {"title": "not there"}, "application/problem+json")

        def do_POST(self) -> None:
            system, rest = self._place()
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if rest == "chat/completions":
                message = {"role": "assistant", "content": _YES}
                self._say(200, {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]})
                return
            systems.effects.setdefault((system, body["reference"]), body)
            self._say(201, {"status": "done", "reference": body["reference"]})

        def do_DELETE(self) -> None:
            system, rest = self._place()
            systems.effects.pop((system, rest.removeprefix("effects/")), None)
            self._say(200, {"status": "undone"})

        def _place(self) -> tuple[str, str]:
            system, _, rest = self.path.strip("/").partition("/")
            return system, rest

        def _say(self, status: int, body: object, kind: str = "application/json") -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: the report says what happened."""

    return SystemsHandler

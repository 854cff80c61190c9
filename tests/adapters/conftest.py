"""An authority for the adapters of one test process, and a process of each framework's environment to drive it."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from sentinel.cli.scratch import listening
from sentinel.store import database
from sentinel.store.embedded import RunningServer
from tests.conftest import at
from tests.support.adapter_environments import (
    INSTALL_SECONDS,
    NotInstalled,
    environment_variables,
    interpreter_of,
)
from tests.support.fixtures import Fixtures, make_fixtures
from tests.support.harness import PATIENT_SECONDS, decide
from tests.support.kept_databases import drop_database
from tests.support.roomy import roomy_policies
from tests.support.warm_process import WarmProcess

if TYPE_CHECKING:
    from tests.adapters.proxy_processes import ProxyProcesses

ANSWER_SECONDS = 150
"""Longer than a driver's client waits, twice."""
ADAPTERS = {
    "plain": None,
    "langchain": "langchain",
    "openai_agents": "openai_agents",
    "pydantic_ai": "pydantic_ai",
    "pydantic_ai_dbos": "pydantic_ai",
    "claude_agent_sdk": "claude_agent_sdk",
    "aap_langgraph": "langchain",
    "aap_openai_agents": "openai_agents",
    "aap_pydantic_ai": "pydantic_ai",
    "mcp_proxy": "mcp_proxy",
}
"""Adapter → the framework whose environment it needs; None: this one. `aap_`: not ours, a client of the Agent Approval Protocol."""
DRIVERS = {"trusting": "tests.mutants.trusting_adapter"}
"""Drivers that are not `drive_<adapter>`."""


@dataclass
class Place:
    """A served authority."""

    fixtures: Fixtures
    url: str
    database: str
    folder: Path
    """For what outlives a test."""

    def operations(self, prefix: str = "") -> list[tuple[str, str, str | None]]:
        """(key, status, reported outcome) of each operation whose key contains `prefix`, oldest first."""
        rows = self.fixtures.admin.execute(
            "select o.idempotency_key, s.status, s.outcome from sentinel.operations o"
            " join sentinel.operation_states s using (operation_id, tenant_id)"
            " where position(%s in o.idempotency_key) > 0 order by o.created_at", [prefix],
        ).fetchall()  # fmt: skip
        return [(str(key), str(status), outcome) for key, status, outcome in rows]

    def vote(self, approval_id: str, verdict: str = "approve") -> None:
        """A person decides."""
        decide(self.fixtures, approval_id, verdict)


@dataclass
class Agent:
    """One adapter in one form, with a payment of its own; its process may be killed, and another goes on."""

    name: str
    form: str
    place: Place
    folder: Path
    payment: str = field(default_factory=lambda: f"pi_{uuid.uuid4().hex[:12]}")
    agent_id: str = field(default_factory=lambda: f"agent-{uuid.uuid4().hex[:8]}")
    process: subprocess.Popen[str] | None = None
    number: int = 0
    instance: str | None = None

    def refund(self, amount: int = 5000, **over: Any) -> dict[str, Any]:
        """A call of `create_refund` for this payment under a new call id."""
        return self.call("create_refund", **{"payment_intent": self.payment, "amount": amount, **over})

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """A call under a new call id."""
        self.number += 1
        return {"tool": tool, "args": arguments, "id": f"call_{self.number}"}

    def begin(self, *calls: dict[str, Any], **over: Any) -> dict[str, Any]:
        """A new run that makes these calls in one turn."""
        self.number += 1
        self.thread = over.pop("thread", f"thread-{uuid.uuid4().hex[:8]}")
        self.resumed = False
        return self._ask(do="begin", calls=list(calls), **over)

    def resume(self, value: Any = "approve", **over: Any) -> dict[str, Any]:
        """Go on with the run, resumed with this value."""
        self.resumed = True
        return self._ask(do="resume", value=value, **over)

    def go_on(self, call: dict[str, Any], **over: Any) -> dict[str, Any]:
        """Resume; where an earlier resume came too early and its framework lost the call, the same call in a new run."""
        if self.form in ("naive", "defer") and self.resumed:
            return self.begin(call, **over)
        return self.resume(**over)

    def kill(self) -> None:
        """The process is gone at once; the next command starts another."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def _ask(self, **command: Any) -> dict[str, Any]:
        account = f"acct-{self.payment}"
        base = {
            "url": self.place.url, "key": self.place.fixtures.key, "agent": self.agent_id, "thread": self.thread, "form": self.form,
            "state": str(self.folder), "kept": str(self.place.folder), "database": self.place.database,
            "facts": {"account": account, "clean": True, "attempts": 1},
        }  # fmt: skip
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({**base, **command}) + "\n")
        process.stdin.flush()
        deadline = time.monotonic() + ANSWER_SECONDS
        ready, _, _ = select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))
        line = process.stdout.readline() if ready else ""
        if not line:
            self.kill()
            raise AssertionError(f"no answer: {(self.folder / 'driver.log').read_text()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        if answer.get("died"):
            process.wait(60)
            self.kill()
        return answer

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None:
            framework = ADAPTERS.get(self.name)
            driver = DRIVERS.get(self.name, f"tests.adapters.drive_{self.name}")
            python = sys.executable if framework is None else str(interpreter_of(framework))
            with (self.folder / "driver.log").open("a") as log:
                self.process = WarmProcess(
                    [python, "-m", driver], imported=(driver,), env=environment_variables(), text=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=1,
                )  # fmt: skip
        return self.process


@pytest.fixture(scope="session")
def place(
    pg_server: RunningServer, migrated_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """A real authority over a loopback socket, for all adapters of this test process."""
    names = [f"adapters_{uuid.uuid4().hex[:12]}" for _ in range(2)]
    with psycopg.connect(pg_server.admin_url, autocommit=True) as connection:
        connection.execute(f"create database {names[0]} template {migrated_template} strategy file_copy".encode())
        connection.execute(f"create database {names[1]}".encode())
    policies = roomy_policies(tmp_path_factory.mktemp("policies"))
    # Clients of other protocols have the authority map their tools, by the same table.
    for name in ("tools.yaml", "agent_invoke.yaml"):
        shutil.copy(Path(__file__).with_name(name), policies)
    with pytest.MonkeyPatch.context() as patched:  # a statement is waited for as long as an answer
        for limit in ("STATEMENT_TIMEOUT_MS", "LOCK_TIMEOUT_MS"):
            patched.setattr(database, limit, int(1000 * PATIENT_SECONDS))
        fixtures = make_fixtures(at(pg_server.admin_url, names[0]), policies=policies)
    with listening(fixtures.app) as url:
        yield Place(fixtures, url, at(pg_server.admin_url, names[1]), tmp_path_factory.mktemp("kept"))
    fixtures.close()
    with psycopg.connect(pg_server.admin_url, autocommit=True) as connection:
        for name in names:
            drop_database(connection, name)


@pytest.fixture(scope="module")
def kept_processes(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcesses]:
    """A payments server and a proxy that go from test to test."""
    from tests.adapters.proxy_processes import ProxyProcesses  # which imports this module

    made = ProxyProcesses(place, tmp_path_factory.mktemp("proxy"))
    yield made
    made.close()


@pytest.fixture
def proxied(kept_processes: ProxyProcesses) -> Iterator[ProxyProcesses]:
    """A payments server, a proxy in front of it, and a payment that nobody else has."""
    kept_processes.begin()
    yield kept_processes
    kept_processes.end_own_proxy()


@pytest.fixture(scope="session")
def processes() -> Iterator[dict[tuple[str, str], Agent]]:
    """The agents whose processes go from test to test: importing a framework takes seconds."""
    kept: dict[tuple[str, str], Agent] = {}
    yield kept
    for agent in kept.values():
        agent.kill()


@pytest.fixture
def agent(
    request: pytest.FixtureRequest, place: Place, tmp_path: Path, processes: dict[tuple[str, str], Agent]
) -> Iterator[Agent]:
    """An agent of the adapter and form that the test is parametrised with."""
    name, form = request.param
    framework = ADAPTERS.get(name)
    if framework is not None:
        try:
            interpreter_of(framework)
        except NotInstalled as error:
            pytest.skip(str(error))
    made = Agent(name, form, place, tmp_path)
    (tmp_path / "driver.log").touch()
    earlier = processes.get((name, form))
    made.process = earlier.process if earlier else None
    yield made
    processes[name, form] = made


def pytest_itemcollected(item: pytest.Item) -> None:
    """All tests of one adapter in one process: they share its environment's process. The first one may have to install it."""
    item.add_marker(pytest.mark.timeout(INSTALL_SECONDS + 180))
    if "agent" in getattr(item, "fixturenames", ()):
        with suppress(AttributeError):
            item.add_marker(pytest.mark.xdist_group(f"adapter-{item.callspec.params['agent'][0]}"))  # type: ignore[attr-defined]
        item.add_marker(pytest.mark.slow)

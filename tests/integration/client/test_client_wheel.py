"""The wheel for agents stands alone: it brings no database, imports quickly, runs on Python 3.10 and does all of a guarded action."""

from __future__ import annotations

import ast
import json
import resource
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sentinel.cli.scratch import listening
from tests.support.client_wheel import build_client_wheel, environment_with, other_python, packaged_modules
from tests.support.fixtures import Fixtures

AGENT = """
import asyncio, json, sys
from sentinel.client import ActionDenied, AlreadyStarted, ApprovalPending, AsyncClient, Client, guarded

url, key = sys.argv[1:]
said = {}
gift = lambda value: {"amount": {"value": value, "currency": "USD"}}

def asked(client, name, value):
    try:
        with guarded(client, "gift_card.issue", params=gift(value), idempotency_key="gift:" + name) as answer:
            said[name] = repr(answer)
    except (ActionDenied, AlreadyStarted, ApprovalPending) as refused:
        said[name] = type(refused).__name__

async def asked_on_a_loop(client):
    async with client:
        async with guarded(client, "gift_card.issue", params=gift("10.50"), idempotency_key="gift:loop") as answer:
            said["loop"] = answer.permit_token[:1] and answer.status
        return await client.heartbeat()

with Client(url, key, agent_id="office", timeout_seconds=60) as client:
    asked(client, "small", 10), asked(client, "twice", 10), asked(client, "large", 100), asked(client, "huge", 1000)
    asked(client, "small", 10)
    said["heartbeat"] = asyncio.run(asked_on_a_loop(client.as_async()))
print(json.dumps({"said": said, "modules": sorted(name.partition(".")[0] for name in sys.modules)}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as `make wheel` builds it."""
    return build_client_wheel(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_the_client_and_its_types_and_nothing_of_the_authority(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(archive.read(name).decode() for name in names if name.endswith("/METADATA"))
    rooms = {name.split("/")[1] for name in names if name.startswith("sentinel/") and name.count("/") > 1}
    assert rooms == {"client", "core", "integrations", "mcp_proxy", "platform", "policy", "tools"}
    shared = {name.removeprefix("sentinel/platform/") for name in names if name.startswith("sentinel/platform/")}
    serving = {f"serving/{one}.py" for one in ("__init__", "connection_bounds", "connection_flow")}
    assert shared == {"__init__.py", "last_spans.py", *serving}
    assert "sentinel/py.typed" in names
    assert "Requires-Python: >=3.10" in metadata
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert required == [], "the client alone needs nothing"
    assert wheel.stat().st_size < 180_000  # a third of it is the MCP proxy, which agents' machines run


def modules_of(wheel: Path) -> dict[str, ast.Module]:
    """Every module of the wheel by its name."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): ast.parse(archive.read(name))
            for name in archive.namelist()
            if name.endswith(".py")
        }


def test_the_wheel_has_the_modules_that_the_distribution_names(wheel: Path) -> None:
    assert set(modules_of(wheel)) == set(packaged_modules())


def test_every_module_of_the_wheel_imports_only_what_python_310_has(wheel: Path) -> None:
    python = other_python("3.10")
    if python is None:
        pytest.skip("there is no Python 3.10 on this machine")
    wanted = {
        (one.module, alias.name)
        for module in modules_of(wheel).values()
        for one in module.body
        if isinstance(one, ast.ImportFrom) and (one.module or "").partition(".")[0] in sys.stdlib_module_names
        for alias in one.names
    }
    code = (
        "import importlib, json, sys; print(json.dumps("
        "[pair for pair in json.loads(sys.argv[1]) if not hasattr(importlib.import_module(pair[0]), pair[1])]))"
    )
    assert run(Path(python), code, json.dumps(sorted(wanted))) == []


@pytest.mark.parametrize("version", ["3.10", "this"])
def test_alone_in_an_environment_it_asks_starts_and_reports(
    wheel: Path, fixtures: Fixtures, tmp_path: Path, version: str
) -> None:
    python = sys.executable if version == "this" else other_python(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    interpreter = environment_with(tmp_path / "env", wheel, python)
    with listening(fixtures.app) as url:
        found = run(interpreter, AGENT, url, fixtures.key)
    said = found["said"]
    assert said["small"] == "AlreadyStarted" and said["large"] == "ApprovalPending" and said["huge"] == "ActionDenied"
    assert "permit_token" not in said["twice"] and "status='allowed'" in said["twice"]
    assert (said["loop"], said["heartbeat"]) == ("allowed", "OK")
    assert not {"psycopg", "sqlalchemy", "flask", "orjson", "yaml", "requests", "httpx"} & set(found["modules"])
    assert fixtures.one("select count(*) from sentinel.operation_states where status = 'completed'") == 3


def test_importing_it_adds_less_than_a_tenth_of_a_second_to_an_interpreters_own_start(
    wheel: Path, tmp_path: Path
) -> None:
    interpreter = environment_with(tmp_path / "env", wheel)
    programs = {"start": "pass", "import": "import sentinel.client"}
    spent: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(7):
        for name, program in programs.items():
            spent[name].append(cpu_seconds(interpreter, program))
    # The best of some, in turn: another process's load makes a start slower, never faster.
    added = min(spent["import"][1:]) - min(spent["start"][1:])
    print(
        f"an interpreter's own start {1000 * min(spent['start']):.0f} ms of CPU, the client {1000 * added:.0f} ms more"
    )
    assert added < 0.1


def cpu_seconds(interpreter: Path, program: str) -> float:
    """CPU time of one process of this interpreter, from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([interpreter, "-I", "-c", program], check=True, timeout=60, cwd=interpreter.parent)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(interpreter: Path, program: str, *arguments: str) -> Any:
    """The JSON that the program prints, run where nothing of this checkout can be imported."""
    done = subprocess.run(
        [interpreter, "-I", "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=False,
        cwd=interpreter.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])

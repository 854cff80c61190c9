"""An adapter is one small module, and only who uses a framework imports it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

INTEGRATIONS = Path(__file__).resolve().parents[3] / "sentinel" / "integrations"
FRAMEWORKS = {
    "langchain.py": ("langchain", "langgraph"), "langchain_failures.py": ("langchain", "langgraph"), "openai_agents.py": ("agents",), "pydantic_ai.py": ("pydantic_ai",),
    "claude_agent_sdk.py": ("claude_agent_sdk",), "claude_code.py": (), "decorator.py": (),
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_adapter_has_at_most_120_lines_and_one_framework(name: str) -> None:
    lines = (INTEGRATIONS / name).read_text().splitlines()
    assert len(lines) <= 120
    others = {one for names in FRAMEWORKS.values() for one in names} - set(FRAMEWORKS[name])
    imported = {line.split()[1].partition(".")[0] for line in lines if line.strip().startswith(("import ", "from "))}
    assert not imported & others


def test_whatever_adapters_share_imports_no_framework() -> None:
    shared = [path for path in INTEGRATIONS.glob("*.py") if path.name not in FRAMEWORKS]
    text = "\n".join(path.read_text() for path in shared)
    for framework in (one for names in FRAMEWORKS.values() for one in names):
        assert f"import {framework}" not in text and f"from {framework}" not in text


def test_the_client_loads_neither_adapters_nor_an_event_loop() -> None:
    program = "import json, sys, sentinel.client; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(json.loads(done.stdout))
    assert not {
        name for name in loaded if name.startswith(("asyncio", "sentinel.integrations", "sentinel.tools", "yaml"))
    }
    assert {name for name in loaded if name.startswith("sentinel.")} == {
        name for name in loaded if name.startswith("sentinel.client")
    }


LATER = (
    "dataclasses",
    "inspect",
    "logging",
    "ssl",
    "asyncio",
    "random",
    "urllib",
    "ipaddress",
    "email",
    "http",
    "typing_extensions",
)


def test_the_client_loads_what_reads_answers_with_the_first_answer() -> None:
    """As in an environment that has the client alone: orjson, where it is there, loads some of it."""
    program = (
        "import json, sys; sys.modules['orjson'] = None; before = set(sys.modules)\n"
        "from sentinel.client import Client, guarded; loaded = set(sys.modules) - before\n"
        "from sentinel.client import AsyncClient, GuardAnswer, Switches\n"
        "print(json.dumps([sorted(loaded), GuardAnswer.__module__, AsyncClient.__module__, Switches.__module__]))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, timeout=60, check=True, cwd=INTEGRATIONS.parents[1])  # fmt: skip
    loaded, answer, client, switches = json.loads(done.stdout)
    assert {name for name in loaded if name.partition(".")[0] in LATER or name == "sentinel.client.answers"} == set()
    assert (answer, client, switches) == ("sentinel.client.answers", "sentinel.client.async_client", "sentinel.client.answers")  # fmt: skip

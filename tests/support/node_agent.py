"""Programs of an agent that has the TypeScript client: run under Node, told what they said and called."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.support.node import find_node

_HEAD = """
import * as sentinel from "sentinel-client";
const { Client, guarded } = sentinel;
const [, , url, key, ...rest] = process.argv;
const client = (options) => new Client(url, key, { agentId: "agent", timeoutSeconds: 30, ...options });
const gift = (value, idempotencyKey, more) => ({ params: { amount: { value, currency: "USD" } }, idempotencyKey, ...more });
const risk = { duplicate_refund: false, stale_window: false, suspicious_reason: false, customer_attempts_24h: 1 };
const refund = (idempotencyKey, more) => ({ params: { amount: { value: 1, currency: "USD" }, risk }, idempotencyKey, ...more });
const said = {};
const called = {};
// What came of a guarded effect, by name: its result, or the error's class.
const tried = async (name, asking, question, effect = () => "done") => {
  try {
    const noted = (answer) => ((called[name] = (called[name] ?? 0) + 1), effect(answer));
    said[name] = await guarded(asking, "gift_card.issue", question, noted);
  } catch (error) {
    said[name] = error?.name;
    return error;
  }
};
"""
_TAIL = "\nconsole.log(JSON.stringify({ said, called }));\n"


def trying(body: str) -> str:
    """A program around `body` that prints what was said and called as its last line.

    It gets the authority's address, a key and more arguments (`rest`). `tried(name, client, question, effect)` notes what came
    of a guarded effect; `gift(value, key)` is for the shipped policies, `refund(key)` for the fake authority.
    """
    return _HEAD + body + _TAIL


def started(agent: Path, program: str, *arguments: str) -> subprocess.Popen[str]:
    """The program, running in the agent's folder."""
    (agent / "program.mjs").write_text(program)
    command = [str(find_node().node), str(agent / "program.mjs"), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ran(agent: Path, body: str, *arguments: str) -> dict[str, Any]:
    """What the program's effects came to: {"said": …, "called": …}."""
    with started(agent, trying(body), *arguments) as process:
        printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0, printed
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def mutant_of(package: Path, folder: Path, file: str, *changes: tuple[str, str]) -> Path:
    """A copy of the agent's folder with something broken in the client."""
    agent = Path(shutil.copytree(package, folder / "agent"))
    broken = agent / "node_modules" / "sentinel-client" / "dist" / file
    for right, wrong in changes:
        assert right in broken.read_text()
        broken.write_text(broken.read_text().replace(right, wrong))
    return agent

"""What each adapter costs over a bare tool call: `make bench BENCH="pieces adapters"`.

One authority, one process for each form in its framework's environment (`make adapters`), all of them asked in turn: bare calls,
then guarded ones, round by round. A call takes guard, start and report. CPU is that of the agent's process and of what it starts;
the wall time has the authority's commits in it.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.bench.place import running_bench
from tests.support.adapter_environments import REPO, NotInstalled, environment_variables, interpreter_of

FORMS = {
    "client_alone": ("`guarded()` of the client", None),
    "decorated": ("`@guarded_tool`", None),
    "langchain": ("LangChain middleware", "langchain"),
    "openai_agents": ("OpenAI Agents SDK", "openai_agents"),
    "pydantic_ai": ("pydantic-ai", "pydantic_ai"),
    "claude_hooks": ("Claude Agent SDK, its hooks alone", None),
    "claude_command": ("Claude Code, the hook as a command", None),
    "mcp_proxy": ("MCP proxy, with client and server in its process", "mcp_proxy"),
}
"""Form → how it is called, and the framework whose environment it needs."""
CALLS, CALLS_OF_COMMANDS = 20, 1


@dataclass
class Form:
    """One form's process, and what a call took in each round, in microseconds."""

    name: str
    process: subprocess.Popen[str]
    figures: dict[str, list[float]] = field(default_factory=dict)

    def measure(self, url: str, key: str, *, guarded: bool, keep: bool) -> None:
        """Some calls in one run of the agent."""
        calls = CALLS_OF_COMMANDS if self.name == "claude_command" else CALLS
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"url": url, "key": key, "guarded": guarded, "calls": calls}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended")
        for what, seconds in json.loads(line).items():
            if keep:
                kind = f"{'guarded' if guarded else 'bare'} {what}"
                self.figures.setdefault(kind, []).append(1e6 * seconds / calls)

    def added(self, what: str) -> list[float]:
        """What guarding added to a call, round by round."""
        pairs = zip(self.figures[f"guarded {what}"], self.figures[f"bare {what}"], strict=True)
        return [guarded - bare for guarded, bare in pairs]


def measure(rounds: int) -> None:
    """Print the table."""
    with running_bench() as bench, contextlib.ExitStack() as stack:
        forms = list(_running(stack))
        url = f"http://127.0.0.1:{bench.port}"
        for number in range(rounds + 1):  # the first one imports and compiles
            for form in forms:
                for guarded in (False, True):
                    form.measure(url, bench.key, guarded=guarded, keep=number > 0)
    print(table(forms, rounds))


def table(forms: list[Form], rounds: int) -> str:
    """Medians of the rounds, as Markdown."""
    lines = [
        f"µs a tool call, medians of {rounds} rounds [least–most]",
        "",
        "| adapter | bare CPU | guarded CPU | adds CPU | bare wall | guarded wall | adds wall |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for form in forms:
        cells = [FORMS[form.name][0]]
        for what in ("cpu", "wall"):
            added = form.added(what)
            cells += [f"{statistics.median(form.figures[f'{kind} {what}']):,.0f}" for kind in ("bare", "guarded")]
            cells.append(f"{statistics.median(added):,.0f} [{min(added):,.0f}–{max(added):,.0f}]")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _running(stack: contextlib.ExitStack) -> Iterator[Form]:
    """A process for each form whose environment can be had; the others are named."""
    for name, (_, framework) in FORMS.items():
        try:
            python = sys.executable if framework is None else str(interpreter_of(framework))
        except NotInstalled as error:
            print(f"left out: {error}", flush=True)
            continue
        process = subprocess.Popen(
            [python, "-m", "tests.bench.adapter_calls", name], cwd=REPO, env=environment_variables(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1,
        )  # fmt: skip
        stack.callback(process.wait, 10)
        stack.callback(process.terminate)
        yield Form(name, process)

"""`sentinel hook`: hooks of agents' own programs, as commands. Needs no database."""

from __future__ import annotations

import click


@click.group()
def group() -> None:
    """Hooks for agents' own programs: one hook's JSON on standard input, the answer on standard output."""


@group.command("claude-code")
@click.option("--url", default="http://127.0.0.1:7860", show_default=True, help="Address of the authority.")
@click.option("--key-file", required=True, help="File with the agent's key, mode 0600.")
@click.option("--agent", required=True, help="The agent's id.")
@click.option("--tools", required=True, help="The file tools.yaml.")
@click.option(
    "--facts",
    help="File with facts of every call, a JSON object; each tool gets those that it declares.",
)
@click.option("--act-within", metavar="SECONDS", help="How long a tool may take after its start.")
@click.option(
    "--pending", type=click.Choice(["deny", "defer"]), default="deny", show_default=True,
    help="Decision about a call that waits for a person.",
)  # fmt: skip
def claude_code(**options: str | None) -> None:
    """A hook of Claude Code's settings: PreToolUse, PostToolUse or PostToolUseFailure.

    Exit status: 0 decided or reported, 2 the tool is blocked, 1 an outcome could not be reported.
    """
    from sentinel.integrations.claude_code import main

    given = {f"--{name.replace('_', '-')}": value for name, value in options.items() if value is not None}
    raise SystemExit(main([part for pair in given.items() for part in pair]))

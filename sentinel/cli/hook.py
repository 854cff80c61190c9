"""`sentinel hook`: hooks of agents' own programs, as commands. Needs no database."""

from __future__ import annotations

import click


@click.group()
def group() -> None:
    """Hooks for agents' own programs: one hook's JSON on standard input, the answer on standard output."""


@group.command("claude-code", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def claude_code(arguments: tuple[str, ...]) -> None:
    """A hook of Claude Code: --key-file FILE --agent ID --tools tools.yaml; --help says the rest."""
    from sentinel.integrations.claude_code import main

    raise SystemExit(main(arguments))

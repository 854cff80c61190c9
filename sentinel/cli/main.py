"""The `sentinel` command: operating the authority. Subcommands are loaded when they are used."""

from __future__ import annotations

from typing import Any

import click

from sentinel import __version__
from sentinel.platform.command_line import LazyGroup, OneLineErrors

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("sentinel.demo.command:command", "Start everything on this machine, with a demo ledger."),
    "serve": ("sentinel.cli.serve:command", "Run the authority in the foreground."),
    "migrate": ("sentinel.cli.migrate:command", "Bring the database to this program's schema and grants."),
    "tenants": ("sentinel.cli.tenants:group", "Create and list tenants."),
    "keys": ("sentinel.cli.keys:group", "Create, list, revoke and rotate agent keys."),
    "operators": ("sentinel.cli.operators:group", "Create and manage the people who decide."),
    "approvals": ("sentinel.cli.approvals:group", "List, approve and reject approvals."),
    "decisions": ("sentinel.cli.decisions:group", "Explain a recorded decision by re-evaluating it."),
    "orders": ("sentinel.cli.orders:group", "List the orders that wait for a person, and decide or retry them."),
    "halts": ("sentinel.cli.halts:group", "Set and lift halts of a tenant, agent, action, scenario or all."),
    "export": ("sentinel.cli.export:command", "Send events to webhooks and other receivers, in the foreground."),
    "webhooks": ("sentinel.cli.webhooks:group", "Add, list, test, rotate and disable webhooks; dead letters."),
    "switches": ("sentinel.cli.switches:group", "Turn scenarios on, for some or all accounts, and off."),
    "gates": ("sentinel.cli.gates:group", "Run a scenario's launch gate before its switch is turned on."),
    "in-doubt": ("sentinel.cli.in_doubt:group", "List and resolve operations whose outcome is unknown."),
    "policy": ("sentinel.cli.policy:group", "Check, show and test policy files."),
    "tools": ("sentinel.cli.tools:group", "List the tools that are mapped to actions, and try a call of one."),
    "hook": ("sentinel.cli.hook:group", "Hooks of agents' own programs, such as Claude Code, as commands."),
    "mcp-proxy": ("sentinel.cli.mcp_proxy:command", "Run a proxy in front of an MCP server; its tools need permits."),
    "public-ids": ("sentinel.cli.public_ids:group", "Look up what an identifier on the public board stands for."),
    "proof": ("sentinel.cli.proof:group", "Verify proof packs, alone or against the record."),
    "checkpoint": ("sentinel.cli.checkpoint:command", "Append a checkpoint of the evidence to a file."),
    "doctor": ("sentinel.cli.doctor:command", "Check that this installation is safe and nothing is broken."),
}


class _Commands(LazyGroup, OneLineErrors):
    """Commands that are loaded when they are used; a refused one ends with one line on standard error."""


@click.group(cls=_Commands, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sentinel")
def main(**_: Any) -> None:
    """The authority a money-moving agent asks before it acts.

    Start with `sentinel demo`. Settings are environment variables, listed in docs/settings.md. Exit codes:
    0 done, 1 refused or not found, 2 wrong usage or configuration, 3 the database cannot be reached.
    """


if __name__ == "__main__":
    main()

"""`sentinel mcp-proxy`: hands its options on to the proxy. Needs no database, but the extra `mcp`."""

from __future__ import annotations

import click


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def command(options: tuple[str, ...]) -> None:
    """A proxy in front of an MCP server, whose tools run only under authority."""
    try:
        from sentinel.mcp_proxy.main import main
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("sentinel"):
            raise
        raise click.UsageError(f"mcp-proxy wants the extra mcp: there is no {missing.name} here") from missing
    raise SystemExit(main(options))

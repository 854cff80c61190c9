"""`sentinel mcp-proxy`: passes its options on to the proxy. Needs no database, but the extra `mcp`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the proxy's own options; reading them needs no package of the extra."""
    from sentinel.mcp_proxy.options import COMMAND_OPTIONS

    for option in reversed(COMMAND_OPTIONS):
        if option.is_switch:
            command = click.option(option.name, is_flag=True, help=option.help)(command)
            continue
        command = click.option(
            option.name, type=option.kind, required=option.is_required, multiple=option.is_repeatable, help=option.help,
            metavar=option.placeholder, default=option.default, show_default=option.default is not None,
        )(command)  # fmt: skip
    return command


@click.command()
@_options
def command(**given: Any) -> None:
    """A proxy in front of an MCP server, whose tools run only under authority."""
    try:
        from sentinel.mcp_proxy.main import main
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("sentinel"):
            raise
        raise click.UsageError(
            f"mcp-proxy needs the extra `mcp`: the package {missing.name} is not installed"
        ) from missing
    words: list[str] = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words += [option] if value else []
            continue
        for one in value if isinstance(value, tuple) else (value,):
            words += [option, str(one)] if one is not None else []
    raise SystemExit(main(words))

"""The options --by and --reason of every command with which a person changes a row or a report."""

from __future__ import annotations

import getpass
from collections.abc import Callable

import click

from sentinel.platform.command_line import Command


def reason_option(about: str) -> Callable[[Command], Command]:
    """The required option `--reason`, whose value is stripped of surrounding whitespace; `about` is its help."""
    return click.option("--reason", required=True, callback=_stripped, help=about)


def by_option(about: str) -> Callable[[Command], Command]:
    """The option `--by`, which defaults to the name of the account on this machine; `about` is its help."""
    return click.option(
        "--by", metavar="NAME", callback=_or_account, help=f"{about}; default: the account on this machine."
    )


def _stripped(_context: click.Context, _option: click.Parameter, reason: str) -> str:
    if not reason.strip():
        raise click.UsageError("--reason must not be empty")
    return reason.strip()


def _or_account(_context: click.Context, _option: click.Parameter, by: str | None) -> str:
    name = (by or "").strip() or _account()
    if not name:
        raise click.UsageError("give --by: the account on this machine has no name")
    return name


def _account() -> str:
    """The name of the account on this machine; "" if it has none, as a container's number may not."""
    try:
        return getpass.getuser().strip()
    except (KeyError, OSError):  # a KeyError before Python 3.13
        return ""

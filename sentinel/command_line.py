"""Wrong use of a command is told on one line of standard error, with where its help is: exit code 2. For every program.

What is wrong with what a command found or was refused is not said here; each program has its own words and codes for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import click


class _WrongUse(click.ClickException):
    """Shown by click as one line that begins with "Error: "."""

    exit_code = 2


class OneLineCommand(click.Command):
    """A command whose wrong use, and that of the commands in it, is one line."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the command line."""
        with _on_one_line():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _on_one_line():
            return super().invoke(ctx)


class OneLineGroup(OneLineCommand, click.Group):
    """A group of commands as `OneLineCommand`. A program needs it once, at its root."""


@contextlib.contextmanager
def _on_one_line() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        raise _WrongUse(_line(error)) from None


def _line(error: click.UsageError) -> str:
    # Without a command click shows the whole help as the error's message.
    without = isinstance(error, click.exceptions.NoArgsIsHelpError)
    text = "Missing command" if without else " ".join(error.format_message().split()).rstrip(".")
    if error.ctx is None:
        return text
    return f"{text} (see '{error.ctx.command_path} --help')"

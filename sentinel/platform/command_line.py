"""Command-line errors on one line of standard error, with exit codes, for every program.

Wrong use says where the command's help is. Exit codes: 0 done, 1 refused or not found, 2 wrong use or configuration, 3 the
database cannot be reached or only reads; the worker has some of its own.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import importlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import click
from click.exceptions import NoSuchCommand

from sentinel.core.errors import EngineUnavailable, InvalidInput, SentinelError
from sentinel.platform.secret_files import read_secret_files
from sentinel.platform.standard_streams import drop_output, prepare_standard_streams

Command = TypeVar("Command", bound=Callable[..., Any])

REFUSED, WRONG_USE, NO_DATABASE = 1, 2, 3
_STREAM_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""How reading or writing an open file fails, without its name: a full disk, a quota, a size limit, a terminal that is gone."""


class InvalidUsage(SentinelError):
    """The command cannot be understood as given; `detail` says what to add."""

    code = "wrong-use"


def exit_code(error: SentinelError) -> int:
    """The exit code of a refusal."""
    # Imported only after an error: a hook of an agent pays for each import at every call of a tool.
    from sentinel.platform.settings import UnsafeConfiguration
    from sentinel.store.database import InvalidAddress
    from sentinel.store.embedded import EmbeddedError
    from sentinel.store.migrate import SchemaNotReady
    from sentinel.store.safety import MissingGrant, UnsafeDatabase

    if isinstance(error, (EngineUnavailable, EmbeddedError)):
        return NO_DATABASE
    if isinstance(error, (InvalidUsage, InvalidInput, UnsafeConfiguration)):
        return WRONG_USE
    if isinstance(error, (InvalidAddress, SchemaNotReady, MissingGrant, UnsafeDatabase)):
        return WRONG_USE
    return REFUSED


def terminal_text(text: str) -> str:
    """Return text from outside for a terminal: control, zero-width and direction-changing characters as code points.

    Tabs and line ends stay.
    """
    from sentinel.core.customer_text import code_point  # as in `exit_code`
    from sentinel.core.operation import UNSAFE_TEXT

    return UNSAFE_TEXT.sub(lambda found: code_point(found[0]), text).replace("\r", code_point("\r"))


def one_line_errors(command: Command) -> Command:
    """Make our own errors end the command with one line on standard error and their `exit_code`, not with a traceback."""

    @functools.wraps(command)
    def wrapped(*args: Any, **options: Any) -> Any:
        try:
            return command(*args, **options)
        except SentinelError as error:
            lines = [" ".join(line.split()) for line in error.detail.splitlines()]
            click.echo(f"Error: {terminal_text('; '.join(lines))}", err=True)
            sys.exit(exit_code(error))

    return cast(Command, wrapped)


class FiniteRange(click.FloatRange):
    """A number between two bounds: `nan` is neither below nor above any, and `inf` no time to wait."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; one that is not finite is wrong use of the command."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return found


class _InvalidUsage(click.ClickException):
    """Shown by click as one line that begins with "Error: "."""

    exit_code = 2


class OneLineCommand(click.Command):
    """A command that reports on one line wrong use of it and of the commands in it, files that cannot be read or written,
    and standard output that takes no more.
    """

    def main(self, *arguments: Any, **named: Any) -> Any:
        """Run it as a program."""
        # Objects loaded at the start are no garbage: a collection after every 700 of them took a seventh of the time.
        gc.set_threshold(20_000, 20, 50)
        prepare_standard_streams()
        try:
            return super().main(*arguments, **named)
        except OSError as error:
            if error.filename is None and error.errno not in _STREAM_FAULTS:
                raise
            place = "reading or writing failed" if error.filename is None else os.fsdecode(error.filename)
            click.echo(f"Error: {place}: {error.strerror}", err=True)
            drop_output()
            sys.exit(REFUSED)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the command line."""
        with _on_one_line():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, with the secrets from the files that the environment names."""
        if ctx.parent is None:
            _read_secret_files(ctx)
        with _on_one_line():
            return super().invoke(ctx)


@one_line_errors
def _read_secret_files(ctx: click.Context) -> None:
    try:
        read_secret_files()
    except SentinelError:
        # Help is shown whatever is wrong with the secrets: it is what a person reads to correct them.
        if set(ctx.help_option_names).isdisjoint(ctx.args):
            raise


class OneLineGroup(OneLineCommand, click.Group):
    """A group of commands that behaves as `OneLineCommand`. A program needs it once, at its root."""


class OneLineErrors(OneLineGroup):
    """A group that applies `one_line_errors` to all of its commands, and reports wrong use on one line too."""

    @one_line_errors
    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        return super().invoke(ctx)


class LazyGroup(OneLineGroup):
    """A group that loads a command's module only when it is used, so that `--help` and other commands stay quick.

    `lazy` maps each command's name to its place ("module:attribute") and its line in `--help`.
    """

    def __init__(self, *arguments: Any, lazy: Mapping[str, tuple[str, str]], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands, in the order of `lazy`."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Load and return the command; None when there is none of that name."""
        if name not in self.lazy:
            return None
        module, _, attribute = self.lazy[name][0].partition(":")
        found: click.Command = getattr(importlib.import_module(module), attribute)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begin with."""
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as unknown:
            # click suggests the nearest of the loaded commands, and none is loaded.
            raise NoSuchCommand(unknown.command_name, possibilities=self.lazy, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command's line."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])


@contextlib.contextmanager
def _on_one_line() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        raise _InvalidUsage(_line(error)) from None


def _line(error: click.UsageError) -> str:
    # Without a command click shows the whole help as the error's message.
    without = isinstance(error, click.exceptions.NoArgsIsHelpError)
    text = "Missing command" if without else " ".join(error.format_message().split()).rstrip(".")
    if error.ctx is None:
        return text
    return f"{text} (see '{error.ctx.command_path} --help')"

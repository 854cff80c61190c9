"""Secrets in files: NAME_FILE stands for NAME, and what is wrong with a file is said before anything runs."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sentinel.platform.command_line import OneLineGroup
from sentinel.platform.secret_files import SECRETS, read_secret_files, secret_from_file
from sentinel.platform.settings import UnsafeConfiguration
from tests.support.settings_table import programs
from worker.orders.sources import PolicyError, Sources

NAME = "SENTINEL_SECRET_KEYS"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("  one, two\n")
    return path


def test_the_text_of_the_file_stands_where_the_variable_would(secret: Path) -> None:
    environ = {f"{NAME}_FILE": str(secret), "SENTINEL_CHECKPOINT_FILE": "c.jsonl"}
    read_secret_files(environ)
    assert environ == {NAME: "one, two", "SENTINEL_CHECKPOINT_FILE": "c.jsonl"}
    read_secret_files(environ)
    assert environ[NAME] == "one, two"


def test_every_fault_is_named_and_nothing_is_read(tmp_path: Path, secret: Path) -> None:
    empty, two_lines, bytes_ = tmp_path / "empty", tmp_path / "two", tmp_path / "bytes"
    empty.write_text("\n"), two_lines.write_text("a\nb"), bytes_.write_bytes(b"\xff\xfe")
    given = {
        f"{NAME}_FILE": str(secret), NAME: "other", "SMTP_PASSWORD_FILE": str(empty), "CONFIRM_SECRETS_FILE": str(two_lines),
        "WORKER_TICKET_KEY_FILE": str(bytes_), "SENTINEL_SHOP_KEY_FILE": str(tmp_path), "WORKER_STRIPE_KEY_FILE": str(tmp_path / "none"),
        "SLACK_WEBHOOK_URL_FILE": str(secret),
    }  # fmt: skip
    environ = dict(given)
    with pytest.raises(UnsafeConfiguration) as refused:
        read_secret_files(environ)
    assert sorted(refused.value.detail.splitlines()) == [
        f"CONFIRM_SECRETS_FILE: {two_lines} must hold one line of text, the secret",
        f"{NAME} and {NAME}_FILE are both given; keep one",
        f"SENTINEL_SHOP_KEY_FILE: {tmp_path} cannot be read (Is a directory)",
        f"SMTP_PASSWORD_FILE: {empty} must hold one line of text, the secret",
        f"WORKER_STRIPE_KEY_FILE: {tmp_path / 'none'} cannot be read (No such file or directory)",
        f"WORKER_TICKET_KEY_FILE: {bytes_} cannot be read (not text)",
    ]
    assert environ == given


def test_a_file_that_is_not_named_is_none(secret: Path) -> None:
    assert secret_from_file(NAME, {}) is None
    assert secret_from_file(NAME, {f"{NAME}_FILE": ""}) is None


def test_every_variable_with_a_secret_may_be_in_a_file() -> None:
    endings = ("_SECRETS", "_SECRET_KEYS", "_KEY", "_PASSWORD", "_TOKEN", "DATABASE_URL", "WEBHOOK_URL")
    variables = {field.metadata["env"] for _, kind in programs() for field in dataclasses.fields(kind)}
    secrets = {name for name in variables if name.endswith(endings) and not name.endswith("_PER_KEY")}
    assert len(secrets) > 20
    assert secrets <= set(SECRETS)
    assert set(SECRETS) - variables <= {"HALTSTATE_REFUND_AGENT_API_KEY", "SENTINEL_SCRATCH_DATABASE_URL"}


@click.group(cls=OneLineGroup)
def program() -> None:
    """A program."""


@program.command()
def show() -> None:
    click.echo(os.environ[NAME])


def test_a_command_has_what_the_file_holds(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{NAME}_FILE", str(secret))
    monkeypatch.setenv(NAME, "")  # and so put back afterwards
    done = CliRunner().invoke(program, ["show"])
    assert (done.exit_code, done.output) == (0, "one, two\n")
    assert f"{NAME}_FILE" not in os.environ


def test_a_command_whose_file_is_missing_is_one_line_and_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{NAME}_FILE", "/nowhere/at all")
    done = CliRunner().invoke(program, ["show"])
    assert done.exit_code == 2
    assert done.output == f"Error: {NAME}_FILE: /nowhere/at all cannot be read (No such file or directory)\n"


def test_help_is_given_whatever_is_wrong_with_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{NAME}_FILE", "/nowhere/at all")
    for asked in (["--help"], ["show", "--help"]):
        done = CliRunner().invoke(program, asked)
        assert (done.exit_code, done.output.startswith("Usage: program")) == (0, True), done.output


def test_a_source_of_orders_reads_its_secret_from_a_file(tmp_path: Path, secret: Path) -> None:
    sources = tmp_path / "order_sources.yaml"
    sources.write_text(
        "sources:\n  till:\n    scheme: hex\n    secret: TILL_SECRET\n    header: X-Signature\n    fields:\n"
        "      order_id: id\n      amount: total\n      currency: currency\n      account_ref: customer\n"
    )
    secret.write_text("only-for-tests-0123456789\n")
    with_file = Sources.load(sources, {"TILL_SECRET_FILE": str(secret)})
    assert (
        with_file.find("till").signing.secrets
        == Sources.load(sources, {"TILL_SECRET": "only-for-tests-0123456789"}).find("till").signing.secrets
    )
    assert Sources.load(sources, {}).closed() == ("till",)
    with pytest.raises(PolicyError, match="TILL_SECRET_FILE: /nowhere cannot be read"):
        Sources.load(sources, {"TILL_SECRET_FILE": "/nowhere"})

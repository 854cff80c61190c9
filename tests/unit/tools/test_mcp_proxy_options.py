"""The MCP proxy's command line refuses what could not be kept."""

from __future__ import annotations

import os
import string
from pathlib import Path

import pytest

from sentinel.authority.settings import Settings
from sentinel.mcp_proxy.options import LONGEST_CALL_SECONDS, Options, WrongOptions, read_options

TOOLS = Path(__file__).parents[3] / "policies" / "tools.yaml"


def options(tmp_path: Path, *more: str) -> Options:
    """The options of a proxy for one agent."""
    (tmp_path / "key").write_text("sk_test")
    given = [
        "--key-file",
        str(tmp_path / "key"),
        "--tools",
        str(TOOLS),
        "--server",
        "local",
        "--upstream-url",
        "http://127.0.0.1:1/mcp",
    ]
    return read_options([*given, "--agent", "support", *more])


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1", "3591", "86400"])
def test_a_call_has_a_time_that_the_authority_gives(tmp_path: Path, seconds: str) -> None:
    with pytest.raises(WrongOptions, match="--timeout .* more than 0 and at most 3590"):
        options(tmp_path, f"--timeout={seconds}")


def test_facts_of_a_file_are_true_of_every_call_and_anything_else_in_it_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    file.write_text('{"currency": "usd"}')
    assert options(tmp_path, "--facts", str(file)).facts == {"currency": "usd"}
    file.write_text('["usd"]')
    with pytest.raises(WrongOptions, match="must contain a JSON object"):
        options(tmp_path, "--facts", str(file))


def test_facts_of_a_module_are_a_function_or_a_mapping(tmp_path: Path) -> None:
    assert options(tmp_path, "--facts", "string:capwords").facts is string.capwords
    assert options(tmp_path, "--facts", "os:environ").facts is os.environ
    with pytest.raises(WrongOptions, match="--facts string:digits: must be a function, or a mapping"):
        options(tmp_path, "--facts", "string:digits")


@pytest.mark.parametrize("option", ["--key-file", "--credential-file"])
def test_a_file_without_a_secret_is_refused_at_the_start(tmp_path: Path, option: str) -> None:
    """`sentinel keys create > FILE` leaves one where the command was refused."""
    file = tmp_path / "empty"
    file.write_text("\n")
    with pytest.raises(WrongOptions, match=f"{option} .*empty: is empty"):
        options(tmp_path, option, str(file))


@pytest.mark.parametrize("url", ["mcp.example.com", "mcp.example.com:443/mcp", "ftp://mcp.example.com", "https:///mcp"])
def test_a_server_whose_address_is_none_is_refused_at_the_start(tmp_path: Path, url: str) -> None:
    """The finding: with the scheme forgotten, the proxy started, and each call was told that the server cannot be reached."""
    with pytest.raises(WrongOptions, match="--upstream-url: must be an address"):
        options(tmp_path, "--upstream-url", url)


def test_a_blank_command_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(WrongOptions, match="--upstream-command: must name a program"):
        options(tmp_path, "--upstream-url", "", "--upstream-command", " ")


@pytest.mark.parametrize("number", ["0", "-1", "1001"])
def test_one_address_has_at_least_one_connection_and_at_most_all(tmp_path: Path, number: str) -> None:
    with pytest.raises(WrongOptions, match="--connections-per-address .* 1 to 1000"):
        options(tmp_path, f"--connections-per-address={number}")


def test_the_longest_call_and_its_report_are_within_what_the_authority_gives_as_shipped(tmp_path: Path) -> None:
    assert options(tmp_path, "--timeout", "3590").seconds == LONGEST_CALL_SECONDS
    assert LONGEST_CALL_SECONDS + 10 <= Settings().longest_act_seconds

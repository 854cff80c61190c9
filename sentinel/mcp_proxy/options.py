"""The proxy's command line, and the options that it is read into."""

from __future__ import annotations

import argparse
import importlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sentinel.integrations.tool_guard import Facts
from sentinel.mcp_proxy.access_rules import AccessRules, read_access_rules
from sentinel.tools import ToolTable, read_tool_table

PORT = 7864
CONNECTIONS, CONNECTIONS_PER_ADDRESS = 1_000, 500
LONGEST_CALL_SECONDS = 3590
"""The authority's default for the longest time to act (SENTINEL_LONGEST_ACT_SECONDS), less the time that a report may take."""
MAY_BE_PASSED_ON = ("resources", "prompts", "logging")


class WrongOptions(Exception):
    """The options cannot be used; the text says why, in one line."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options as given. `listen` is (host, port), or None for stdio; `agent` is the one agent of stdio; `seconds`: of a call."""

    authority: str
    key: str
    table: ToolTable
    server: str
    upstream_url: str | None
    upstream_command: list[str]
    credential: str | None
    credential_name: str
    listen: tuple[str, int] | None
    allowed_hosts: list[str]
    agent: str | None
    facts: Facts | None
    seconds: float
    passed_on: Sequence[str] = ()
    has_sessions: bool = False
    access: AccessRules | None = None
    authority_seconds: float = 5.0
    connections_per_address: int = CONNECTIONS_PER_ADDRESS


def read_options(arguments: Sequence[str] | None) -> Options:
    """Read the options from the command line. Raises `WrongOptions`, `OSError`, `PolicyError`; exits on what argparse refuses."""
    given = parser().parse_args(arguments)
    if bool(given.upstream_url) == bool(given.upstream_command):
        raise WrongOptions("give either --upstream-url or --upstream-command")
    command = shlex.split(given.upstream_command or "")
    if given.upstream_command and not command:
        raise WrongOptions("--upstream-command: must name a program")
    if given.upstream_url and not _is_address(given.upstream_url):
        raise WrongOptions("--upstream-url: must be an address like https://host/mcp")
    if not 0 < given.timeout <= LONGEST_CALL_SECONDS:  # refuses nan too
        raise WrongOptions(
            f"--timeout {given.timeout:g}: must be more than 0 and at most {LONGEST_CALL_SECONDS} seconds"
        )
    if not 1 <= given.connections_per_address <= CONNECTIONS:
        raise WrongOptions(f"--connections-per-address {given.connections_per_address}: must be 1 to {CONNECTIONS}")
    if bool(given.listen) == bool(given.agent):
        raise WrongOptions("give either --listen (each agent has its key) or --agent (stdio, one agent)")
    if unknown := sorted(set(given.pass_on) - set(MAY_BE_PASSED_ON)):
        raise WrongOptions(f"--pass-on {unknown[0]}: must be one of {', '.join(MAY_BE_PASSED_ON)}")
    if given.agent and (given.access_tokens or given.sessions):
        raise WrongOptions("--access-tokens and --sessions can only be used with --listen")
    if given.listen and given.upstream_command and "logging" in given.pass_on:
        raise WrongOptions(
            "--pass-on logging: needs --agent with --upstream-command, because the process's messages do not say to whose call they belong"
        )
    table = read_tool_table(Path(given.tools))
    if given.upstream_command:
        _refuse_header_injections(table, given.server)
    return Options(
        authority=given.url, key=_secret("--key-file", given.key_file), table=table, server=given.server,
        upstream_url=given.upstream_url, upstream_command=command,
        credential=_secret("--credential-file", given.credential_file) if given.credential_file else None,
        credential_name=given.credential_name or ("Authorization" if given.upstream_url else ""),
        listen=_address(given.listen) if given.listen else None, allowed_hosts=given.allow_host, agent=given.agent,
        facts=read_facts(given.facts) if given.facts else None, seconds=given.timeout, passed_on=given.pass_on,
        has_sessions=given.sessions, access=read_access_rules(Path(given.access_tokens)) if given.access_tokens else None,
        connections_per_address=given.connections_per_address,
    )  # fmt: skip


def _secret(option: str, file: str) -> str:
    """Return the secret in a file. One without any, e.g. of a command that failed after its shell had made the file, is refused."""
    found = Path(file).read_text().strip()
    if not found:
        raise WrongOptions(f"{option} {file}: is empty")
    return found


def credential_headers(options: Options) -> dict[str, str]:
    """Return the credential as a header of every request to the upstream; without a scheme in `Authorization`, it is a bearer token."""
    if options.credential is None:
        return {}
    is_bare = options.credential_name.lower() == "authorization" and " " not in options.credential
    return {options.credential_name: f"Bearer {options.credential}" if is_bare else options.credential}


def credential_env(options: Options) -> dict[str, str]:
    """Return the credential as an environment variable of the upstream's process. Raises `WrongOptions`."""
    if options.credential is None:
        return {}
    if not options.credential_name:
        raise WrongOptions("--credential-file needs --credential-name: the variable that the server reads")
    return {options.credential_name: options.credential}


def read_facts(given: str) -> Facts:
    """Return the facts that `--facts` names: the function of `module:function`, which looks up the facts of a call, or
    the object in a JSON file, which is true of every call. Raises `WrongOptions`, `OSError` and `ValueError`.
    """
    module, separator, name = given.rpartition(":")
    if separator and not given.endswith(".json"):
        try:
            named: Any = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise WrongOptions(f"--facts {given}: {error}") from error
        if not callable(named) and not isinstance(named, Mapping):
            raise WrongOptions(f"--facts {given}: must be a function, or a mapping")
        found: Facts = named
        return found
    facts: Any = json.loads(Path(given).read_bytes())
    if not isinstance(facts, dict):
        raise WrongOptions(f"--facts {given}: must contain a JSON object")
    return facts


@dataclass(frozen=True, slots=True)
class CommandOption:
    """One option of the command line; `placeholder` stands for its value in the help."""

    name: str
    help: str
    is_required: bool = False
    is_repeatable: bool = False
    is_switch: bool = False
    default: str | float | None = None
    placeholder: str | None = None

    @property
    def kind(self) -> type:
        """The type that a value is read as."""
        return str if self.default is None else type(self.default)


COMMAND_OPTIONS = (
    CommandOption("--url", "Address of the authority.", default="http://127.0.0.1:7860"),
    CommandOption(
        "--key-file", "File with the proxy's key, mode 0600; a worker's key, so that facts count.", is_required=True
    ),
    CommandOption("--tools", "The file tools.yaml.", is_required=True),
    CommandOption("--server", "Name of the server in tools.yaml.", is_required=True),
    CommandOption("--upstream-url", "The server's address (streamable HTTP)."),
    CommandOption("--upstream-command", "Or the command that starts the server (stdio)."),
    CommandOption("--credential-file", "File with the server's credential, mode 0600."),
    CommandOption(
        "--credential-name",
        "The header (default: Authorization, as a bearer token) or the server's environment variable that gets the credential.",
    ),
    CommandOption(
        "--listen",
        f"Serve streamable HTTP at /mcp, e.g. 127.0.0.1:{PORT}; each agent presents its key.",
        placeholder="HOST:PORT",
    ),
    CommandOption(
        "--allow-host",
        "Host name by which agents may reach the proxy, besides those of loopback; repeatable.",
        is_repeatable=True,
    ),
    CommandOption(
        "--connections-per-address",
        f"How many of its {CONNECTIONS} connections may come from one address; behind a proxy, which is one address, give {CONNECTIONS}.",
        default=CONNECTIONS_PER_ADDRESS,
        placeholder="NUMBER",
    ),
    CommandOption(
        "--access-tokens",
        "Also admit agents by access tokens (OAuth): a YAML file with resource, issuer, jwks_url, scopes and agents.",
    ),
    CommandOption(
        "--sessions",
        "Keep sessions, in which clients of MCP revisions before 2026-07-28 get change notifications and log messages; they end with the proxy.",
        is_switch=True,
    ),
    CommandOption("--agent", "Id of the one agent to serve on standard input and output."),
    CommandOption("--facts", "Facts that the program gives about a call: module:function, or a JSON file."),
    CommandOption(
        "--pass-on",
        "Let agents read the server's resources or prompts, with its credential, or get its log messages about their calls; repeatable.",
        is_repeatable=True,
        placeholder="resources|prompts|logging",
    ),
    CommandOption("--timeout", "How long a call may take.", default=60.0, placeholder="SECONDS"),
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of `sentinel-mcp-proxy`, of the client-only package; `sentinel mcp-proxy` has the same options."""
    made = argparse.ArgumentParser(
        prog="sentinel mcp-proxy",
        description="A proxy in front of an MCP server, whose tools run only under authority.",
    )
    for option in COMMAND_OPTIONS:
        told = option.help if option.default is None else f"{option.help} (default: {option.default})"
        if option.is_repeatable:
            made.add_argument(option.name, action="append", default=[], help=told, metavar=option.placeholder)
        elif option.is_switch:
            made.add_argument(option.name, action="store_true", help=told)
        else:
            made.add_argument(
                option.name, type=option.kind, required=option.is_required, default=option.default, help=told,
                metavar=option.placeholder,
            )  # fmt: skip
    return made


def _is_address(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65535:
        raise WrongOptions(f"--listen {text}: must be HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def _refuse_header_injections(table: ToolTable, server: str) -> None:
    for mapping in table.mappings:
        injections = mapping.action.injections if mapping.action is not None else ()
        if mapping.server == server and any(one.place == "header" for one in injections):
            raise WrongOptions(f"{mapping.name}: a header cannot be injected over stdio; inject an argument")

"""The file of `--access-tokens`: whose access tokens the proxy accepts. Needs no package of the extra `mcp`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sentinel.core.hosts import is_loopback
from sentinel.policy.source import Node, Source, read_source

_SCOPE = re.compile(r"[\x21\x23-\x5B\x5D-\x7E]+")
_AGENT = re.compile(r"[^\s\x00-\x1f]{1,200}")
_FIELDS = ("resource", "issuer", "jwks_url", "scopes", "agents")


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Whose tokens the proxy accepts. `agents`: the token's subject (`sub`) → the agent that it stands for."""

    resource: str
    issuer: str
    jwks_url: str
    scopes: tuple[str, ...]
    agents: Mapping[str, str]


def read_access_rules(path: Path) -> AccessRules:
    """Read the rules from a YAML file. Raises `PolicyError`, which names the line."""
    source, root = read_source(path)
    fields = source.fields(root, "the file", known=_FIELDS, required=_FIELDS).entries
    agents = source.table(fields["agents"], "agents")
    if not agents.entries:
        raise source.error(agents.place, "agents must not be empty")
    return AccessRules(
        resource=_url(source, fields["resource"], "resource"),
        issuer=_url(source, fields["issuer"], "issuer"),
        jwks_url=_url(source, fields["jwks_url"], "jwks_url"),
        scopes=tuple(
            source.text(one, "a scope", form=_SCOPE, means="a scope") for one in source.listing(fields["scopes"], "scopes")
        ),
        agents={
            subject: source.text(node, f"the agent of {subject}", form=_AGENT, means="an agent's id")
            for subject, node in agents.entries.items()
        },
    )  # fmt: skip


def _url(source: Source, node: Node, what: str) -> str:
    """Return a URL without query, fragment or user name, which must be https unless its host is this machine."""
    text = source.text(node, what)
    parts = urlsplit(text)
    if not parts.hostname or parts.query or parts.fragment or parts.username:
        raise source.error(node.place, f'{what} must be an address without user name, query or fragment, not "{text}"')
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname)):
        raise source.error(node.place, f"{what} must begin with https://, unless its host is this machine")
    return text

"""Webhooks' addresses in events and requested changes, as a person may read them: only administrators read all of one.

The rest of an address may be its receiver's token. The evidence keeps the whole address, and its hashes are of that.
"""

from __future__ import annotations

import json
import re
from typing import Any

from sentinel.authority.actor import Actor, has_role
from sentinel.core.canonical import canonical_json


def shown_to(person: Actor, canonical: str) -> str:
    """Return an event's body or a requested change with each `url` as this person may read it, in canonical JSON."""
    if has_role(person.role, "admin") or '"url"' not in canonical:
        return canonical
    return canonical_json(_without_addresses(json.loads(canonical)))


def _without_addresses(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_addresses(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _origin(inner) if name == "url" and isinstance(inner, str) else _without_addresses(inner)
        for name, inner in value.items()
    }


def _origin(url: str) -> str:
    scheme, _, rest = url.partition("://")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    return f"{scheme}://{host}/…"

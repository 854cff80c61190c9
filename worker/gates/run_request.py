"""The request that `sentinel gates run` sends on standard input: the scratch database and authority, and the policy's limits."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Window:
    """One limit of the policy for one currency; `cap_minor` is in minor units.

    `kind` is calendar_day, calendar_month or rolling; `seconds` is 0 for a calendar window. The authority's keys of
    this limit begin with `key_prefix`.
    """

    id: str
    currency: str
    kind: str
    seconds: int
    key_prefix: str
    cap_minor: int


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run. `caps` maps a currency to the highest amount of one refund, in minor units. The login of `database_url`
    has all rights in the scratch database.

    `sandbox` has the fields of the worker's settings that point to the operator's own outside systems, empty without
    any.
    """

    scenario: str
    action: str
    switch: str
    cases: Path
    database_url: str
    tenant_id: uuid.UUID
    api_key: str
    authority_url: str
    policies_dir: Path
    simulate_systems: bool
    sandbox: Mapping[str, str]
    zone: str
    caps: Mapping[str, int]
    windows: tuple[Window, ...]


def read_request(data: bytes) -> RunRequest:
    """Parse a request in JSON. Raises `KeyError`, `TypeError` or `ValueError`, which only a defect of our own sender can cause."""
    found: dict[str, Any] = orjson.loads(data)
    found["windows"] = tuple(Window(**window) for window in found["windows"])
    for name in ("cases", "policies_dir"):
        found[name] = Path(found[name])
    found["tenant_id"] = uuid.UUID(found["tenant_id"])
    return RunRequest(**found)

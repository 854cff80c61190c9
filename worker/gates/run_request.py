"""The request of `sentinel gates run` on standard input: where the scratch database is, and the policy's limits."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Window:
    """One limit of the policy for one currency, in minor units; `kind` is calendar_day, calendar_month or rolling.

    `key_prefix` is how the authority's keys of it begin; `seconds` is 0 for a calendar window.
    """

    id: str
    currency: str
    kind: str
    seconds: int
    key_prefix: str
    cap_minor: int


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run. `caps`: currency → the most that one refund may be. `database_url` may do everything in the scratch.

    `sandbox`: fields of the worker's settings that say where the operator's outside systems are, empty without them.
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
    """The job in JSON. Raises `KeyError`, `TypeError` or `ValueError`: its sender is a program of ours."""
    found: dict[str, Any] = orjson.loads(data)
    found["windows"] = tuple(Window(**window) for window in found["windows"])
    for name in ("cases", "policies_dir"):
        found[name] = Path(found[name])
    found["tenant_id"] = uuid.UUID(found["tenant_id"])
    return RunRequest(**found)

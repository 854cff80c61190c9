"""What the views are handed: the authority, who calls, the declared switches, and whether this process drains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sentinel.authority.api.identity import Identity
from sentinel.authority.engine import Authority
from sentinel.policy.switches import SwitchFile


@dataclass(frozen=True, slots=True)
class Context:
    """Handed to every route of the authority. `stopping()` is true once this process drains."""

    authority: Authority
    identity: Identity
    switches: SwitchFile
    stopping: Callable[[], bool] = field(default=lambda: False)

"""What the views are handed: the authority, who calls, the declared switches, and whether this process drains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sentinel.api.identity import Identity
from sentinel.policy.switches import SwitchFile
from sentinel.services.authority import Authority


@dataclass(frozen=True, slots=True)
class Context:
    """Handed to every route of the authority. `stopping()` is true once this process drains."""

    authority: Authority
    identity: Identity
    switches: SwitchFile
    stopping: Callable[[], bool] = field(default=lambda: False)

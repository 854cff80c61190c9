"""The table of outside settlement systems that speak the protocol of docs/settlement.md.

Made from it are the worker's adapters and the check of their settings, the secrets that may be in files, and what a
launch gate tries: its simulated systems and the operator's sandboxes. `stripe` has another protocol and is not in the
table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OutsideSystem:
    """One system. `name` is its name in a route's `settles_to`; the names of its two worker settings begin with `prefix`."""

    name: str
    prefix: str
    moves_money: bool = True

    @property
    def url_field(self) -> str:
        """The field of the worker's settings with its address."""
        return f"{self.prefix}_url"

    @property
    def key_field(self) -> str:
        """The field of the worker's settings with its API key."""
        return f"{self.prefix}_key"

    @property
    def url_variable(self) -> str:
        """The environment variable with its address."""
        return f"WORKER_{self.url_field.upper()}"

    @property
    def key_variable(self) -> str:
        """The environment variable with its API key."""
        return f"WORKER_{self.key_field.upper()}"


OUTSIDE_SYSTEMS = (
    OutsideSystem("price_difference", "price_difference"),
    OutsideSystem("platform_backend", "platform"),
    OutsideSystem("ticket", "ticket", moves_money=False),
)

NEVER_TRIED = ("stripe",)
"""Outside systems that no launch gate can try: every case would need a real payment there."""

"""Who acts on the authority's records for a tenant: a signed-in operator, or a local administrator in one's name.

An agent key never becomes an `Actor`; that is how no machine can approve.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from sentinel.core.errors import Forbidden

ROLES = ("viewer", "approver", "admin")
"""Weakest first: who has one may do what those before it may."""
CONSOLE, LOCAL_ADMINISTRATOR = "console", "local_administrator"
ON_THE_MACHINE = "local administrator"
"""How records name who acts on the machine itself in nobody's name."""


@dataclass(frozen=True, slots=True)
class Actor:
    """A person of a tenant. `via` says how the act came in and is recorded; `operator_id` None is nobody's account."""

    tenant_id: uuid.UUID
    operator_id: uuid.UUID | None
    email: str
    role: str
    via: str = CONSOLE

    @property
    def name(self) -> str:
        """How records name this person: the address, and that it was typed on the machine itself where it was."""
        return f"{self.email} (local administrator)" if self.is_local and self.operator_id else self.email

    @property
    def is_local(self) -> bool:
        """Whether the act comes from the machine itself and not over the network."""
        return self.via == LOCAL_ADMINISTRATOR

    def must_be(self, role: str) -> None:
        """Raise `Forbidden` unless the role is at least `role`."""
        if not has_role(self.role, role):
            raise Forbidden(f"this needs the role {role}")


def has_role(held: str, wanted: str) -> bool:
    """viewer < approver < admin; an unknown role has nothing."""
    return held in ROLES and ROLES.index(held) >= ROLES.index(wanted)


def local_administrator(tenant_id: uuid.UUID) -> Actor:
    """Someone at the machine itself, acting in nobody's name."""
    return Actor(tenant_id, None, ON_THE_MACHINE, "admin", LOCAL_ADMINISTRATOR)

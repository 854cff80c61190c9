"""The person who acts on a tenant's records: a signed-in operator or a local administrator.

An agent key never becomes an `Actor`, so that no agent can approve.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from sentinel.core.errors import Forbidden

ROLES = ("viewer", "approver", "admin")
"""The roles, weakest first; each may do everything that the roles before it may."""
CONSOLE, LOCAL_ADMINISTRATOR = "console", "local_administrator"
ON_THE_MACHINE = "local administrator"
"""The name in records of somebody who acts on the machine itself without an operator's account."""


@dataclass(frozen=True, slots=True)
class Actor:
    """A person of a tenant. `via` says how the action came in, and is recorded; `operator_id` is None without an account."""

    tenant_id: uuid.UUID
    operator_id: uuid.UUID | None
    email: str
    role: str
    via: str = CONSOLE

    @property
    def name(self) -> str:
        """The person's name in records: the address, marked if a local administrator acted in this operator's name."""
        return f"{self.email} (local administrator)" if self.is_local and self.operator_id else self.email

    @property
    def is_local(self) -> bool:
        """Whether the action comes from a command on the machine itself and not over the network."""
        return self.via == LOCAL_ADMINISTRATOR

    def must_be(self, role: str) -> None:
        """Raise `Forbidden` unless the role is at least `role`."""
        if not has_role(self.role, role):
            raise Forbidden(f"this needs the role {role}")


def has_role(held: str, wanted: str) -> bool:
    """Return whether `held` is at least `wanted` (viewer < approver < admin); an unknown role is below all."""
    return held in ROLES and ROLES.index(held) >= ROLES.index(wanted)


def local_administrator(tenant_id: uuid.UUID) -> Actor:
    """Return the actor for somebody on the machine itself who acts without an operator's account."""
    return Actor(tenant_id, None, ON_THE_MACHINE, "admin", LOCAL_ADMINISTRATOR)

"""Add a person to a tenant, and change what they may do."""

from __future__ import annotations

import re
import uuid

from sentinel.core.errors import Conflict, InvalidInput, NotFound
from sentinel.services.passwords import hash_password
from sentinel.store.database import Pool
from sentinel.store.ids import new_id
from sentinel.store.operators import ROLES, OperatorRow, find_operator, insert_operator, set_active, set_role

_ADDRESS = re.compile(r"[a-z0-9._%+-]{1,64}@[a-z0-9-]+(\.[a-z0-9-]+)*")


def create_operator(pool: Pool, tenant_id: uuid.UUID, *, email: str, password: str, role: str) -> uuid.UUID:
    """The new operator's id. Raises `InvalidInput`, or `Conflict` when the tenant has that address."""
    email = email.strip().lower()
    # Plain ASCII, so that no two addresses look alike.
    if not _ADDRESS.fullmatch(email) or len(email) > 254:
        raise InvalidInput.of("email", "must be a plain e-mail address")
    check_role(role)
    operator_id = new_id()
    added = insert_operator(
        pool,
        tenant_id=tenant_id,
        operator_id=operator_id,
        email=email,
        password_hash=hash_password(password),
        role=role,
    )
    if not added:
        raise Conflict(f"{email} is an operator already")
    return operator_id


def change_role(pool: Pool, tenant_id: uuid.UUID, *, email: str, role: str) -> None:
    """Give an operator another role, in force at the next request. Raises `NotFound` or `InvalidInput`."""
    check_role(role)
    set_role(pool, tenant_id, known_operator(pool, tenant_id, email).operator_id, role)


def shut_out(pool: Pool, tenant_id: uuid.UUID, *, email: str) -> None:
    """End an operator's sessions and tokens, and let no new one begin. Raises `NotFound`."""
    set_active(pool, tenant_id, known_operator(pool, tenant_id, email).operator_id, active=False)


def let_in(pool: Pool, tenant_id: uuid.UUID, *, email: str) -> None:
    """Undo `shut_out`. Raises `NotFound`."""
    set_active(pool, tenant_id, known_operator(pool, tenant_id, email).operator_id, active=True)


def known_operator(pool: Pool, tenant_id: uuid.UUID, email: str) -> OperatorRow:
    """The tenant's operator of that address. Raises `NotFound`."""
    operator = find_operator(pool, tenant_id, email.strip())
    if operator is None:
        raise NotFound(f"{email} is not an operator of this tenant")
    return operator


def check_role(role: str) -> None:
    """Raise `InvalidInput` unless it is one of the three roles."""
    if role not in ROLES:
        raise InvalidInput.of("role", f"must be one of {', '.join(ROLES)}")

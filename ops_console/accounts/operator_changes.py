"""Add a person to a tenant, and change what they may do; each change appends an event."""

from __future__ import annotations

import re
import uuid
from typing import Any

from ops_console.accounts import operators
from ops_console.accounts.operators import OperatorRow, credentials_of, find_operator, list_operators
from ops_console.accounts.passwords import hash_password, is_right
from sentinel.authority.actor import ROLES, Actor, local_administrator
from sentinel.authority.protected_changes import (
    CONFIRM,
    CREATE_OPERATOR,
    DEACTIVATE,
    END_ACCESS,
    REACTIVATE,
    RESET_PASSWORD,
    RESET_SECOND_FACTOR,
    SET_ROLE,
    request_change,
)
from sentinel.core.errors import Conflict, Forbidden, InvalidInput, NotFound, SentinelError
from sentinel.store.database import Pool
from sentinel.store.ids import new_id

_ADDRESS = re.compile(r"[a-z0-9._%+-]{1,64}@[a-z0-9-]+(\.[a-z0-9-]+)*")


def create_operator(
    pool: Pool, tenant_id: uuid.UUID, *, email: str, password: str, role: str, one_time: bool = False
) -> uuid.UUID:
    """Add an operator as the local administrator and return the new id. `one_time`: the password only serves to set
    one's own.

    Raises `InvalidInput`, or `Conflict` if the address is an operator's already.
    """
    operator_id = new_id()
    add_person(
        pool, local_administrator(tenant_id), operator_id=operator_id, email=email, password=password, role=role, one_time=one_time
    )  # fmt: skip
    return operator_id


def add_person(
    pool: Pool, actor: Actor, *, operator_id: uuid.UUID, email: str, password: str, role: str, one_time: bool = True
) -> bool:
    """Add a person under a given id. Returns False if the same form was sent before, so the person exists already.

    `one_time`: the password, which somebody else chose, works once and only to set one's own. Where a second
    administrator has to approve (`WaitsForAdministrator` is raised), another password is made when the change is
    collected.

    Raises `InvalidInput`, or `Conflict` if the address or the id is somebody else's or the password has changed since.
    """
    actor.must_be("admin")
    email = checked_address(email)
    check_role(role)
    result = request_change(
        pool, actor, CREATE_OPERATOR, f"operator/{email}", {"operator_id": operator_id, "email": email, "role": role},
        {"password_hash": hash_password(password, email=email), "one_time": one_time},
    )  # fmt: skip
    if result == "taken":
        raise Conflict(f"{email} is already an operator")
    if result == "repeated":
        known = credentials_of(pool, actor.tenant_id, operator_id)
        if known is None or not is_right(known.password_hash, password):
            raise Conflict(f"{email} was already added, with another password")
    return result == "done"


def checked_address(email: str) -> str:
    """Return the e-mail address in lower case; only plain ASCII, so that no two look alike. Raises `InvalidInput`."""
    email = email.strip().lower()
    if not _ADDRESS.fullmatch(email) or len(email) > 254:
        raise InvalidInput.of("email", "must be a plain e-mail address")
    return email


def change_role(pool: Pool, tenant_id: uuid.UUID, *, email: str, role: str) -> None:
    """Give an operator another role, in force at the next request. Raises `NotFound`, `InvalidInput`, or `Conflict` if the role was changed meanwhile."""
    check_role(role)
    _change(pool, tenant_id, email, SET_ROLE, role)


def deactivate_operator(pool: Pool, tenant_id: uuid.UUID, *, email: str) -> None:
    """Revoke an operator's sessions and tokens, and refuse new ones. Raises `NotFound`."""
    _change(pool, tenant_id, email, DEACTIVATE)


def reactivate_operator(pool: Pool, tenant_id: uuid.UUID, *, email: str) -> None:
    """Let a disabled operator sign in again. Raises `NotFound`."""
    _change(pool, tenant_id, email, REACTIVATE)


def reset_second_factor(pool: Pool, tenant_id: uuid.UUID, *, email: str) -> bool:
    """Remove an operator's second factor and revoke their sessions and tokens. False if there is none. Raises `NotFound`."""
    return _change(pool, tenant_id, email, RESET_SECOND_FACTOR)


def end_access_of_everybody(pool: Pool, tenant_id: uuid.UUID) -> int:
    """Revoke the sessions and tokens of every operator of the tenant, and return the number of operators.

    One operator after the other, not in one transaction: if it fails, run it again.
    """
    everybody = list_operators(pool, tenant_id)
    for one in everybody:
        change_operator(pool, local_administrator(tenant_id), one.operator_id, END_ACCESS)
    return len(everybody)


def confirm(pool: Pool, tenant_id: uuid.UUID, *, email: str) -> bool:
    """Confirm an account as the local administrator. False if it is not waiting for confirmation. Raises `NotFound`."""
    return _change(pool, tenant_id, email, CONFIRM)


def _change(pool: Pool, tenant_id: uuid.UUID, email: str, action: str, role: str | None = None) -> bool:
    known = known_operator(pool, tenant_id, email)
    # A change that waits replaces the role of now, and the approving administrator is shown which one that is.
    seen = known.role if role is not None else None
    return change_operator(pool, local_administrator(tenant_id), known.operator_id, action, role=role, seen=seen)


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


_REFUSALS: dict[str, SentinelError] = {
    "unknown": NotFound("there is no operator with this id"),
    "changed": Conflict("this operator has another role by now; look again"),
    "self": Forbidden("you cannot change your own account here; what you may change is on the page of your account"),
    "same_hands": Forbidden(
        "an account cannot be confirmed by the person who created or changed it, or by an account that is itself unconfirmed"
    ),
    "not_own": Conflict(
        "this account still has the password that somebody else set; it can be confirmed once its owner has signed in and set a"
        " password of their own"
    ),
    "last_admin": Conflict("this is the last active admin; add another one first"),
}


def change_operator(
    pool: Pool, actor: Actor, operator_id: uuid.UUID, action: str, *, role: str | None = None, seen: str | None = None
) -> bool:
    """Do one of `request_change`'s actions on an operator; False if that changes nothing.

    `role` is the new role, `seen` the role that was shown when it was chosen. Raises `Forbidden`, `NotFound`,
    `Conflict`, or `WaitsForAdministrator` (not done yet).
    """
    return _request(pool, actor, operator_id, action, {"role": role, "seen": seen}, {})


def _request(
    pool: Pool, actor: Actor, operator_id: uuid.UUID, action: str, params: dict[str, Any], given: dict[str, str]
) -> bool:
    actor.must_be("admin")
    known = operators.credentials_of(pool, actor.tenant_id, operator_id)
    if known is None:
        raise NotFound("there is no operator with this id")
    said = request_change(
        pool,
        actor,
        action,
        f"operator/{known.email}",
        {"operator_id": operator_id, "email": known.email, **params},
        given,
    )
    refusal = _REFUSALS.get(said)
    if refusal is not None:
        raise type(refusal)(refusal.detail)
    return said == "done"


def reset_password(pool: Pool, actor: Actor, operator_id: uuid.UUID, password: str) -> None:
    """Replace a password that is lost or known to others. Raises as `change_operator`, and `InvalidInput`.

    Where a second administrator has to approve, another password is made when the change is collected.
    """
    actor.must_be("admin")
    known = operators.credentials_of(pool, actor.tenant_id, operator_id)
    password_hash = hash_password(password, email=known.email if known is not None else "")
    _request(pool, actor, operator_id, RESET_PASSWORD, {}, {"password_hash": password_hash})

"""Change what a person may do, or take from them what they sign in with. The rules are checked in the transaction that does it.

Nobody changes themselves here, and the last active admin stays one; on the machine itself both are allowed.
"""

from __future__ import annotations

import uuid

from ops_console.accounts import operators
from ops_console.accounts.passwords import hash_password
from sentinel.authority.actor import Actor
from sentinel.core.errors import Conflict, Forbidden, NotFound, SentinelError
from sentinel.store.database import Pool
from sentinel.store.ids import new_id

ROLE_SET, SHUT_OUT, LET_IN, PASSWORD_RESET, SECOND_FACTOR_RESET, SESSIONS_ENDED, CONFIRMED = (
    "role_set", "shut_out", "let_in", "password_reset", "second_factor_reset", "sessions_ended", "confirmed",
)  # fmt: skip
_REFUSALS: dict[str, SentinelError] = {
    "unknown": NotFound("there is no operator of that id"),
    "changed": Conflict("this operator has another role by now; look again"),
    "self": Forbidden("nobody changes themselves here; the page of your own account has what is yours to change"),
    "same_hands": Forbidden(
        "who made or changed an account does not confirm it, nor does an account that waits for that itself"
    ),
    "last_admin": Conflict("this is the last active admin; make another one first"),
}


def change_operator(
    pool: Pool, actor: Actor, operator_id: uuid.UUID, act: str, *, given: str | None = None, seen: str | None = None
) -> bool:
    """Do one of the acts above; False when it was so before. `given` is the new role or the new password's hash.

    `seen` is the role that was shown when another one was chosen. Raises `Forbidden`, `NotFound` or `Conflict`.
    """
    actor.must_be("admin")
    result = operators.change_operator(
        pool, tenant_id=actor.tenant_id, operator_id=operator_id, act=act, given=given, seen=seen, by_id=actor.operator_id,
        by=actor.name, event_id=new_id(),
    )  # fmt: skip
    refusal = _REFUSALS.get(result)
    if refusal is not None:
        raise type(refusal)(refusal.detail)
    return result == "done"


def reset_password(pool: Pool, actor: Actor, operator_id: uuid.UUID, password: str) -> None:
    """Put a password in the place of one that is lost or known to others. Raises also `InvalidInput`."""
    actor.must_be("admin")
    known = operators.credentials_of(pool, actor.tenant_id, operator_id)
    password_hash = hash_password(password, email=known.email if known is not None else "")
    change_operator(pool, actor, operator_id, PASSWORD_RESET, given=password_hash)

"""What a person can change of their own account: the password, and ending their sessions."""

from __future__ import annotations

import uuid

from ops_console.accounts import operators, sessions
from ops_console.accounts.passwords import hash_password, is_right
from ops_console.accounts.sessions import SignedIn
from ops_console.accounts.sign_in import Authenticator
from ops_console.accounts.step_up import counted
from sentinel.core.errors import Conflict, InvalidInput, NotFound, Unauthenticated
from sentinel.store.database import Pool
from sentinel.store.ids import new_id


def change_own_password(
    pool: Pool, who: SignedIn, *, old: str, new: str, address: str, authenticator: Authenticator
) -> None:
    """Change the person's own password and end their other sessions. The same form sent twice changes it once.

    Raises `RateLimited`, `InvalidInput` for a wrong old password or an unfit new one (the same as the old one is unfit
    too), or `Conflict` if the password was changed meanwhile.
    """
    new_hash = hash_password(new, email=who.email, field="new")
    known = operators.credentials_of(pool, who.tenant_id, who.operator_id)
    if known is None:
        raise Unauthenticated
    with counted(pool, who, address=address, authenticator=authenticator):
        is_present = is_right(known.password_hash, new)
        if is_present and known.password_one_time:
            raise InvalidInput.of("new", "must not be the password that somebody else set")
        if is_right(known.password_hash, old):
            if is_present:
                # Refused, because nothing would change: the other sessions, which a change has to end, would stay.
                raise InvalidInput.of("new", "must differ from the current password")
        elif is_present:
            return  # The same form was sent twice: by now its old password is wrong and its new one is in force.
        else:
            raise InvalidInput.of("old", "is wrong")
    if not operators.change_password(pool, known, new_hash, keep_session=who.session_id, event_id=new_id()):
        raise Conflict("your password was changed in the meantime; sign in again with the new one")


def end_own_session(pool: Pool, who: SignedIn, session_id: uuid.UUID) -> None:
    """End one of the person's own sessions. Raises `NotFound`."""
    if not sessions.end_session(pool, who.tenant_id, who.operator_id, session_id):
        raise NotFound("you have no session with this id")

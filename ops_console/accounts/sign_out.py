"""End a session where it is kept, so that a copied cookie ends with it."""

from __future__ import annotations

from ops_console.accounts.sessions import revoke_session
from ops_console.accounts.sign_in import session_hash
from sentinel.store.database import Pool


def sign_out(pool: Pool, cookie: str) -> None:
    """Revoke the session of this cookie's value; nothing happens for an unknown one."""
    revoke_session(pool, session_hash(cookie))

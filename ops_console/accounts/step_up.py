"""Prove once more who one is, in a session that a browser holds: a stolen cookie alone decides nothing.

A session's proofs have a throttle of their own, so that nobody outside can keep its person from proving.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

from ops_console.accounts import sessions
from ops_console.accounts.operators import credentials_of
from ops_console.accounts.passwords import is_right
from ops_console.accounts.sessions import SignedIn
from ops_console.accounts.sign_in import TOO_MANY, Authenticator
from ops_console.accounts.sign_in_attempts import begin_attempt, mark_success
from ops_console.accounts.totp import use_code
from sentinel.core.errors import InvalidInput, RateLimited, Unauthenticated
from sentinel.store.database import Pool


def needs_proof(who: SignedIn, *, by_form: bool) -> bool:
    """Whether this session must prove before an act of weight. The pages' forms (`by_form`) ask everybody who proved nothing in the
    last minutes; the API asks a page's session alone: programs gave their credentials to act, and tokens are made for it.
    """
    return not who.proved and (by_form or who.kind == "page")


def step_up(pool: Pool, who: SignedIn, *, proof: str, address: str, authenticator: Authenticator) -> None:
    """Take a code of the second factor, or the password of who has none, as proof for the next `step_up_seconds`.

    Raises `RateLimited` before looking at it, `InvalidInput` (proof) when it is wrong or a code that was used.
    """
    with counted(pool, who, address=address, authenticator=authenticator):
        known = credentials_of(pool, who.tenant_id, who.operator_id)
        if known is not None and known.factor is not None:
            if not use_code(pool, authenticator.vault, known, proof):
                raise InvalidInput.of(
                    "proof", "must be the code that your second factor shows now; each can be used once"
                )
        elif not is_right(known.password_hash if known is not None else None, proof):
            raise InvalidInput.of("proof", "is wrong")
    if not sessions.step_up(pool, who):
        raise Unauthenticated


@contextlib.contextmanager
def counted(pool: Pool, who: SignedIn, *, address: str, authenticator: Authenticator) -> Iterator[None]:
    """Count what the block looks at as one attempt, a failed one when it raises. Raises `RateLimited` before.

    A session that failed too often today is over.
    """
    attempt = begin_attempt(
        pool, email=who.email, address=address, throttle=authenticator.throttle, device_hash=_counter(who)
    )  # fmt: skip
    if attempt.attempt_id is None:
        if attempt.is_spent and who.session_id is not None:
            sessions.end_session(pool, who.tenant_id, who.operator_id, who.session_id)
        raise RateLimited(attempt.retry_after_seconds, TOO_MANY)
    yield
    mark_success(pool, attempt.attempt_id)


def _counter(who: SignedIn) -> bytes:
    return hashlib.sha256(f"session {who.session_id}".encode()).digest()

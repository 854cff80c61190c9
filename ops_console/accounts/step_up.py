"""Step-up: the person of a session proves again who they are, so that a stolen cookie alone decides nothing.

Each session has a throttle of its own for this, so that nobody outside it can block the person's proofs.
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
    """Whether a sensitive action needs a step-up first. The pages' forms (`by_form`) require one unless there was one
    in the last minutes; the API requires it only of a page's session, since a program just presented its credentials or
    a token.
    """
    return not who.proved and (by_form or who.kind == "page")


def step_up(pool: Pool, who: SignedIn, *, proof: str, address: str, authenticator: Authenticator) -> None:
    """Step the session up for the next `step_up_seconds`: `proof` is a code, or the password if there is no second
    factor.

    Raises `RateLimited` before checking it, `InvalidInput` (proof) if it is wrong or a used code, `Unauthenticated` if
    the session has ended.
    """
    with counted(pool, who, address=address, authenticator=authenticator):
        known = credentials_of(pool, who.tenant_id, who.operator_id)
        if known is not None and known.factor is not None:
            if not use_code(pool, authenticator.vault, known, proof):
                raise InvalidInput.of(
                    "proof", "must be the code that your second factor shows now; each code works once"
                )
        elif not is_right(known.password_hash if known is not None else None, proof):
            raise InvalidInput.of("proof", "is wrong")
    if not sessions.step_up(pool, who):
        raise Unauthenticated


@contextlib.contextmanager
def counted(pool: Pool, who: SignedIn, *, address: str, authenticator: Authenticator) -> Iterator[None]:
    """Count the block as one attempt, which has failed if the block raises. Raises `RateLimited` before the block runs.

    Ends a session from which too many attempts failed today.
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

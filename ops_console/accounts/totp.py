"""Time-based codes (RFC 6238: SHA-1, six digits, 30 seconds): their secrets sealed, and which step a code belongs to.

A stolen database gives no codes: secrets are encrypted (Fernet) with keys derived from settings, which the database
does not have. The first setting encrypts, all decrypt; a secret moves to the newest when a code of it is used.
"""

from __future__ import annotations

import base64
import hmac
import re
import uuid

import pyotp
import structlog
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ops_console.accounts import second_factors
from ops_console.accounts.operators import Credentials, credentials_of
from sentinel.authority.actor import Actor
from sentinel.core.errors import Conflict, InvalidInput, NotFound
from sentinel.store.database import Pool
from sentinel.store.ids import new_id

DIGITS, WINDOW = 6, 1
ISSUER = "sentinel"
_NOBODY = uuid.UUID(int=0)

log = structlog.get_logger("sentinel.sign_in")


def derived_key(secret: str, purpose: bytes) -> bytes:
    """32 bytes of `secret` for one purpose (RFC 5869), so that no two purposes share a key."""
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose).derive(secret.encode())


class Vault:
    """Seals and opens second factors' secrets. Without any setting it is not `usable` and opens nothing."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        keys = [base64.urlsafe_b64encode(derived_key(one, b"sentinel second factor")) for one in secrets]
        self._fernet = MultiFernet([Fernet(key) for key in keys]) if keys else None
        self._nobodys = self.seal(_NOBODY, pyotp.random_base32()) if self._fernet else ""

    @property
    def usable(self) -> bool:
        """Whether second factors can be set up and checked."""
        return self._fernet is not None

    def seal(self, operator_id: uuid.UUID, secret: str) -> str:
        """What the database keeps; it opens for this operator only."""
        assert self._fernet is not None
        return self._fernet.encrypt(f"{operator_id}:{secret}".encode()).decode()

    def open(self, operator_id: uuid.UUID, sealed: str) -> str | None:
        """The secret; None when no key of ours opens it, or it was somebody else's."""
        if self._fernet is None:
            return None
        try:
            owner, _, secret = self._fernet.decrypt(sealed).decode().partition(":")
        except InvalidToken:
            return None
        return secret if owner == str(operator_id) else None

    def open_nobodys(self) -> str | None:
        """Open a made-up secret, so that an unknown person takes the same time."""
        return self.open(_NOBODY, self._nobodys)


def clean_code(text: str | None) -> str:
    """A code without the blanks that people and apps put into it."""
    return re.sub(r"[\s-]", "", text or "")[:32]


def totp_step_of(vault: Vault, who: Credentials | None, code: str | None) -> int | None:
    """The time step of `code`: one of the three around now, and none at or before the last that was used; else None.

    Takes the same time for an unknown person or one without a second factor.
    """
    if who is not None and who.factor is not None:
        secret, now_step, last_step = vault.open(who.operator_id, who.factor), who.now_step, who.last_step
        if secret is None:
            log.error("second_factor_unreadable", operator_id=str(who.operator_id))
    else:
        secret, now_step, last_step = None, 0, 0
        vault.open_nobodys()
    found = _matching(secret or "A" * 32, now_step, clean_code(code))
    return found if secret is not None and found is not None and found > last_step else None


def _matching(secret: str, now_step: int, code: str) -> int | None:
    generator, found = pyotp.HOTP(secret, digits=DIGITS), None
    for step in range(max(0, now_step - WINDOW), now_step + WINDOW + 1):
        if hmac.compare_digest(generator.at(step).encode(), code.encode(errors="replace")):
            found = step
    return found


def use_code(pool: Pool, vault: Vault, who: Credentials, code: str | None) -> bool:
    """Whether the code is right now; a right one is used up, and no second call takes it."""
    step = totp_step_of(vault, who, code)
    if step is None or who.factor is None:
        return False
    secret = vault.open(who.operator_id, who.factor)
    assert secret is not None
    sealed = vault.seal(who.operator_id, secret)
    return second_factors.use_step(pool, who.tenant_id, who.operator_id, step=step, secret=sealed)


def begin_second_factor(pool: Pool, vault: Vault, actor: Actor, *, anew: bool = False) -> str:
    """The secret to be put into an app: with `anew` a new one, else the one that waits to be confirmed, if it was made in the last
    `PENDING_MINUTES`. Raises `Conflict` where none can be kept or one is."""
    person = _person(actor)
    if not vault.usable:
        raise Conflict("this console has no secret to encrypt second factors with (SENTINEL_SECOND_FACTOR_SECRETS)")
    for is_new in (anew, True):
        made = vault.seal(person, pyotp.random_base32())
        second_factors.start(pool, actor.tenant_id, person, made, anew=is_new)
        waiting = second_factors.pending_enrolment(pool, actor.tenant_id, person)
        if waiting is None:
            raise Conflict("you have a second factor; remove it first")
        # Sealed with a key that is gone, it is made anew.
        if (secret := vault.open(person, waiting.secret)) is not None:
            return secret
    raise Conflict("it was begun somewhere else at this moment; try again")


def confirm_second_factor(pool: Pool, vault: Vault, actor: Actor, code: str) -> None:
    """Ask for it from now on; one that is confirmed stays so. Raises `InvalidInput` for a wrong code, `Conflict` without one."""
    person = _person(actor)
    waiting = second_factors.pending_enrolment(pool, actor.tenant_id, person)
    if waiting is None:
        known = credentials_of(pool, actor.tenant_id, person)
        if known is not None and known.factor is not None:
            return
        raise Conflict("no second factor waits to be confirmed")
    secret = vault.open(person, waiting.secret)
    step = _matching(secret, waiting.now_step, clean_code(code)) if secret is not None else None
    if step is None:
        raise InvalidInput.of("code", "is not the one the app shows now")
    if not second_factors.confirm(
        pool, actor.tenant_id, person, secret=waiting.secret, step=step, by=actor.name, event_id=new_id()
    ):
        raise Conflict("no second factor waits to be confirmed")


def remove_second_factor(pool: Pool, actor: Actor) -> None:
    """Remove one's own second factor. Raises `NotFound`."""
    if not second_factors.remove(pool, actor.tenant_id, _person(actor), by=actor.name, event_id=new_id()):
        raise NotFound("you have no second factor")


def address_of(secret: str, email: str) -> str:
    """The otpauth address that the QR code shows."""
    return pyotp.TOTP(secret).provisioning_uri(name=email, issuer_name=ISSUER)


def _person(actor: Actor) -> uuid.UUID:
    if actor.operator_id is None:
        raise Conflict("a second factor belongs to a person's account")
    return actor.operator_id

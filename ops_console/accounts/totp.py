"""Time-based codes (RFC 6238: SHA-1, six digits, 30 seconds): encrypting their secrets, and finding a code's time step.

A stolen database yields no codes: secrets are encrypted (Fernet) with keys derived from settings, which are not in the
database. The first setting encrypts, all decrypt; using a code re-encrypts its secret with the first one.
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
    """Derive a key of 32 bytes from `secret` for one purpose (RFC 5869), so that no two purposes share a key."""
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose).derive(secret.encode())


class Vault:
    """Encrypts and decrypts second factors' secrets. Without any setting it is not `usable` and decrypts nothing."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        keys = [base64.urlsafe_b64encode(derived_key(one, b"sentinel second factor")) for one in secrets]
        self._fernet = MultiFernet([Fernet(key) for key in keys]) if keys else None
        self._nobodys = self.seal(_NOBODY, pyotp.random_base32()) if self._fernet else ""

    @property
    def usable(self) -> bool:
        """Whether second factors can be set up and checked."""
        return self._fernet is not None

    def seal(self, operator_id: uuid.UUID, secret: str) -> str:
        """Encrypt a secret for the database, bound to this operator."""
        assert self._fernet is not None
        return self._fernet.encrypt(f"{operator_id}:{secret}".encode()).decode()

    def open(self, operator_id: uuid.UUID, sealed: str) -> str | None:
        """Decrypt a secret; None if none of our keys decrypts it, or it was sealed for another operator."""
        if self._fernet is None:
            return None
        try:
            owner, _, secret = self._fernet.decrypt(sealed).decode().partition(":")
        except InvalidToken:
            return None
        return secret if owner == str(operator_id) else None

    def open_nobodys(self) -> str | None:
        """Decrypt a dummy secret, so that the check of an unknown person takes the same time."""
        return self.open(_NOBODY, self._nobodys)


def clean_code(text: str | None) -> str:
    """Return a code without the spaces and hyphens that people and apps put into it."""
    return re.sub(r"[\s-]", "", text or "")[:32]


def totp_step_of(vault: Vault, who: Credentials | None, code: str | None) -> int | None:
    """Return the time step of `code` if it is right: one of the three around now, and later than the last one used;
    else None.

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
    """Check a code and mark it as used. Returns False for a wrong or used one; of two concurrent calls one gets True."""
    step = totp_step_of(vault, who, code)
    if step is None or who.factor is None:
        return False
    secret = vault.open(who.operator_id, who.factor)
    assert secret is not None
    sealed = vault.seal(who.operator_id, secret)
    return second_factors.use_step(pool, who.tenant_id, who.operator_id, step=step, secret=sealed)


def begin_second_factor(pool: Pool, vault: Vault, actor: Actor, *, anew: bool = False) -> str:
    """Return the secret to enter into an app: a new one with `anew`, else the one that is not confirmed yet, if it was
    made in the last `PENDING_MINUTES`. Raises `Conflict` if secrets cannot be encrypted here or the person has a second
    factor.
    """
    person = _person(actor)
    if not vault.usable:
        raise Conflict("this console has no secret to encrypt second factors with (SENTINEL_SECOND_FACTOR_SECRETS)")
    for is_new in (anew, True):
        made = vault.seal(person, pyotp.random_base32())
        second_factors.start(pool, actor.tenant_id, person, made, anew=is_new)
        waiting = second_factors.pending_enrolment(pool, actor.tenant_id, person)
        if waiting is None:
            raise Conflict("you already have a second factor; remove it first")
        # A pending secret that was sealed with a key no longer configured cannot be opened: the second pass replaces
        # it.
        if (secret := vault.open(person, waiting.secret)) is not None:
            return secret
    raise Conflict("another set-up was started at the same time; try again")


def confirm_second_factor(pool: Pool, vault: Vault, actor: Actor, code: str) -> None:
    """Confirm the pending second factor, so that signing in requires it; does nothing if there is a confirmed one.

    Raises `InvalidInput` for a wrong code, `Conflict` if none is pending.
    """
    person = _person(actor)
    waiting = second_factors.pending_enrolment(pool, actor.tenant_id, person)
    if waiting is not None:
        secret = vault.open(person, waiting.secret)
        step = _matching(secret, waiting.now_step, clean_code(code)) if secret is not None else None
        if step is None:
            raise InvalidInput.of("code", "is not the code that the app shows now")
        if second_factors.confirm(
            pool, actor.tenant_id, person, secret=waiting.secret, step=step, by=actor.name, event_id=new_id()
        ):
            return
    # The same form may have confirmed it: sent twice, or in a first attempt whose answer was lost.
    known = credentials_of(pool, actor.tenant_id, person)
    if known is None or known.factor is None:
        raise Conflict("no second factor is waiting to be confirmed; set one up first")


def remove_second_factor(pool: Pool, actor: Actor) -> None:
    """Remove the actor's own second factor. Raises `NotFound`."""
    if not second_factors.remove(pool, actor.tenant_id, _person(actor), by=actor.name, event_id=new_id()):
        raise NotFound("you have no second factor")


def address_of(secret: str, email: str) -> str:
    """The otpauth address that the QR code shows."""
    return pyotp.TOTP(secret).provisioning_uri(name=email, issuer_name=ISSUER)


def _person(actor: Actor) -> uuid.UUID:
    if actor.operator_id is None:
        raise Conflict("only a person's account can have a second factor")
    return actor.operator_id

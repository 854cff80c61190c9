"""Make an agent key: the key itself is in the answer and nowhere else, ever again; that it was made is an event."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from sentinel.authority.actor import ON_THE_MACHINE
from sentinel.authority.keys import DEFAULT_SCOPES, LIVE, SCOPES, TEST, insert_key, make_key
from sentinel.core.errors import Conflict, InvalidInput
from sentinel.core.operation import check_identifier
from sentinel.store.database import Pool
from sentinel.store.ids import new_id

MOST_DAYS = 3650


class MadeBefore(Conflict):
    """A key of that id was made already, by the same form sent twice; it was shown then and cannot be shown again."""

    code = "key-made-before"

    def __init__(self) -> None:
        super().__init__("this form has made its key already; the key was shown then, and only then")


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key that was just made. `key` is the secret: show it once."""

    key: str
    key_id: uuid.UUID
    principal_id: uuid.UUID | None


def issue_key(
    pool: Pool,
    tenant_id: uuid.UUID,
    *,
    agent_id: str | None,
    label: str = "",
    scopes: tuple[str, ...] = DEFAULT_SCOPES,
    owner_operator_id: uuid.UUID | None = None,
    expires_days: int | None = None,
    test: bool = False,
    key_id: uuid.UUID | None = None,
    by: str = ON_THE_MACHINE,
    by_id: uuid.UUID | None = None,
) -> IssuedKey:
    """A new key of a new principal. Its owner and its maker can never approve what it asks.

    `agent_id` binds the key to one agent, None to any. With a `key_id` asking twice makes one key. `by` is who made
    it, for the event, `by_id` their account. Raises `InvalidInput` naming the field, or `MadeBefore`.
    """
    if agent_id is not None:
        check_identifier(agent_id, "agent_id", 128)
    check_scopes(scopes)
    issued = IssuedKey(make_key(TEST if test else LIVE), key_id or new_id(), uuid.uuid4())
    assert issued.principal_id is not None
    made = insert_key(
        pool, tenant_id=tenant_id, key_id=issued.key_id, principal_id=issued.principal_id, key=issued.key, label=label,
        agent_id=agent_id, scopes=scopes, owner_operator_id=owner_operator_id,
        expires_seconds=seconds_of(expires_days), by=by, by_id=by_id, event_id=new_id(),
    )  # fmt: skip
    if not made:
        raise MadeBefore
    return issued


def check_scopes(scopes: tuple[str, ...]) -> None:
    """Raise `InvalidInput` for a scope that does not exist, or none at all."""
    unknown = sorted(set(scopes) - set(SCOPES))
    if unknown or not scopes:
        raise InvalidInput.of("scopes", f"must be some of {', '.join(SCOPES)}")


def seconds_of(days: int | None) -> int | None:
    """Days of life in seconds; None for no end."""
    if days is None:
        return None
    if not 1 <= days <= MOST_DAYS:
        raise InvalidInput.of("expires_days", f"must be 1 to {MOST_DAYS}")
    return days * 86400

"""The housekeeper's two statements."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.store.database import Pool
from sentinel.store.failures import in_one_call
from sentinel.store.ids import new_id

KEEP_HOUSE = "select permits_expired, approvals_expired, fell_in_doubt from sentinel.keep_house(%s, %s)"
SEQUENCE_EVENTS = "select sentinel.sequence_events(%s)"

_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class House:
    """What ran out in one round."""

    permits_expired: int
    approvals_expired: int
    fell_in_doubt: int


def keep_house(pool: Pool, report_deadline_seconds: int) -> House:
    """Expire permits and approvals and put silent operations in doubt. Raises `EngineUnavailable`."""
    ids = [new_id() for _ in range(2 * _AT_ONCE)]
    found = in_one_call(pool, lambda c: c.execute(KEEP_HOUSE, [report_deadline_seconds, ids]).fetchone())
    assert found is not None
    return House(*found)


def sequence_events(pool: Pool, most: int = 1000) -> int:
    """Give feed positions to at most `most` events; how many got one."""
    found = in_one_call(pool, lambda c: c.execute(SEQUENCE_EVENTS, [most]).fetchone())
    return found[0] if found else 0

"""What a failed call to the authority says something about: this one row, or something outside that concerns every row.

One table as data. What is about the outside costs a row nothing but time: it waits, and is asked again for as long as it
takes. Only what is surely about the row itself may end it; anything this table does not name is about the outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TypeGuard

from sentinel.client import Rejected, Unreachable


class About(StrEnum):
    """What a failure is about."""

    ROW = "row"
    OUTSIDE = "outside"


STATUSES: Mapping[int, About] = MappingProxyType(
    {
        400: About.ROW,  # the question itself is malformed, and asked again it is the same question
        409: About.ROW,  # the operation stands otherwise than the row assumes; still being decided comes as no answer
        410: About.ROW,  # its permit ran out before the start
        413: About.ROW,  # its own question is too large
        422: About.ROW,  # its key belongs to another operation
        401: About.OUTSIDE,  # the key is refused: replaced, over, or mistyped
        403: About.OUTSIDE,  # the key may not do this: scope, tenant, agent
        404: About.OUTSIDE,  # not the authority's answer to a business call: another server listens there
        405: About.OUTSIDE,
        429: About.OUTSIDE,  # too many calls
        503: About.OUTSIDE,  # the authority cannot record a decision now
    }
)
"""By status of an answer. What is not here, of any class, is about the outside."""

CODES: Mapping[str, About] = MappingProxyType({"permit-refused": About.ROW})
"""By the problem's code, before its status: a 403 that is about one permit and not about the key."""


def about(failure: Unreachable | Rejected) -> About:
    """What a failed call was about; no answer at all is never about the row."""
    if isinstance(failure, Unreachable):
        return About.OUTSIDE
    return CODES.get(failure.code) or STATUSES.get(failure.status, About.OUTSIDE)


def is_outside(answer: object) -> TypeGuard[Unreachable | Rejected]:
    """Whether this is a failure that says nothing about the row; a real answer is none."""
    return isinstance(answer, Unreachable | Rejected) and about(answer) is About.OUTSIDE

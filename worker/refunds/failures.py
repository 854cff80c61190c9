"""Classifies a failed call to the authority: about this one row, or outside (about every row). One table as data.

A failure outside costs a row only time: it is retried without limit and without counting an attempt. Only a failure that is
surely about the row may end it; what the table does not name is outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TypeGuard

from sentinel.client import Rejected, Unreachable


class FailureScope(StrEnum):
    """What a failure is about."""

    ROW = "row"
    OUTSIDE = "outside"


STATUSES: Mapping[int, FailureScope] = MappingProxyType(
    {
        400: FailureScope.ROW,  # the question itself is malformed, and asked again it is the same question
        409: FailureScope.ROW,  # the operation stands otherwise than the row assumes; still being decided comes as no answer
        410: FailureScope.ROW,  # its permit ran out before the start
        413: FailureScope.ROW,  # its own question is too large
        422: FailureScope.ROW,  # its key belongs to another operation
        401: FailureScope.OUTSIDE,  # the key is refused: replaced, over, or mistyped
        403: FailureScope.OUTSIDE,  # the key may not do this: scope, tenant, agent
        404: FailureScope.OUTSIDE,  # not the authority's answer to a business call: another server listens there
        405: FailureScope.OUTSIDE,
        429: FailureScope.OUTSIDE,  # too many calls
        503: FailureScope.OUTSIDE,  # the authority cannot record a decision now
    }
)
"""By status of an answer. What is not here, of any class, is about the outside."""

CODES: Mapping[str, FailureScope] = MappingProxyType({"permit-refused": FailureScope.ROW})
"""By the problem's code, before its status: a 403 that is about one permit and not about the key."""


def failure_scope(failure: Unreachable | Rejected) -> FailureScope:
    """What a failed call was about; no answer at all is never about the row."""
    if isinstance(failure, Unreachable):
        return FailureScope.OUTSIDE
    return CODES.get(failure.code) or STATUSES.get(failure.status, FailureScope.OUTSIDE)


def is_outside(answer: object) -> TypeGuard[Unreachable | Rejected]:
    """Whether this is a failure that says nothing about the row; a real answer is none."""
    return isinstance(answer, Unreachable | Rejected) and failure_scope(answer) is FailureScope.OUTSIDE

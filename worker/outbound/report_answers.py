"""What the authority's answer to a report of an outcome means, for refunds and for orders."""

from __future__ import annotations

from sentinel.client import Rejected

_FOR_GOOD = (400, 409, 422)
_CODES_FOR_GOOD = ("permit-refused",)
"""No operation was guarded under the report's key, or a bound field differs: the only 403 that is about the report itself."""


def is_refused_for_good(answer: Rejected) -> bool:
    """Whether the report is refused for its content: a retry would get the same answer, and a person must look.

    Any other refusal is about the worker's key or the authority's address, which can be corrected: the report is
    retried.
    """
    return answer.status in _FOR_GOOD or answer.code in _CODES_FOR_GOOD

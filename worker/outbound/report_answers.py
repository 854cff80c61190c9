"""What the authority's answer to a report of an outcome means, for refunds and for orders."""

from __future__ import annotations

from sentinel.client import Rejected

_FOR_GOOD = (400, 409, 422)
_CODES_FOR_GOOD = ("permit-refused",)
"""Nothing was guarded under its key, or a bound field differs: about the report, as no other 403 is."""


def is_refused_for_good(answer: Rejected) -> bool:
    """Whether the report is refused for what it says, so that another try is answered the same and a person must look.

    Anything else is about the worker's key or the address, which may be mended: it is sent again.
    """
    return answer.status in _FOR_GOOD or answer.code in _CODES_FOR_GOOD

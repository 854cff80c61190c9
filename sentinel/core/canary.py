"""Who belongs to the first few percent: the same accounts at every moment, in every process, on every machine.

An account's place is its SHA-256 with the switch's name, so each switch has another first percent, and raising the
percentage only ever adds accounts.
"""

from __future__ import annotations

import hashlib

_PARTS = 2**64


def in_canary(switch: str, account: str, percent: int) -> bool:
    """Whether the account is among the first `percent` (0 to 100) of the switch. 0 is nobody, 100 everybody.

    Anything below 0 counts as 0, above 100 as 100. Texts are compared as they are, letter for letter.
    """
    # Length first: ("a", "b.c") and ("a.b", "c") are different pairs. What no UTF-8 can spell still has a place.
    name, owner = (text.encode("utf-8", "surrogatepass") for text in (switch, account))
    digest = hashlib.sha256(b"canary/%d/%s/%s" % (len(name), name, owner)).digest()
    # In whole numbers: a rounded share would put an account on the edge here in and there out.
    return int.from_bytes(digest[:8], "big") * 100 < percent * _PARTS

"""Identifiers made here, not by the database: UUIDv7, so that keys grow with time and indexes stay warm (RFC 9562)."""

from __future__ import annotations

import os
import time
import uuid


def new_id() -> uuid.UUID:
    """A UUIDv7: 48 bits of milliseconds, 74 random bits."""
    random = int.from_bytes(os.urandom(10), "big")
    value = (time.time_ns() // 1_000_000) << 80
    value |= 0x7 << 76 | (random >> 68) << 64
    value |= 0x2 << 62 | (random & (1 << 62) - 1)
    return uuid.UUID(int=value)


def new_proof_id() -> str:
    """A proof pack's public name: "pf_" and 128 random bits, so that holding it is having been given it."""
    return "pf_" + os.urandom(16).hex()

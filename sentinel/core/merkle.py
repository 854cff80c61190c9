"""Incremental Merkle tree head of an append-only log (RFC 6962 §2.1).

Only the roots of the perfect subtrees are kept, one per set bit of the size, so that a log of any length can be
continued from a few hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TreeHead:
    """A log of `size` leaves; `peaks` are its perfect subtrees' roots, the largest first."""

    size: int = 0
    peaks: tuple[bytes, ...] = ()

    @property
    def root(self) -> bytes:
        """The Merkle tree hash over all leaves; for an empty log, the SHA-256 of the empty string."""
        if not self.peaks:
            return hashlib.sha256().digest()
        root = self.peaks[-1]
        for peak in reversed(self.peaks[:-1]):
            root = _node(peak, root)
        return root

    def extended(self, leaves: Iterable[bytes]) -> TreeHead:
        """Return the head after these leaves are appended."""
        size, peaks = self.size, list(self.peaks)
        for leaf in leaves:
            node = hashlib.sha256(b"\0" + leaf).digest()
            merged = size
            while merged & 1:
                node = _node(peaks.pop(), node)
                merged >>= 1
            peaks.append(node)
            size += 1
        return TreeHead(size, tuple(peaks))


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()

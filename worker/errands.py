"""What a worker does beside its rows: links to customers, notices after refunds. Slow outsides hold up no row for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Errand = Callable[[], object]
"""One round of something that is due; raises `LedgerUnavailable` when the database does not answer."""


class Errands:
    """Rounds of every errand, in order."""

    def __init__(self, errands: Sequence[Errand]) -> None:
        self._errands = tuple(errands)

    def run_due(self) -> None:
        """One round of each. Raises `LedgerUnavailable`."""
        for errand in self._errands:
            errand()

"""Loads the context of a run: rows with everything the ledger knows about them, and the action of their route."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from worker.refunds.confirmations import Confirmation, Confirmations
from worker.refunds.rows import KnownFacts, LedgerRow
from worker.refunds.workflow.context import RunContext
from worker.refunds.workflow.routes import Routes


class ContextLoader:
    """Makes contexts. `confirmations` None: there are no cards."""

    def __init__(self, routes: Routes, confirmations: Confirmations | None) -> None:
        self._routes, self._confirmations = routes, confirmations

    def contexts(self, rows: Sequence[LedgerRow], known: Mapping[str, KnownFacts]) -> list[RunContext]:
        """One per row, in order; `known` by ledger entry id. Raises `LedgerUnavailable`."""
        cards = self._cards(rows)
        return [
            RunContext(
                replace(row, action=self._routes.action_of(row.action, row.channel, row.scenario, row.mode)),
                known[row.ledger_entry_id],
                cards.get(row.ledger_entry_id),
            )
            for row in rows
        ]

    def _cards(self, rows: Sequence[LedgerRow]) -> dict[str, Confirmation]:
        if self._confirmations is None:
            return {}
        routes = {row.ledger_entry_id: self._routes.find(row.channel, row.scenario, row.mode) for row in rows}
        asking = [row_id for row_id, route in routes.items() if route is not None and route.confirm_card]
        return self._confirmations.latest(asking) if asking else {}

"""Refund rows: claimed from the ledger, decided by the authority, executed and reported."""

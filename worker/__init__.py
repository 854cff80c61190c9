"""The refund agent: turns ledger rows into executions, and only under the authority's decisions."""

"""`sentinel demo`: everything on one machine, with a demo ledger."""

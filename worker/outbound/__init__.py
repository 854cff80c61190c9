"""Everything that leaves the worker for a server that is not ours: one bounded HTTP client and what answers mean."""

"""Requests to servers that are not ours: one bounded HTTP exchange, and which addresses may be called."""

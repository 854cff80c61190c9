"""Notifying customers."""

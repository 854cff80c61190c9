"""Operators, their passwords, second factors and sessions."""

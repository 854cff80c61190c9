"""Processes and connections: gunicorn, an event loop in each process, bounds on connections."""

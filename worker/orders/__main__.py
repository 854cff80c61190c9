"""`python -m worker.orders`: the intake in the foreground, until SIGTERM or Ctrl-C."""

from worker.orders.cli import serve

if __name__ == "__main__":
    serve()

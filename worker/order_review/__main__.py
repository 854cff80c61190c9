"""`python -m worker.order_review`: the intake in the foreground, until SIGTERM or Ctrl-C."""

from worker.order_review.cli import serve

if __name__ == "__main__":
    serve()

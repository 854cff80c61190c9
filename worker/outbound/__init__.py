"""What answers of servers that are not ours mean to the worker: effects and chat completions."""

"""What every program shares: serving, HTTP, settings, logs."""

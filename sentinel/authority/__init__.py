"""The authority: what it decides, records and answers."""

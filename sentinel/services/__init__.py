"""What the authority does: one verb per file, one transaction each."""

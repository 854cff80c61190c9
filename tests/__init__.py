"""The tests, sorted by what they need."""

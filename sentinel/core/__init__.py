"""Pure values and functions: no database, no HTTP, no clock; the standard library and a JSON encoder."""

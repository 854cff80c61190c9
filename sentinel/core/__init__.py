"""Pure values and functions: no database, no HTTP, no clock; the standard library, a JSON encoder and itsdangerous."""

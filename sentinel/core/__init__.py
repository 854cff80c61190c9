"""Pure values and functions: no database, no HTTP, no clock; needs only the standard library, JSON encoders and itsdangerous."""

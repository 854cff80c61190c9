"""Pure values and functions: no database, no HTTP, no clock, standard library only."""

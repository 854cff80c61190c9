"""The authority's HTTP API: parse, one call, render."""

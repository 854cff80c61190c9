"""The authority's HTTP API: each route parses its request, makes one call, and renders the answer."""

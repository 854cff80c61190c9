"""The operators' pages and acts: (method, route) → the least role. Used by the test of roles, one line a route."""

PAGES: dict[tuple[str, str], str] = {
    ("POST", "/ops/sign-out"): "viewer",
    ("GET", "/ops/halts"): "viewer",
    ("POST", "/ops/halts"): "approver",
    ("POST", "/ops/halts/<halt_id>/lift"): "admin",
}

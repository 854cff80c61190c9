"""`sentinel mcp-proxy`: a proxy in front of an MCP server, whose tools run only under authority.

It holds the server's credential, which the agent does not have. `docs/mcp-proxy.md` describes it; wants the extra `mcp`. Only
`main` and the tests put it together, and nothing else imports it.
"""

"""`sentinel mcp-proxy`: a proxy in front of an MCP server, whose tools run only under authority.

The proxy holds the server's credential, which the agent does not have. `docs/mcp-proxy.md` describes it. It needs the
extra `mcp`. Only `main` and the tests assemble it; of other packages only `sentinel.cli.mcp_proxy` imports it.
"""

"""HTTP for every program: reading requests strictly, problem documents, OpenAPI, rate limits."""

"""The table from tools to actions (`policies/tools.yaml`), for adapters and proxies between an agent and its tools.

Runs in the agent's process: it needs PyYAML and cel-expr-python, and no database. `docs/tools.md` describes the file.
"""

from sentinel.tools.mapping import ToolCall, ToolRefused, ToolTable
from sentinel.tools.parse import read_tool_table

__all__ = ["ToolCall", "ToolRefused", "ToolTable", "read_tool_table"]

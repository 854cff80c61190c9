"""`tools.yaml` as a server reads it: again whenever it changed. A faulty file maps no tool, so that every call is denied."""

from __future__ import annotations

from pathlib import Path

import structlog

from sentinel.policy.errors import PolicyError
from sentinel.policy.source import ReloadedFile
from sentinel.tools.mapping import ToolTable
from sentinel.tools.parse import FILE_NAME, read_tool_table

log = structlog.get_logger("sentinel.tools")


def tool_table_file(directory: Path) -> ReloadedFile[ToolTable]:
    """The table of a policies folder; empty where the file is missing or faulty."""
    return ReloadedFile(directory / FILE_NAME, _load)


def _load(path: Path) -> ToolTable:
    if not path.exists():
        return ToolTable(())
    try:
        return read_tool_table(path)
    except PolicyError as error:
        log.error("tools_file_unusable", fault=str(error))
        return ToolTable(())

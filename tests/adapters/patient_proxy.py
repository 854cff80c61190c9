"""The proxy, which waits for an authority, a server or an issuer that stands still as long as others keep the machine busy.

python -m tests.adapters.patient_proxy OPTIONS
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from types import FunctionType
from typing import cast

from sentinel.client import AsyncClient, Client
from sentinel.mcp_proxy import access_tokens, calls, options, upstream
from sentinel.mcp_proxy import main as program

AUTHORITY_SECONDS = 60.0


def be_patient() -> None:
    """From now on in this process: none of its waits for another process is over before one that stands still goes on."""
    for kind in (Client, AsyncClient):
        cast(FunctionType, kind.__init__).__kwdefaults__["timeout_seconds"] = AUTHORITY_SECONDS  # type: ignore[index]
    calls._MOST_START_SECONDS = AUTHORITY_SECONDS
    upstream.CONNECT_SECONDS = 60.0
    access_tokens._FETCH_SECONDS = 20.0  # a test waits for the end of this one


def patient_options(arguments: Sequence[str] | None) -> options.Options:
    """The options as given; no option says how long the authority is waited for."""
    return dataclasses.replace(options.read_options(arguments), authority_seconds=AUTHORITY_SECONDS)


def main() -> int:
    """Run the proxy."""
    be_patient()
    setattr(program, "read_options", patient_options)
    return program.main()


if __name__ == "__main__":
    sys.exit(main())

"""How a driver of others' clients is spoken to: a JSON command per line of standard input, a JSON answer per line of standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def answer_lines(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer until standard input ends; an exception is the answer {"raised"}. What the clients print goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        try:
            found = answer(json.loads(line))
        except Exception as error:
            found = {"raised": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), file=answers, flush=True)

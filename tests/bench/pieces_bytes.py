"""What one guard costs the authority between bytes and row, and between row and bytes: CPU of this thread, no server, no commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from sentinel.authority.api.guard import to_answer, to_asked
from sentinel.authority.decisions import record_decisions
from sentinel.authority.guard import decided_row
from sentinel.platform.http.bodies import read_object
from tests.bench.templates import guards

if TYPE_CHECKING:
    from tests.bench.pieces import Place

BATCH = 50
One, Other = TypeVar("One"), TypeVar("Other")


def measure(here: Place, number: int) -> None:
    """Print what each part costs a request."""
    template = guards("unused", account="acct_<account>")
    bodies = [template.at(place).partition(b"\r\n\r\n")[2] for place in range(number)]
    objects = timed("bytes → object", read_object, bodies)
    asked = timed("object → operation", to_asked, objects)
    rows = timed(
        "operation → decided row",
        lambda one: decided_row(
            here.authority, here.caller, one.operation, has_start_step=one.has_start_step, elapsed_ms=1
        ),
        asked,
    )
    recorded = [
        one for first in range(0, number, BATCH) for one in record_decisions(here.pool, rows[first : first + BATCH])
    ]  # type: ignore[arg-type]
    answers = timed("committed row → bytes", lambda one: to_answer(here.caller, one, here.authority.permits), recorded)
    if not all(b'"decision":"ALLOW"' in answer for answer in answers):
        raise SystemExit("what was timed is not what a guard does: not every answer is ALLOW")


def timed(name: str, call: Callable[[One], Other], given: Sequence[One]) -> list[Other]:
    """Every result; prints microseconds a call, in the best third and in the middle of slices of `BATCH` calls."""
    made, slices = [], []
    for first in range(0, len(given), BATCH):
        some = given[first : first + BATCH]
        began = time.thread_time()
        made += [call(one) for one in some]
        slices.append(1e6 * (time.thread_time() - began) / len(some))
    ordered = sorted(slices)
    best = ordered[: max(1, len(ordered) // 3)]
    print(
        f"{name:36} CPU {sum(best) / len(best):7.1f} us at best {ordered[len(ordered) // 2]:7.1f} in the middle (n={len(made)})",
        flush=True,
    )
    return made

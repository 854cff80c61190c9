"""Step-up within the form of a sensitive action: the template's field `ui.step_up` is checked here.

def do() -> str:
    actor().must_be("approver")
    prove(context)
    …the act
"""

from __future__ import annotations

import dataclasses

from flask import g, request

from ops_console import metrics
from ops_console.accounts import step_up
from ops_console.context import ConsoleContext
from sentinel.core.errors import InvalidInput, RateLimited


def needs_proof() -> bool:
    """Whether a form must ask for a proof: the session had no step-up in the last minutes, however it was opened."""
    return "signed_in" in g and step_up.needs_proof(g.signed_in, by_form=True)


def prove(context: ConsoleContext) -> None:
    """Check the form's `proof`: a code if there is a second factor, else the password. Does nothing if none is needed.

    A right proof counts for the session's next minutes, even if the action is then refused. Raises `InvalidInput`
    (proof) if it is missing or wrong, `RateLimited` after too many wrong ones.
    """
    if not needs_proof():
        return
    given = request.form.getlist("proof")
    if len(given) != 1 or not given[0].strip() or len(given[0]) > 256:
        raise InvalidInput.of("proof", "is needed for this")
    try:
        step_up.step_up(
            context.pool,
            g.signed_in,
            proof=given[0],
            address=request.remote_addr or "unknown",
            authenticator=context.authenticator,
        )
    except (InvalidInput, RateLimited) as error:
        metrics.STEP_UPS.labels("wrong" if isinstance(error, InvalidInput) else error.code).inc()
        raise
    metrics.STEP_UPS.labels("proved").inc()
    g.signed_in = dataclasses.replace(g.signed_in, proved=True)

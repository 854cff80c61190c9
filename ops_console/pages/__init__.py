"""The operators' pages under `/ops`: rendered on the server and usable without scripts, which only add live updates."""

from __future__ import annotations

from flask import Blueprint, Response, g
from werkzeug.exceptions import HTTPException

from ops_console.context import ConsoleContext
from ops_console.identity import FormOfAnotherSession, is_browser_visit
from ops_console.pages import (
    account,
    approval_batch,
    approvals,
    events,
    halts,
    in_doubt,
    keys,
    ledger,
    operators,
    orders,
    overview,
    policies,
    shell,
    sign_in,
    webhooks,
)
from sentinel.core.errors import SentinelError, Unauthenticated
from sentinel.platform.http.problems import http_response, problem_response


def blueprint(context: ConsoleContext) -> Blueprint:
    """The blueprint with every page; each module adds its own routes."""
    pages = Blueprint("pages", __name__, url_prefix="/ops")
    for part in (
        sign_in,
        halts,
        account,
        operators,
        policies,
        in_doubt,
        events,
        keys,
        webhooks,
        overview,
        approval_batch,
        approvals,
        ledger,
        orders,
    ):
        part.routes(pages, context)

    @pages.errorhandler(SentinelError)
    def refused(error: SentinelError) -> Response:
        if isinstance(error, Unauthenticated):
            # Without a sign-in every address gets the same answer (`identity.install`).
            return problem_response(error)
        if isinstance(error, FormOfAnotherSession):
            return shell.form_rerendered(context, error)
        return shell.not_possible(context, error)

    @pages.app_errorhandler(404)
    def nothing_there(error: HTTPException) -> Response:
        """Answer 404: with a page for a signed-in person in a browser, with a problem document for everybody else."""
        if "signed_in" not in g or not is_browser_visit():
            return http_response(error)
        refusal = shell.FormRefusal("There is no page at this address.", {}, 404)
        return shell.page(context, "error.html", title="Page not found", refusal=refusal)

    return pages

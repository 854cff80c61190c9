"""Redirects from the operators' listener to the public one."""

from __future__ import annotations

from flask import Blueprint, redirect, request
from werkzeug.wrappers import Response as AnyResponse

PLACES = ("/live", "/live/<anything:rest>", "/verify/", "/verify/<anything:rest>", "/confirm/", "/confirm/<anything:rest>", "/ops/api/live/<anything:rest>")  # fmt: skip


def routes(blueprint: Blueprint, public_origin: str) -> None:
    """Redirect public paths to the public listener; the method and the body are kept."""

    def elsewhere(rest: str = "") -> AnyResponse:
        return redirect(public_origin + request.full_path.rstrip("?"), 307)

    for place in PLACES:
        blueprint.add_url_rule(place, "elsewhere", elsewhere, methods=["GET", "POST"])

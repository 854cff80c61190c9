"""The page `/docs` that shows an API's document with a vendored viewer of `/openapi.json`, and the redirect from `/`.

The page's Content-Security-Policy admits nothing from elsewhere. The page shows only what the document says, so it is
as public as the document.
"""

from __future__ import annotations

import hashlib
import mimetypes
from functools import cache
from pathlib import Path

from flask import Blueprint, Response, abort, redirect, render_template, request
from werkzeug.wrappers import Response as AnyResponse

from sentinel.platform.http.openapi import documented

FILES = Path(__file__).with_name("static")
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@cache
def _contents() -> dict[str, tuple[bytes, str]]:
    """Each file's content and entity tag, by name. Read once: answers that are slow to be taken share it, and the largest has 1.7 MB."""
    read = {path.relative_to(FILES).as_posix(): path.read_bytes() for path in FILES.rglob("*") if path.is_file()}
    return {name: (content, hashlib.sha256(content).hexdigest()) for name, content in read.items()}


def _file(name: str) -> Response:
    if name not in _contents():
        abort(404)
    content, tag = _contents()[name]
    response = Response(content, mimetype=mimetypes.guess_type(name)[0] or "application/octet-stream")
    response.headers["Cache-Control"] = "no-cache"
    response.set_etag(tag)
    response.make_conditional(request)
    return response


def docs_page(title: str, *, home: str | None = None) -> Blueprint:
    """The blueprint of `/docs` and the files below it; `title` is the program's name.

    `/` redirects to `home`; without `home` there is no such page, because an API's clients need no redirect.
    """
    page = Blueprint("docs", __name__, template_folder="templates")
    page.add_url_rule("/docs/static/<path:name>", "static", _file)

    @page.get("/docs")
    @documented(
        "The documentation as a web page", responses={200: ("The page.", {"type": "string"})}, content_type="text/html"
    )
    def docs() -> Response:
        response = Response(render_template("docs.html", title=title), content_type="text/html; charset=utf-8")
        response.headers["Content-Security-Policy"] = CSP
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    if home is not None:

        @page.get("/")
        @documented(
            "Redirects a browser to the program's first page", responses={302: ("The redirect.", {"type": "string"})}, content_type="text/html"
        )  # fmt: skip
        def first_page() -> AnyResponse:
            return redirect(home)

    return page

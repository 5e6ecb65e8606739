"""The page over HTTP, for this machine alone.

By Flask, which does routes and queries and no more: the page is a form whose GET query is its whole state, so that its address is all
there is to share, and pages are rendered as those of reports are.
"""

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from sim.errors import ConfigError, SimError
from sim.report.page.render import plotly_file, rendered
from sim.web.answer import Answers
from sim.web.controls import configuration_controls, load_controls
from sim.web.what_if import COMPARED, SECOND, WhatIf

if TYPE_CHECKING:
    from flask import Flask, Response
    from werkzeug.serving import BaseWSGIServer

TEMPLATES = Path(__file__).with_name("templates")
HOST = "127.0.0.1"
HERE = frozenset([HOST, "localhost"])
"""Hosts that are answered for: a page elsewhere whose name is made to lead here (DNS rebinding) must not read files by it."""


def serving(start: WhatIf, port: int) -> "BaseWSGIServer":
    """A server at that port, or at any free one for 0, that begins with `start`. Raises ConfigError where the port is taken, and without Flask."""
    try:
        from werkzeug.serving import WSGIRequestHandler, make_server
    except ImportError:
        raise ConfigError("the page needs Flask; install `servecast[web]`.") from None

    class Quiet(WSGIRequestHandler):
        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Nothing is said of each request."""

    app = application(start)
    try:
        return make_server(HOST, port, app, threaded=True, request_handler=Quiet)
    except (OSError, SystemExit):  # werkzeug's way to say that a port is taken
        raise ConfigError(f"port {port} of this machine cannot be had; give --port another, or 0 for any.") from None


def application(start: WhatIf) -> "Flask":
    """The page at `/`, what it swaps in at `/answer`, and plotly's script."""
    from flask import Flask, Response, abort, request, send_file

    app, answers = Flask(__name__, static_folder=None), Answers()

    def answer() -> str:
        try:
            found = answers.to(WhatIf.of_query(request.args))
        except SimError as error:
            return rendered("refused.html", TEMPLATES, sentence=str(error))
        return rendered("answer.html", TEMPLATES, sections=found.sections, took=found.took)

    @app.before_request
    def only_from_here() -> None:
        if request.host.partition(":")[0] not in HERE:
            abort(403)

    @app.get("/")
    def page() -> "Response | str":
        if not request.args:
            return Response(status=302, headers={"Location": f"/?{start.to_query()}"})
        return rendered(
            "what_if.html",
            TEMPLATES,
            given=defaultdict(str, request.args.items()),
            load=load_controls(),
            configuration=configuration_controls(),
            second=SECOND,
            compared=COMPARED,
            answer=answer(),
        )

    @app.get("/answer")
    def part() -> str:
        return answer()

    @app.get("/plotly.min.js")
    def plotly() -> "Response":
        return send_file(plotly_file(), max_age=86_400)

    return app

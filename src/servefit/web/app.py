"""The page: Starlette, rendered on the server, on the user's own folder of runs, plans and decisions."""

import socket
from collections.abc import Collection
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from servefit.charts import embed
from servefit.charts.figures import Chart
from servefit.errors import ServefitError
from servefit.learn.glossary import find_term
from servefit.units import fmt, fmt_bytes, fmt_percent, fmt_s
from servefit.web import drill, overview, plan, runs
from servefit.web.desk import Desk
from servefit.web.guard import Guard
from servefit.web.words import anchor

HERE = Path(str(files("servefit.web")))
VENDOR = Path(str(files("servefit.charts"))) / "vendor"


def create_app(folder: Path, *, hosts: Collection[str], token: str | None = None) -> Starlette:
    """The application over `folder`, answering only at `hosts` (host:port), with a token where it faces the LAN."""
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "num": fmt,
        "sec": fmt_s,
        "bytes": fmt_bytes,
        "percent": fmt_percent,
        "anchor": anchor,
        "term": find_term,
    }
    templates.globals |= {"figure": _figure}
    desk = Desk(folder=folder, templates=templates)
    app = Starlette(
        routes=[
            *overview.routes(),
            *drill.routes(),
            *runs.routes(),
            *plan.routes(),
            Route("/static/draw.js", _draw),
            Route("/health", _health),
            Mount("/static/vendor", StaticFiles(directory=VENDOR)),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ],
        middleware=[Middleware(Guard, hosts=hosts, token=token)],
        exception_handlers={ServefitError: _sentence, 404: _missing},
    )
    app.state.desk = desk
    return app


def listen(host: str, port: int) -> socket.socket:
    """A socket to serve on. Raises OSError where the port is taken.

    It names its protocol, since asyncio turns Nagle's algorithm off only for a socket that says it is TCP: without that,
    every answer in two parts waits 40 ms for the browser's delayed acknowledgement.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(128)
    except OSError:
        sock.close()
        raise
    return sock


def _figure(chart: Chart) -> Markup:
    return Markup(embed.figure_html(chart, anchor=f"chart-{chart.name}"))  # noqa: S704 - figure_html escapes


async def _draw(_: Request) -> Response:
    return Response(embed.DRAW_JS, media_type="text/javascript")


async def _health(_: Request) -> Response:
    return Response("ok\n", media_type="text/plain")


async def _sentence(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServefitError), "only our own errors come here"
    return _trouble(request, 400, error.message, error.hint)


async def _missing(request: Request, _: Exception) -> Response:
    return _trouble(request, 404, f"There is no page {request.url.path}.", "The menu above has them all.")


def _trouble(request: Request, status: int, message: str, hint: str) -> Response:
    desk: Desk = request.app.state.desk
    return desk.page(request, "trouble.html", title="Something is wrong", status=status, message=message, hint=hint)

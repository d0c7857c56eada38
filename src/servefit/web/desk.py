"""What every page needs: the user's folder, the renderer, and what is remembered between requests."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse

from servefit import __version__
from servefit.web.live import Live
from servefit.web.timing import Timings
from servefit.web.watching import Watcher
from servefit.web.words import Words

PAGES = (
    ("/", "Overview"),
    ("/runs", "Runs"),
    ("/plan", "Plan"),
    ("/learn", "Drill"),
    ("/whiteboard", "Whiteboard"),
    ("/say", "Say it"),
    ("/glossary", "Glossary"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What every page needs: the user's folder, the renderer, and what is remembered between requests."""

    folder: Path
    templates: Environment
    timings: Timings = field(default_factory=Timings)
    watcher: Watcher = field(default_factory=Watcher)
    live: Live = field(default_factory=Live)

    def page(self, request: Request, template: str, *, title: str, status: int = 200, **values: Any) -> HTMLResponse:
        """One page from its template, everything escaped; the words that it marks come with their definitions."""
        values = {"charted": False, **values}
        values |= {"title": title, "path": request.url.path, "pages": PAGES, "version": __version__, "lexicon": Words()}
        return HTMLResponse(self.templates.get_template(template).render(values), status_code=status)

    def fragment(self, template: str, **values: Any) -> str:
        """A part of a page, for a script to put in its place."""
        return self.templates.get_template(template).render(values | {"lexicon": Words(bare=True)})


def desk_of(request: Request) -> Desk:
    """The application's desk."""
    desk = request.app.state.desk
    assert isinstance(desk, Desk), "create_app sets the desk"
    return desk

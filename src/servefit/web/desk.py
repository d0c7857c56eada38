"""What every page needs: the user's folder and the renderer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse

from servefit import __version__

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
    """What every page needs: the user's folder and the renderer."""

    folder: Path
    templates: Environment

    def page(self, request: Request, template: str, *, title: str, status: int = 200, **values: Any) -> HTMLResponse:
        """One page from its template, everything escaped."""
        values |= {"title": title, "path": request.url.path, "pages": PAGES, "version": __version__}
        return HTMLResponse(self.templates.get_template(template).render(values), status_code=status)


def desk_of(request: Request) -> Desk:
    """The application's desk."""
    desk = request.app.state.desk
    assert isinstance(desk, Desk), "create_app sets the desk"
    return desk

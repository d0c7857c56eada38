"""Plans and decisions in the folder: written from the live plan, listed, shown, and checked as `verify` does."""

import re
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from servefit.errors import AnswerIsNo, ServefitError
from servefit.files import read_text
from servefit.plan.edges import show
from servefit.plan.files import load_plan, save_plan
from servefit.web.desk import desk_of
from servefit.web.picture import Ask, spec_of
from servefit.web.shelf import inside

if TYPE_CHECKING:
    from servefit.plan.plan import Candidate

PLANNED = 1000
"""Requests of each of the planner's schedules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """What the author adds."""

    despite: str = ""
    decider: str = ""


def write_up(ask: Ask, folder: Path, author: Author) -> str:
    """Plan around the configuration (its policy, all seats to both edges), decide on it, and return decision.md's path.

    Raises AnswerIsNo where it does not pass and no reason is given to take it all the same.
    """
    from servefit.api import write_decision
    from servefit.decide.choice import choose
    from servefit.plan.search import make_plan

    spec = spec_of(ask, seeds=3, n=PLANNED)
    plan = make_plan(spec)
    if not any(c.seats == ask.seats for c in plan.candidates):
        plan = make_plan(replace(spec, seats=tuple(sorted({ask.seats, *(c.seats for c in plan.candidates)}))))
    mine = next(c for c in plan.candidates if c.seats == (1 if ask.policy == "none" else ask.seats))
    chosen = choose(plan, mine.id, despite=author.despite)
    home = _new_folder(folder, ask)
    save_plan(plan, home / "plan.json")
    write_decision(
        home / "plan.json",
        home / "decision.md",
        candidate=chosen.id,
        despite=author.despite,
        deciders=(author.decider,) if author.decider.strip() else (),
    )
    return (home / "decision.md").relative_to(folder).as_posix()


def _new_folder(folder: Path, ask: Ask) -> Path:
    name = re.sub(r"[^\w.-]+", "-", f"{ask.model}-{ask.device}-{ask.policy}-{ask.seats}")[:80]
    home, number = folder / "plans" / name, 2
    while home.exists():
        home, number = folder / "plans" / f"{name}-{number}", number + 1
    home.mkdir(parents=True)
    return home


def plan(request: Request) -> Response:
    """A plan: its answer, the checks of the pick, every candidate, the edges, what it rests on."""
    desk = desk_of(request)
    path = request.path_params["path"]
    at = inside(desk.folder, path)
    if at.name != "plan.json":
        raise HTTPException(404)
    made = load_plan(at)
    best = made.recommended or made.nearest
    chosen = made.candidate(best.id) if best else None
    return desk.page(
        request,
        "paper_plan.html",
        title=made.spec.name or path.removesuffix("/plan.json"),
        plan=made,
        chosen=chosen,
        candidates=sorted(made.candidates, key=_order)[:60],
        show=show,
        file=path,
    )


def _order(c: "Candidate") -> tuple[int, str, str, int]:
    return ({"pass": 0, "too close to call": 1}.get(c.verdict, 2), c.device, c.policy, c.seats)


def decision(request: Request) -> Response:
    """A decision: its text, and whether every number in it still holds."""
    from servefit.decide.verify import verify

    desk = desk_of(request)
    path = request.path_params["path"]
    at = inside(desk.folder, path)
    if at.name != "decision.md":
        raise HTTPException(404)
    text = read_text(at, max_bytes=4 << 20)
    report, trouble = None, ""
    try:
        report = verify(at)
    except (ServefitError, AnswerIsNo) as error:
        trouble = f"{error.message} {error.hint}".strip().replace(f"{desk.folder}/", "")
    return desk.page(
        request,
        "paper_decision.html",
        title=_title(text) or path,
        text=Markup(to_html(text)),  # noqa: S704 - markdown-it escapes raw HTML
        report=report,
        trouble=trouble,
        file=path,
        plan=_plan_beside(desk.folder, path),
    )


def _title(text: str) -> str:
    line = next((line[2:] for line in text.splitlines() if line.startswith("# ")), "")
    return re.sub(r"<!--.*?-->|[`*_]", "", line).strip()


def _plan_beside(folder: Path, path: str) -> str:
    beside = path.removesuffix("decision.md") + "plan.json"
    return beside if (folder / beside).is_file() else ""


REGION = '<div class="scroll" tabindex="0" role="region" aria-label="Table {}"><table>'


def to_html(text: str) -> str:
    """The decision's Markdown as HTML: raw HTML in it is shown as text, its comments and front matter are left out."""
    from markdown_it import MarkdownIt

    body = re.sub(r"\A---\n.*?\n---\n", "", text, count=1, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r"^# .*$", "", body, count=1, flags=re.MULTILINE)
    html: str = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image").render(body)
    html = html.replace("<pre>", '<pre tabindex="0">')
    number = count(1)  # each region has a name of its own: a screen reader lists them
    opened = re.sub("<table>", lambda _: REGION.format(next(number)), html)
    return opened.replace("</table>", "</table></div>")

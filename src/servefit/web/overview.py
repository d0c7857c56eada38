"""Overview: the steps, the learner's numbers, and what is done, computed from the files and never ticked by hand."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from servefit.errors import ServefitError
from servefit.files import read_json, write_json
from servefit.learn.numbers import all_fields, collect, tell, typed_value
from servefit.web.desk import desk_of
from servefit.web.shelf import all_decisions

TYPED = Path("learn") / "numbers.json"
DAY = (
    "memory_gb",
    "bandwidth_gb_per_s",
    "ceiling_tok_per_s",
    "ttft_short_ms",
    "ttft_long_ms",
    "itl_ms",
    "hosted_ttft_ms",
)
"""The seven fields of the day's page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One point of "done when": whether it holds, and what would make it hold."""

    text: str
    holds: bool
    todo: str
    href: str = ""
    """Where the page shows it; "" where it shows none."""


def routes() -> list[Route]:
    """The overview and its form."""
    return [Route("/", show), Route("/numbers", save, methods=["POST"])]


def typed_numbers(folder: Path) -> dict[str, float]:
    """What was typed by hand; damaged or foreign files count as nothing typed."""
    try:
        value = read_json(folder / TYPED)
    except ServefitError:
        return {}
    names = {f.name for f in all_fields()}
    items = value.items() if isinstance(value, dict) else ()
    return {
        k: float(v) for k, v in items if k in names and isinstance(v, int | float) and not isinstance(v, bool) and v > 0
    }


def done_when(folder: Path) -> list[Done]:
    """What a first day leaves behind, looked up in the folder."""
    numbers = collect(folder)
    bill = _bill_is_empty(folder / "bill.json")
    decisions = all_decisions(folder)
    return [
        Done(
            text="A row for a short prompt",
            holds=numbers["ttft_short_ms"].origin == "run",
            todo="servefit measure TARGET --isl 12",
        ),
        Done(
            text="A row for a long prompt",
            holds=numbers["ttft_long_ms"].origin == "run",
            todo="servefit measure TARGET --isl 8000",
        ),
        Done(
            text="A row for a hosted model",
            holds=numbers["hosted_ttft_ms"].origin == "run",
            todo="servefit measure https://HOST/v1 --model NAME",
        ),
        Done(
            text="The machine is known",
            holds=numbers["memory_gb"].origin == "check",
            todo="servefit check --json > check.json",
        ),
        Done(
            text="A decision is written",
            holds=bool(decisions),
            todo="servefit plan, then servefit decide",
            href=f"/decisions/{quote(decisions[0].path)}" if decisions else "",
        ),
        Done(text="Nothing is still billing", holds=bill, todo="servefit bill live --json > bill.json"),
    ]


def _bill_is_empty(path: Path) -> bool:
    """True only where every account was asked and nothing runs; an error or an unknown state is not "nothing"."""
    try:
        value = read_json(path)
    except ServefitError:
        return False
    return isinstance(value, dict) and value.get("live") == [] and not value.get("could_not_ask")


async def show(request: Request) -> Response:
    """The overview."""
    desk = desk_of(request)
    return desk.page(request, "overview.html", title="Overview", error=None, **_shown(desk.folder))


def _shown(folder: Path) -> dict[str, Any]:
    """The day's numbers, each with what it means, and what is done."""
    numbers = collect(folder, typed=typed_numbers(folder))
    meanings = {name: tell(numbers[name].field.meaning, numbers, where="numbers.toml").text for name in DAY}
    return {"numbers": [numbers[name] for name in DAY], "meanings": meanings, "done": done_when(folder)}


async def save(request: Request) -> Response:
    """Keep what was typed; an empty field goes back to the run or the example."""
    desk = desk_of(request)
    form = await request.form()
    typed = typed_numbers(desk.folder)
    fields = {f.name: f for f in all_fields()}
    try:
        for name, text in form.items():
            if name not in fields or not isinstance(text, str):
                continue
            if text.strip():
                typed[name] = typed_value(fields[name], text)
            else:
                typed.pop(name, None)
    except ServefitError as error:
        return desk.page(request, "overview.html", title="Overview", status=400, error=error, **_shown(desk.folder))
    write_json(desk.folder / TYPED, json.loads(json.dumps(typed)))
    return RedirectResponse("/#numbers", status_code=303)

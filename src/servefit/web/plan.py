"""The live plan: choose, move, watch the checks follow; the state is in the address; written up with one button."""

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from servefit.calibrate.calibration import load_calibration
from servefit.engine.config import POLICY_NAMES
from servefit.errors import ServefitError
from servefit.facts.devices import all_devices, find_device
from servefit.facts.models import all_models, find_model
from servefit.facts.precisions import PRECISIONS
from servefit.plan.bases import THIS_MACHINE
from servefit.plan.edges import show
from servefit.plan.spec import GivenDevice
from servefit.units import parse_plain
from servefit.web import papers
from servefit.web.desk import Desk, desk_of
from servefit.web.picture import Ask, Picture, draw
from servefit.web.shelf import all_calibrations, all_decisions, all_plans

MEASURED = "measured:"
"""A device of the list that is a calibration in the folder: measured:PATH."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slider:
    """One number of the form: its range, and whether its slider is logarithmic."""

    name: str
    label: str
    unit: str
    low: float
    high: float
    usual: float
    log: bool = True
    whole: bool = True


SLIDERS = (
    Slider(name="seats", label="Seats", unit="requests at once", low=1, high=256, usual=32),
    Slider(name="replicas", label="Replicas", unit="copies", low=1, high=64, usual=1),
    Slider(name="rate", label="Traffic", unit="requests a second", low=0.05, high=200, usual=4, whole=False),
    Slider(name="users", label="Users", unit="each asks again", low=1, high=1000, usual=32),
    Slider(name="isl", label="Prompt", unit="tokens", low=16, high=32768, usual=512),
    Slider(name="osl", label="Answer", unit="tokens", low=2, high=4096, usual=256),
    Slider(name="ttft", label="TTFT at most", unit="ms", low=10, high=20000, usual=500),
    Slider(name="tpot", label="TPOT at most", unit="ms", low=1, high=500, usual=30),
    Slider(name="goodput", label="Goodput at least", unit="%", low=50, high=100, usual=99, log=False,
           whole=False),
)  # fmt: skip
TRAFFIC = SLIDERS[:6]
TARGETS = SLIDERS[6:]
USUAL = {
    "model": "llama-3.1-8b", "device": "a100-80gb", "precision": "bf16", "policy": "chunked", "tp": "1", "load": "rate",
}  # fmt: skip
SPREADS = ("1", "2", "4", "8")
"""Devices that one copy is spread over."""
LOADS = {"rate": "at a rate (open loop)", "users": "from users (closed loop)"}
"""Open and closed loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The form's values as text, and what was wrong with them."""

    values: dict[str, str]
    numbers: dict[str, float]
    trouble: str = ""


def routes() -> list[Route]:
    """The live plan, and the papers in the folder."""
    return [
        Route("/plan", page),
        Route("/plan/picture", picture),
        Route("/plan/write", write, methods=["POST"]),
        Route("/plans/{path:path}", papers.plan),
        Route("/decisions/{path:path}", papers.decision),
    ]


def chosen(given: QueryParams) -> Chosen:
    """The form's values; what cannot be read or is out of range goes back to its usual value, with a sentence."""
    values = {name: str(given.get(name, usual))[:300] for name, usual in USUAL.items()}
    numbers, trouble = {}, ""
    for s in SLIDERS:
        text = given.get(s.name, "")[:40]
        value = s.usual
        if text.strip():
            try:
                value = parse_plain(text, s.unit)
                if not s.low <= value <= s.high:
                    raise ServefitError(f"{s.label} is {text}; it goes from {s.low:g} to {s.high:g} {s.unit}.")
            except ServefitError as error:
                trouble, value = trouble or error.message, s.usual
        numbers[s.name] = float(round(value)) if s.whole else value
    if values["policy"] not in POLICY_NAMES:
        trouble, values["policy"] = trouble or f"'{values['policy']}' is no batching policy.", USUAL["policy"]
    if values["precision"] not in PRECISIONS:
        trouble, values["precision"] = trouble or f"'{values['precision']}' is no precision.", USUAL["precision"]
    for name, choices in (("tp", SPREADS), ("load", tuple(LOADS))):
        if values[name] not in choices:
            trouble = trouble or f"{name} is '{values[name]}'; it is one of {', '.join(choices)}."
            values[name] = USUAL[name]
    values |= {name: f"{number:g}" if number < 1e5 else f"{number:.0f}" for name, number in numbers.items()}
    return Chosen(values=values, numbers=numbers, trouble=trouble)


def ask_of(desk: Desk, made: Chosen) -> Ask:
    """The question that the form asks. Raises ServefitError for a model, device or calibration that is not there."""
    numbers = made.numbers
    model = find_model(_name(made.values["model"])).name
    device, calibration, given = made.values["device"], "", None
    if device.startswith(MEASURED):
        device, calibration, given = _measured(desk.folder, device.removeprefix(MEASURED))
    else:
        device = find_device(_name(device)).name
    return Ask(
        model=model,
        device=device,
        calibration=calibration,
        given=given,
        precision=made.values["precision"],
        policy=made.values["policy"],
        seats=int(numbers["seats"]),
        replicas=int(numbers["replicas"]),
        tp=int(made.values["tp"]),
        users=int(numbers["users"]) if made.values["load"] == "users" else 0,
        rate_req_per_s=numbers["rate"],
        isl=int(numbers["isl"]),
        osl=int(numbers["osl"]),
        ttft_s=numbers["ttft"] / 1e3,
        tpot_s=numbers["tpot"] / 1e3,
        goodput_frac=numbers["goodput"] / 100,
    )


def _name(text: str) -> str:
    """A catalogue name: what would be read as a path is refused, since the page opens nothing but the data folder."""
    if set(text) & set("/\\") or text.endswith((".toml", ".json", ".gguf", ".safetensors")) or Path(text).is_dir():
        raise ServefitError(f"'{text}' is not in the catalogue.", hint="Choose one of the list.")
    return text


def _measured(folder: Path, path: str) -> tuple[str, str, GivenDevice | None]:
    """Device name, calibration path and (where no catalogue has it) the machine's own figures."""
    if path not in {f.path for f in all_calibrations(folder)}:
        raise ServefitError(f"There is no calibration {path}.", hint="servefit calibrate makes one.")
    at = folder / path
    named = load_calibration(at).device
    try:
        return find_device(named).name, str(at), None
    except ServefitError:
        return THIS_MACHINE, str(at), _this_machine()


@cache
def _this_machine() -> GivenDevice:
    """The machine that the page runs on, by its own figures, looked at once."""
    from servefit.check.checkup import this_device

    machine = this_device()
    return GivenDevice(
        name=THIS_MACHINE,
        kind=machine.kind,
        memory_bytes=machine.memory_bytes,
        bandwidth_bytes_per_s=machine.bandwidth_bytes_per_s,
        flop_per_s=machine.flop_per_s,
        usable_memory_frac=machine.usable_memory_frac,
        origin=f"this machine, bandwidth {machine.cite('bandwidth_bytes_per_s').source}",
    )


async def page(request: Request) -> Response:
    """The form with its result; with `show=all` (the button of a browser without script) also band, curve and roof."""
    desk = desk_of(request)
    made = chosen(request.query_params)
    whole = request.query_params.get("show") == "all"
    seen: Picture | None = None
    trouble = made.trouble
    try:
        ask = await run_in_threadpool(ask_of, desk, made)
        seen = await run_in_threadpool(partial(draw, ask, whole=whole))
    except ServefitError as error:
        trouble = f"{error.message} {error.hint}".strip()
    lists = await run_in_threadpool(_lists, desk.folder)
    return desk.page(
        request,
        "plan.html",
        title="Plan",
        status=400 if trouble else 200,
        made=made,
        traffic=TRAFFIC,
        targets=TARGETS,
        policies=POLICY_NAMES,
        spreads=SPREADS,
        loads=LOADS,
        precisions=[name for name, p in PRECISIONS.items() if p.name == name],
        models=all_models(),
        devices=all_devices(),
        measured=MEASURED,
        picture=seen,
        show=show,
        trouble=trouble,
        charted=True,
        **lists,
    )


def _lists(folder: Path) -> dict[str, object]:
    return {"plans": all_plans(folder), "decisions": all_decisions(folder), "calibrations": all_calibrations(folder)}


async def picture(request: Request) -> Response:
    """The picture for one position of the sliders; 204 where the page has asked something newer."""
    desk = desk_of(request)
    made = chosen(request.query_params)
    try:
        if made.trouble:
            raise ServefitError(made.trouble)
        ask = await run_in_threadpool(ask_of, desk, made)
        seen = await desk.live.draw(ask, page=request.query_params.get("tab", "")[:40])
    except ServefitError as error:
        return JSONResponse({"trouble": f"{error.message} {error.hint}".strip()}, status_code=400)
    if seen is None:
        return Response(status_code=204)
    html = desk.fragment("_picture.html", picture=seen, show=show)
    charts = {
        f"chart-{c.name}": {
            "spec": c.spec,
            "title": c.title,
            "alt": c.description,
            "table": desk.fragment("_table.html", chart=c),
        }
        for c in seen.charts
    }
    return JSONResponse({"html": html, "charts": charts, "compiled": desk.live.compiled})


async def write(request: Request) -> Response:
    """Make plan.json and decision.md of the configuration on the sliders, and go to the decision."""
    desk = desk_of(request)
    form = await request.form()
    given = QueryParams([(k, v) for k, v in form.items() if isinstance(v, str)])
    made = chosen(given)
    if made.trouble:
        raise ServefitError(made.trouble, hint="Go back and put it right.")
    ask = await run_in_threadpool(ask_of, desk, made)
    words = papers.Author(despite=given.get("despite", "")[:500], decider=given.get("decider", "")[:100])
    where = await desk.live.work(papers.write_up, ask, desk.folder, words)
    return RedirectResponse(f"/decisions/{where}", status_code=303)

"""Runs: the list and the timing table, one run with its figures and why it is slow, two compared, one in progress."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from servefit.charts import figures
from servefit.charts.of_run import run_charts, thinned
from servefit.errors import ServefitError
from servefit.explain.case import Wall, wall_of
from servefit.explain.compare import compare as compare_runs
from servefit.explain.rules import Diagnosis, diagnose_run
from servefit.objectives import Summary, failures_as_inf, summarize
from servefit.records import STATUSES, Run, RunHeader
from servefit.stats import is_slowest
from servefit.units import fmt_s
from servefit.web.desk import Desk, desk_of
from servefit.web.shelf import Shelved, all_runs, inside, shelved
from servefit.web.timing import WRONG, Failure, Timing, failures_of, read_run, where_of

PER_PAGE = 50
TIMED = 12
"""Runs in the timing table, unless some are chosen."""
MOST_ROWS = 100


def routes() -> list[Route]:
    """Every page of runs; what is asked for in the background stands below /live."""
    return [
        Route("/runs", listing),
        Route("/compare", compare),
        Route("/live/{path:path}", live),
        Route("/runs/{path:path}", one),
    ]


# --- the list ---------------------------------------------------------------------------------------------------------


def listing(request: Request) -> Response:
    """All runs below the folder by their headers, and the timing table of the newest."""
    desk = desk_of(request)
    runs = all_runs(desk.folder)
    wanted = request.query_params.get("find", "")[:200]
    found = [r for r in runs if _matches(r, wanted)]
    pages = max(1, math.ceil(len(found) / PER_PAGE))
    number = request.query_params.get("page", "1")
    page = min(max(1, int(number) if number.isdecimal() and len(number) < 7 else 1), pages)
    shown = found[(page - 1) * PER_PAGE : page * PER_PAGE]
    timed = [(r, desk.timings.of(r, desk.folder)) for r in [r for r in shown if r.header is not None][:TIMED]]
    return desk.page(
        request,
        "runs.html",
        title="Runs",
        shown=shown,
        timed=[(r, t if isinstance(t, Timing) else None, t if isinstance(t, str) else "") for r, t in timed],
        broken={r.path for r, t in timed if isinstance(t, str) and "damaged" in t},
        where_of=where_of,
        total=len(runs),
        found=len(found),
        damaged=sum(r.state == "damaged" for r in runs),
        running=[r for r in runs if r.state == "running"],
        find=wanted,
        page=page,
        last=pages,
        said=said_load,
    )


def _matches(run: Shelved, wanted: str) -> bool:
    text = f"{run.path} {run.state} " + (
        f"{run.header.target} {run.header.model} {run.header.kind}" if run.header else ""
    )
    return all(word in text.lower() for word in wanted.lower().split())


def said_load(header: RunHeader) -> str:
    """The load in a few words: "32 users, 512 in, 128 out"."""
    load = header.load
    kind = (
        f"{load['concurrency']} at once"
        if load.get("concurrency")
        else f"{load.get('rate_req_per_s') or load.get('rate')} req/s"
        if load.get("rate_req_per_s") or load.get("rate")
        else str(load.get("kind") or "-")
    )
    shape = f", {load['isl']} in, {load.get('osl', '-')} out" if load.get("isl") else ""
    return kind + shape


# --- one run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A run that was read, with what every page of it shows."""

    path: str
    run: Run
    summary: Summary
    timing: Timing
    failures: tuple[Failure, ...]


def read(folder: Path, path: str) -> Read:
    """The run at `path`. Raises ServefitError where it is damaged."""
    at = inside(folder, path)
    if not (at / "run.json").is_file() or (at / "run.json").is_symlink() or (at / "requests.jsonl").is_symlink():
        raise HTTPException(404)
    try:
        run, timing = read_run(at, path)
    except ServefitError as error:
        raise ServefitError(error.message.replace(f"{folder}/", ""), hint=error.hint) from None
    return Read(path=path, run=run, summary=summarize(run), timing=timing, failures=timing.failures)


def one(request: Request) -> Response:
    """One run; where its rows hold what no row can hold, a page that says so."""
    try:
        return _one(request)
    except WRONG as error:
        return _damaged(desk_of(request), request, request.path_params["path"], _wrong(error))


def _wrong(error: Exception) -> str:
    return f"A row of the run holds what no row can hold ({str(error)[:200]})."


def _one(request: Request) -> Response:
    """Its figures and why it is slow; while it is measured, its rows as they come."""
    desk = desk_of(request)
    path = request.path_params["path"]
    at = inside(desk.folder, path)
    if not (at / "run.json").is_file():
        raise HTTPException(404)
    state = shelved(at, desk.folder)
    if state.state == "damaged":
        return _damaged(desk, request, path, state.trouble)
    if state.state == "running":
        return desk.page(request, "running.html", title=path, run=state, said=said_load, **_progress(desk, at, state))
    try:
        found = read(desk.folder, path)
    except ServefitError as error:
        return _damaged(desk, request, path, error.message)
    diagnosis, why_not = _diagnose(found.run)
    return desk.page(
        request,
        "run.html",
        title=path,
        found=found,
        state=state,
        said=said_load,
        where=where_of(found.run.header),
        statuses=STATUSES,
        spreads=_spreads(found.summary),
        slowest=_slowest_said(found.summary),
        failed_inf=_or_inf(failures_as_inf(found.run, "ttft_s", 95)),
        charts=run_charts(found.run),
        diagnosis=diagnosis,
        why_not=why_not,
        rows=found.run.rows[:MOST_ROWS],
        texts=[r for r in found.run.rows if r.text][:20],
        all_rows=len(found.run.rows),
        charted=True,
    )


def _damaged(desk: Desk, request: Request, path: str, trouble: str) -> Response:
    return desk.page(
        request,
        "trouble.html",
        title=f"{path} is damaged",
        status=422,
        message=trouble,
        hint="Its files are left as they are. Restore them, or measure again.",
    )


def _spreads(summary: Summary) -> list[tuple[str, object]]:
    return [("TTFT", summary.ttft_s), ("ITL", summary.itl_s), ("TPOT", summary.tpot_s), ("E2E", summary.e2e_s)]


def _slowest_said(summary: Summary) -> str:
    n = summary.ttft_s.n
    if not n or not is_slowest(95, n):
        return ""
    return f"p95 = slowest of {n}, and so is p99." if is_slowest(99, n) else f"p95 = slowest of {n}."


def _or_inf(value: float | None) -> str:
    return "infinite" if value == math.inf else fmt_s(value)


def _diagnose(run: Run) -> tuple[Diagnosis | None, str]:
    """Why it is slow; None with the sentence that says why that cannot be told."""
    try:
        wall = wall_of(run.header.model or None, None)
    except ServefitError:
        wall = Wall()
    try:
        return diagnose_run(run, wall=wall), ""
    except ServefitError as error:
        return None, error.message
    except (ValueError, ArithmeticError, AssertionError, TypeError) as error:
        return None, f"The rows do not say: {error}."


# --- two runs ---------------------------------------------------------------------------------------------------------


def compare(request: Request) -> Response:
    """Two runs side by side."""
    try:
        return _compare(request)
    except WRONG as error:
        raise ServefitError(_wrong(error), hint="Look at each of the two alone: one is damaged.") from None


def _compare(request: Request) -> Response:
    desk = desk_of(request)
    names = request.query_params.getlist("run")
    if len(names) != 2:
        raise ServefitError(f"{len(names)} runs are chosen.", hint="Choose two runs of the list, then compare.")
    a, b = (read(desk.folder, name) for name in names)
    found = compare_runs(a.run, b.run)
    labels = (a.path, b.path) if a.path != b.path else (a.path, f"{b.path} (again)")
    charts = []
    for what, name in (("TTFT", "ttft_s"), ("ITL", "itl_s")):
        series = []
        for label, x in zip(labels, (a, b), strict=True):
            rows = [r for r in thinned(x.run.load_rows) if r.ok]
            series.append(
                (label, [g for r in rows for g in (r.itl_s if name == "itl_s" else (r.ttft_s,)) if g is not None])
            )
        if all(values for _, values in series):
            charts.append(figures.distribution(series, what=what))
    return desk.page(
        request,
        "compare.html",
        title="Two runs",
        a=a,
        b=b,
        found=found,
        charts=charts,
        charted=True,
    )


# --- a run in progress ------------------------------------------------------------------------------------------------


def live(request: Request) -> Response:
    """The state of a measurement as a fragment of the page, and its figure."""
    desk = desk_of(request)
    at = inside(desk.folder, request.path_params["path"])
    if not (at / "run.json").is_file():
        raise HTTPException(404)
    state = shelved(at, desk.folder)
    if state.header is None:
        return JSONResponse({"state": state.state, "html": "", "charts": {}})
    try:
        values = _progress(desk, at, state)
        html = desk.fragment("_progress.html", run=state, **values)
        charts = {f"chart-{c.name}": {"spec": c.spec, "alt": c.description} for c in values["charts"]}
        return JSONResponse({"state": state.state, "n": values["n"], "html": html, "charts": charts})
    except WRONG:
        return JSONResponse({"state": "damaged", "html": "", "charts": {}})


def _progress(desk: Desk, at: Path, state: Shelved) -> dict[str, Any]:
    assert state.header is not None, "a damaged run has a page of its own"
    rows, damaged = desk.watcher.look(at)
    run = Run(header=state.header, rows=rows)
    summary = summarize(run)
    values = [r.ttft_s for r in run.load_rows if r.ok and r.ttft_s is not None]
    wanted = state.header.load.get("n")
    return {
        "n": len(rows),
        "damaged": damaged,
        "wanted": wanted if isinstance(wanted, int) and wanted > 0 else None,
        "summary": summary,
        "spreads": _spreads(summary),
        "slowest": _slowest_said(summary),
        "failures": failures_of(run),
        "latest": list(reversed(rows[-8:])),
        "charts": [figures.distribution([("TTFT", values)], what="TTFT")] if values else [],
        "charted": True,
    }

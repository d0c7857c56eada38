"""`measure --repeat`: the runs one by one, and the spread between them."""

from pathlib import Path
from typing import Any

import click

from servefit.cli.measure_show import run_json
from servefit.cli.show import emit_json, jsonable, plain, table
from servefit.measure.repeat import Between, between
from servefit.objectives import Summary, summarize
from servefit.records import Run
from servefit.units import fmt, fmt_percent, fmt_s

FIGURES = tuple(f"{name}_s.{key}" for name in ("ttft", "itl", "tpot", "e2e") for key in ("p50", "p95", "p99"))
RATES = ("output_tok_per_s", "req_per_s")


def spread_of(summaries: list[Summary]) -> dict[str, Between | None]:
    """Each figure's median, least and most over the repeats."""
    out: dict[str, Between | None] = {}
    for path in FIGURES:
        name, _, key = path.partition(".")
        out[path] = between([getattr(getattr(s, name), key) for s in summaries])
    for name in RATES:
        out[name] = between([getattr(s, name) for s in summaries])
    return out


def show_repeats(runs: list[tuple[Path, Run]], out: Path, *, as_json: bool) -> None:
    """All repeats, for people or as one JSON object."""
    summaries = [summarize(run) for _, run in runs]
    spread = spread_of(summaries)
    if as_json:
        told: dict[str, Any] = {
            name: {**jsonable(found), "spread_frac": found.spread_frac} if found else None
            for name, found in spread.items()
        }
        bodies = [run_json(run, summary, path) for (path, run), summary in zip(runs, summaries, strict=True)]
        emit_json({"repeats": bodies, "spread": told})
        return
    header = runs[0][1].header
    click.echo(plain(f"{header.target}: {header.model}, {len(runs)} repeats of {summaries[0].n} requests"))
    rows = [_row(name, found) for name, found in spread.items() if found is not None]
    table(["", "median", "least", "most", "spread"], rows, right=(1, 2, 3, 4))
    for (path, run), summary in zip(runs, summaries, strict=True):
        click.echo(plain(
            f"{path}: {summary.ok} ok, {summary.failed} failed, TTFT p50 {fmt_s(summary.ttft_s.p50)} p95 {fmt_s(summary.ttft_s.p95)}, "
            f"{fmt(summary.output_tok_per_s, 1)} tok/s, {run.header.verdict}"
        ))  # fmt: skip
    for message in dict.fromkeys(f"{f.level}: {f.message}" for _, run in runs for f in run.header.findings):
        click.echo(f"  {plain(message)}")
    click.echo(f"next: servefit explain {plain(str(out / '1'))}")


def _row(name: str, found: Between) -> list[str]:
    latency = name not in RATES
    title = (
        name.replace("_s.", " ").upper().replace(" P", " p")
        if latency
        else name.replace("_per_s", "/s").replace("_", " ")
    )
    cells = [fmt_s(v) if latency else fmt(v, 2) for v in (found.median, found.least, found.most)]
    return [title, *cells, fmt_percent(found.spread_frac)]

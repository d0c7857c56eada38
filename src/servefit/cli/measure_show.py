"""What `measure` shows: progress while it runs, the summary when it has, the JSON object for programs."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servefit.cli.show import emit_json, jsonable, plain, table
from servefit.measure.window import in_window, window_tok_per_s
from servefit.objectives import Summary, failures_as_inf, latencies, percentile_with_failed, summarize
from servefit.records import Run
from servefit.stats import Spread, in_order, is_slowest, percentile, percentile_interval
from servefit.units import fmt, fmt_count, fmt_percent, fmt_s

if TYPE_CHECKING:
    from servefit.measure.run import Progress


def show_run(run: Run, folder: Path, *, as_json: bool) -> None:
    """The run's summary, for people or as one JSON object."""
    summary = summarize(run)
    if as_json:
        emit_json(run_json(run, summary, folder))
        return
    header = run.header
    load = header.load
    click.echo(plain(
        f"{header.target}: {header.model} ({header.endpoint.get('dialect', '')}), {summary.n} requests, {_load_words(load)}, "
        f"{load.get('isl')} tokens in, {load.get('osl')} out"
    ))  # fmt: skip
    rows = [_line(name, getattr(summary, f"{name.lower()}_s")) for name in ("TTFT", "ITL", "TPOT", "E2E")]
    table(["", "p50", "p95", "p99", "mean", "max", "n"], rows, right=(1, 2, 3, 4, 5, 6))
    for line in _more(run, summary):
        click.echo(plain(line))
    click.echo(f"run: {plain(str(folder))}")
    click.echo(f"next: servefit explain {plain(str(folder))}")


def _load_words(load: dict[str, Any]) -> str:
    """When the requests were sent, in words: by users, at a rate, in stages, by a trace."""
    if users := load.get("concurrency"):
        return fmt_count(users, "user")
    if stages := load.get("stages"):
        return f"{' then '.join(f'{rate:g}' for rate, _ in stages)} req/s"
    return f"{load['rate_req_per_s']} req/s" if load.get("rate_req_per_s") else "by a trace"


def _line(name: str, values: Spread) -> list[str]:
    cells = [fmt_s(getattr(values, key)) for key in ("p50", "p95", "p99", "mean", "max")]
    return [name, *cells, fmt(values.n)]


def _more(run: Run, summary: Summary) -> Iterator[str]:
    ttft = summary.ttft_s
    n = ttft.n
    if n and is_slowest(95, n):
        yield f"p95 = slowest of {n}" + ("" if not is_slowest(99, n) else "; p99 too")
    if ttft.p50 and ttft.p95:
        yield f"TTFT tail: p95 is {fmt_percent(ttft.p95 / ttft.p50 - 1)} above p50"
    values, _ = latencies(run, ("ttft_s",))
    if interval := percentile_interval(values["ttft_s"], 50):
        yield f"TTFT p50 lies between {fmt_s(interval[0])} and {fmt_s(interval[1])} (95% sure)"
    yield (
        f"{fmt(summary.output_tok_per_s, 1)} output tok/s, {fmt(summary.req_per_s, 2)} req/s; "
        f"{summary.ok} ok, {summary.failed} failed"
    )
    if summary.failed:
        kinds = ", ".join(f"{count} {status}" for status, count in summary.by_status.items() if status != "ok")
        worst = failures_as_inf(run, "ttft_s", 95)
        yield f"failures: {kinds}; with failures as infinitely slow, TTFT p95 is {_or_inf(worst)}"
        if sample := next((row.error for row in run.load_rows if row.error), None):
            yield f"  for example: {sample}"
    for row in run.in_phase("cold"):
        yield f"cold first request, not counted: TTFT {fmt_s(row.ttft_s)}, {row.status}"
    header = run.header
    yield from _window_lines(run)
    if added := header.client.get("overhead"):
        yield (
            f"this client adds {fmt_s(added['ttft_p50_s'])} to a first token and {fmt_s(added['event_p50_s'])} to any other "
            f"(p99 {fmt_s(added['event_p99_s'])}), by a null server"
        )
    yield f"clock: {header.clock}; verdict: {header.verdict}"
    for finding in header.findings:
        yield f"  {finding.level}: {finding.message}" + (f" {finding.hint}" if finding.hint else "")


def _window_lines(run: Run) -> Iterator[str]:
    """The steady window's figures, cold wave and drain left out."""
    steady = in_window(run)
    if steady is None or run.header.window_s is None:
        return
    start, end = run.header.window_s
    first = min(row.due_s for row in run.load_rows)
    figures = summarize(steady)
    yield (
        f"steady from {fmt_s(start - first)} to {fmt_s(end - first)} ({figures.n} of {len(run.load_rows)} requests): "
        f"TTFT p50 {fmt_s(figures.ttft_s.p50)}, p95 {fmt_s(figures.ttft_s.p95)}; ITL p50 {fmt_s(figures.itl_s.p50)}, "
        f"p95 {fmt_s(figures.itl_s.p95)}; {fmt(window_tok_per_s(run), 1)} output tok/s"
    )


def _window_json(run: Run) -> dict[str, Any] | None:
    steady = in_window(run)
    if steady is None or run.header.window_s is None:
        return None
    figures = summarize(steady)
    names = ("ttft_s", "itl_s", "tpot_s", "e2e_s")
    return {
        "from_s": run.header.window_s[0], "to_s": run.header.window_s[1], "n": figures.n, "ok": figures.ok,
        "output_tok_per_s": window_tok_per_s(run), **{name: jsonable(getattr(figures, name)) for name in names},
    }  # fmt: skip


def _or_inf(value: float | None) -> str:
    return "infinite" if value == float("inf") else fmt_s(value)


def run_json(run: Run, summary: Summary, folder: Path) -> dict[str, Any]:
    """The one object of `measure --json`."""
    header = run.header
    figures = jsonable(summary)
    figures["findings"] = [asdict(f) for f in header.findings]
    figures |= _by_request(run)
    cold = next(iter(run.in_phase("cold")), None)
    figures["window"] = _window_json(run)
    figures["cold"] = {"status": cold.status, "ttft_s": cold.ttft_s, "e2e_s": cold.e2e_s} if cold else None
    return {
        "run": str(folder),
        "target": header.target,
        "model": header.model,
        "engine": header.engine,
        "endpoint": header.endpoint,
        "clock": header.clock,
        "workload_sha256": header.workload_sha256,
        "schedule_sha256": header.schedule_sha256,
        "client": header.client,
        "summary": figures,
    }


def _by_request(run: Run) -> dict[str, dict[str, dict[str, Any]]]:
    """Of the per-request figures: a 95% order-statistic interval for each percentile, null where n is too small; and the
    percentiles with every failed request as infinitely slow.
    """
    out: dict[str, dict[str, dict[str, Any]]] = {"intervals": {}, "failures_as_inf": {}}
    seen, failed = latencies(run)
    for name, values in seen.items():
        ordered = in_order(values)
        found = {p: percentile_interval(ordered, p) for p in (50, 90, 95, 99)}
        out["intervals"][name] = {f"p{p}": list(pair) if pair else None for p, pair in found.items()}
        out["failures_as_inf"][name] = {f"p{p}": percentile_with_failed(ordered, failed, p) for p in (50, 95, 99)}
    return out


def show_selftest(*, as_json: bool) -> int:
    """Run the conformance suite; 0 where every trap is told as it is, else 4."""
    from servefit.traps.selftest import Verdict, selftest

    def tell(verdict: Verdict) -> None:
        if not as_json:
            mark = "FALSE" if verdict.complaints else "true"
            click.echo(f"{mark:5}  {verdict.name}: {verdict.about}: {verdict.said}")
            for complaint in verdict.complaints:
                click.echo(f"         {plain(complaint)}")

    verdicts = selftest(tell=tell)
    wrong = [v for v in verdicts if v.complaints]
    if as_json:
        emit_json({"traps": len(verdicts), "wrong": len(wrong), "verdicts": verdicts})
    else:
        click.echo(f"{len(verdicts)} traps, {len(wrong)} told wrong.")
        click.echo("next: servefit measure URL" if not wrong else "next: try again on a quiet machine")
    return 4 if wrong else 0


# --- progress ----------------------------------------------------------------------------------------------------------


@contextmanager
def watcher(*, quiet: bool) -> Iterator["Callable[[Progress], None] | None"]:
    """A function to tell progress to: a live line on a terminal, a plain line now and then elsewhere, nothing if quiet."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _live() as tell:
            yield tell
    else:
        yield _plain_lines()


@contextmanager
def _live() -> Iterator["Callable[[Progress], None]"]:
    """A few lines that are drawn anew four times a second, only when we are told: no thread of its own beside the clock."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True, highlight=False, no_color="NO_COLOR" in os.environ or None)
    with Live(Text(""), console=console, auto_refresh=False, transient=True) as live:
        yield lambda progress: live.update(Text(_lines(progress), overflow="ellipsis"), refresh=True)


def _lines(progress: "Progress") -> str:
    """What is known so far, a line each: how far, how fast, what went wrong."""
    if not progress.total:
        return f"{progress.step} ..."
    share = progress.done / progress.total
    filled = round(30 * share)
    rate = progress.done / progress.elapsed_s if progress.elapsed_s > 0 else 0.0
    left = (progress.total - progress.done) / rate if rate else None
    bad = {status: n for status, n in progress.by_status.items() if status != "ok"}
    out = [
        f"{'█' * filled}{'░' * (30 - filled)} {progress.done}/{progress.total} requests, {progress.busy} under way",
        f"{rate:.2f} answers/s, {fmt_s(progress.elapsed_s)} so far, {fmt_s(left)} left",
        *(f"{name:5} p50 {fmt_s(percentile(values, 50)):>9}  p95 {fmt_s(percentile(values, 95)):>9}  p99 {fmt_s(percentile(values, 99)):>9}"
          f"  (last {len(values)})" for name, values in (("TTFT", progress.ttft_s), ("ITL", progress.itl_s)) if values),
        f"failed: {', '.join(f'{n} {status}' for status, n in bad.items())}" if bad else "no failures",
    ]  # fmt: skip
    return "\n".join(out)


def _plain_lines() -> "Callable[[Progress], None]":
    started = time.monotonic()
    said = [started]

    def tell(progress: "Progress") -> None:
        now = time.monotonic()
        if now - said[0] >= 5 and now - started >= 1:
            said[0] = now
            click.echo(_words(progress), err=True)

    return tell


def _words(progress: "Progress") -> str:
    if not progress.total:
        return f"{progress.step} ..."
    ok = progress.by_status.get("ok", 0)
    rate = progress.done / progress.elapsed_s if progress.elapsed_s > 0 else 0.0
    left = (progress.total - progress.done) / rate if rate else None
    bad = ", ".join(f"{n} {s}" for s, n in progress.by_status.items() if s != "ok")
    parts = [
        f"{progress.done}/{progress.total}",
        f"{progress.busy} under way",
        f"{rate:.2f} req/s",
        f"TTFT p50 {fmt_s(percentile(progress.ttft_s, 50))} p95 {fmt_s(percentile(progress.ttft_s, 95))}",
        f"ITL p50 {fmt_s(percentile(progress.itl_s, 50))}",
        f"{fmt_s(left)} left" if left is not None and progress.done < progress.total else f"{ok} ok",
    ]
    return ", ".join([*parts, bad] if bad else parts)

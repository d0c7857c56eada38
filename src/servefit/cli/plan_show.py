"""A plan for people: the answer, the best candidates, where the ranges end and why, what it rests on, what to do next."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from servefit.cli.show import plain, table
from servefit.plan.edges import show
from servefit.plan.pick import latency_margin
from servefit.plan.plan import Assumption, Candidate, Check, Edge, Plan, SeatRange
from servefit.plan.workers import OnDone
from servefit.units import fmt, fmt_bytes, fmt_percent, fmt_s

ROWS = 8
"""Candidates and assumptions that a screen shows; plan.json holds all of them."""


def show_plan(plan: Plan, path: Path) -> None:
    """Print the plan."""
    click.echo(plain(plan.answer))
    if plan.nearest_fix:
        click.echo(plain(plan.nearest_fix))
    _bounds(plan)
    _candidates(plan)
    _ranges(plan)
    for failure in plan.failures:
        click.echo(plain(failure.sentence))
    if plan.failures:
        click.echo()
    _trades(plan)
    _assumptions(plan)
    _what_ifs(plan)
    for note in plan.notes:
        click.echo(plain(f"note: {note}"))
    follow = f"servefit decide {path}" if plan.recommended else "servefit plan with a looser target or another --device"
    click.echo(plain(f"\n{path}: {len(plan.candidates)} candidates, every figure.\nnext: {follow}"))


def _bounds(plan: Plan) -> None:
    """What was asked, on one line: a latency promise is worth nothing without its token shape."""
    w = plan.spec.workload
    load = (
        f"{fmt(w.rate_req_per_s, 2)} req/s ({w.arrivals})"
        if w.rate_req_per_s
        else f"{w.concurrency} users"
        if w.concurrency
        else f"trace {w.trace}"
        if w.trace
        else "stages"
        if w.stages
        else "one burst"
    )
    shape = "" if w.trace else f", {w.isl.mean} in, {w.osl.mean} out"
    promise = "; ".join(
        f"{c.label} {'at most' if c.at_most else 'at least'} {show(c.target, c.unit)}"
        for c in plan.candidates[0].checks
    )
    seeds = len(plan.schedule_sha256)
    click.echo(plain(f"\nasked: {load}{shape}, {fmt(w.n)} requests x {seeds} schedule{'s' if seeds > 1 else ''}"))
    click.echo(plain(f"promised: {promise}"))
    if plan.recommended:
        click.echo(plain(f"chosen by: {plan.recommended.rule}"))


def _best(plan: Plan) -> list[Candidate]:
    """Those that pass (the recommended one first), then those that are too close, then the nearest misses."""
    order = {"pass": 0, "too close to call": 1, "fail": 2}
    chosen = plan.recommended or plan.nearest

    def key(c: Candidate) -> tuple[bool, int, bool, float, float]:
        price = c.cost.usd_per_hour if c.cost else float("inf")
        nothing = c.figures is None
        return (
            chosen is None or c.id != chosen.id,
            order[c.verdict],
            nothing,
            price if not order[c.verdict] else 0.0,
            -latency_margin(c),
        )

    return sorted(plan.candidates, key=key)[:ROWS]


def _candidates(plan: Plan) -> None:
    rows = _best(plan)
    names = [c.name for c in rows[0].checks]
    heads = ["device", "policy", "seats", *(c.label for c in rows[0].checks), "capacity", "$/h", "verdict"]
    many = len({(c.model, c.precision, c.kv_bits, c.tp, c.replicas, c.budget_tok) for c in plan.candidates}) > 1
    if many:
        heads.insert(1, "how")
    body = []
    for c in rows:
        cells = [c.device, c.policy, fmt(c.seats)]
        if many:
            cells.insert(1, _how(c, plan))
        for name in names:
            check = c.check(name)
            cells.append("-" if check is None else _value(check))
        cells += [
            f"{fmt(c.capacity.req_per_s, 2)}/s" if c.capacity else "-",
            fmt(c.cost.usd_per_hour, 2) if c.cost else "-",
            {"pass": "pass", "fail": "fail", "too close to call": "too close"}[c.verdict]
            + (" (lower bound)" if c.lower_bound else ""),
        ]
        body.append(cells)
    table(heads, body, right=range(2 + many, len(heads) - 1))


def _how(c: Candidate, plan: Plan) -> str:
    """What tells this candidate apart beside device, policy and seats."""
    all_of = plan.candidates
    parts = [
        c.model if len({o.model for o in all_of}) > 1 else "",
        c.precision if len({o.precision for o in all_of}) > 1 else "",
        f"kv{c.kv_bits}" if len({o.kv_bits for o in all_of}) > 1 else "",
        f"budget {c.budget_tok}" if len({o.budget_tok for o in all_of}) > 1 else "",
        f"tp{c.tp}" if len({o.tp for o in all_of}) > 1 else "",
        f"x{c.replicas}" if len({o.replicas for o in all_of}) > 1 else "",
    ]
    return " ".join(filter(None, parts)) or "-"


def _value(check: Check) -> str:
    """A check's value with its margin: "210 ms +58%"."""
    if check.value is None or check.margin is None:
        return "-"
    if check.name in ("memory", "goodput") and check.unit == "frac":
        return show(check.value, check.unit)
    if check.margin < -1:
        return f"{show(check.value, check.unit)} x{fmt(1 - check.margin, 1 if check.margin > -9 else 0)}"
    sign = "+" if check.margin >= 0 else ""
    return f"{show(check.value, check.unit)} {sign}{fmt_percent(check.margin)}"


def _ranges(plan: Plan) -> None:
    passing = [r for r in plan.ranges if r.passing]
    if not passing:
        return
    body = [
        [
            _group(r, plan),
            f"{fmt(min(r.passing))} to {fmt(max(r.passing))}",
            _edge(r.low),
            _edge(r.high),
        ]
        for r in passing
    ]
    table(["passing range", "seats", "fewer seats", "more seats"], body[: 2 * ROWS])


def _group(r: SeatRange, plan: Plan) -> str:
    extra = [
        r.precision if len({o.precision for o in plan.ranges}) > 1 else "",
        r.model if len({o.model for o in plan.ranges}) > 1 else "",
        f"kv{r.kv_bits}" if len({o.kv_bits for o in plan.ranges}) > 1 else "",
        f"budget {r.budget_tok}" if len({o.budget_tok for o in plan.ranges}) > 1 else "",
        f"tp{r.tp}" if len({o.tp for o in plan.ranges}) > 1 else "",
        f"x{r.replicas}" if len({o.replicas for o in plan.ranges}) > 1 else "",
    ]
    return " ".join([r.device, r.policy, *filter(None, extra)])


def _edge(edge: Edge | None) -> str:
    """Which target ends the range on that side, and its value there."""
    if edge is None:
        return "-"
    if not edge.reached:
        return f"edge not reached ({edge.why_not})" if edge.why_not != "one at a time" else edge.why_not
    unit = {"ttft": "s", "tpot": "s", "e2e": "s", "memory": "frac", "goodput": "frac"}.get(edge.check or "", "")
    if edge.verdict == "too close to call" and edge.interval:
        low, high = (show(value, unit) for value in edge.interval)
        return f"{edge.outside_seats}: {edge.check} {low} to {high}, too close to call"
    return f"{edge.outside_seats}: {edge.check} {show(edge.value, unit)} misses {show(edge.target, unit)}"


def _trades(plan: Plan) -> None:
    if not plan.seat_trades:
        return
    first, last = plan.seat_trades[0], plan.seat_trades[-1]
    seats = sum(t.extra_seats for t in plan.seat_trades)
    memory = sum(t.memory_bytes for t in plan.seat_trades)
    gains = [t.capacity_req_per_s for t in plan.seat_trades]
    buys = (
        "-" if any(g is None for g in gains) else f"{fmt(sum(g for g in gains if g is not None), 2)} req/s of capacity"
    )
    low, high = plan.candidate(first.from_id), plan.candidate(last.to_id)
    click.echo(
        plain(f"{low.seats} to {high.seats} seats: {seats} more cost {fmt_bytes(memory)} of memory and buy {buys}.\n")
    )


def _assumptions(plan: Plan) -> None:
    if not plan.assumptions:
        return
    body = [[a.id, plain(a.text), _bias(a), _breaks(a)] for a in plan.assumptions[:ROWS]]
    table(["rests on", "", "if instead", "breaks at"], body)


def _bias(a: Assumption) -> str:
    moved = [b for b in a.biases if b.direction != "none"]
    if not moved:
        return f"{a.alternative}: nothing changes"
    b = max(moved, key=lambda b: abs((b.ratio or 10.0) - 1))
    times = f"x{fmt(b.ratio, 2)}" if b.ratio is not None else "no longer met"
    return f"{a.alternative}: {b.check} {times}" + (", the decision changes" if a.changes_decision else "")


def _breaks(a: Assumption) -> str:
    if a.breaking is None:
        return "not within what was tried" if a.tried else "-"
    value = fmt_s(a.breaking.value) if a.unit == "s" else f"{fmt(a.breaking.value, 2)} {a.unit}"
    return f"{value}: {a.breaking.check}"


def _what_ifs(plan: Plan) -> None:
    if not plan.what_ifs:
        return

    def arrow(pair: tuple[float | None, float | None], text: str) -> str:
        before, after = pair
        if before is None or after is None:
            return "-"
        return f"{text} ({'+' if after >= before else ''}{fmt_percent(after / before - 1)})" if before else text

    body = [
        [
            plain(w.factor),
            arrow(w.ttft_p99_s, fmt_s(w.ttft_p99_s[1])),
            arrow(w.tpot_p99_s, fmt_s(w.tpot_p99_s[1])),
            arrow(w.output_tok_per_s, f"{fmt(w.output_tok_per_s[1])} tok/s"),
            fmt(w.usd_per_mtok[1], 2),
            w.verdict,
        ]
        for w in plan.what_ifs
    ]
    table(["what if", "p99 TTFT", "p99 TPOT", "throughput", "$/1M tok", "verdict"], body, right=range(1, 5))


@contextmanager
def progress(*, quiet: bool) -> Iterator[OnDone | None]:
    """Progress on stderr, on a terminal as a bar, else as a line every tenth; None where nobody wants any."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=Console(stderr=True), transient=True, auto_refresh=False,
        )  # fmt: skip
        with bar:
            task = bar.add_task("simulating", total=None)

            def on_done(done: int, everything: int) -> None:
                bar.update(task, completed=done, total=everything)
                bar.refresh()

            yield on_done
    else:

        def say(done: int, everything: int) -> None:
            if everything >= 20 and done % max(1, everything // 10) == 0:
                click.echo(f"{done} of {everything} simulated", err=True)

        yield say

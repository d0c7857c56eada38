"""How much it can take: the load raised until a promise breaks, the knee, and the replicas that a peak needs.

The same code for a measured target and a simulated configuration: what differs is the function that makes one run.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal

from servefit.objectives import Summary, Targets, Verdict, failures_as_inf, summarize
from servefit.plan.capacity import replicas_for
from servefit.plan.checks import LABELS, verdict_of
from servefit.records import Run
from servefit.stats import interval_ranks, percentile_interval
from servefit.units import fmt, fmt_count, fmt_percent, fmt_s
from servefit.workload.workload import Workload

LoadKind = Literal["users", "rate"]
SHARP = 1.13
"""Between what holds and what breaks, the search stops when they are within 13% (or neighbouring numbers of users)."""
NOUNS: dict[LoadKind, str] = {"users": "users", "rate": "requests a second"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One promise at one load: its value (None: nothing observed, or too many failed), and whether it holds."""

    name: str
    label: str
    target: float
    value: float | None
    interval: tuple[float, float] | None
    """95% by order statistics (latencies); None where there are too few requests for one."""
    holds: bool
    verdict: Verdict
    """"too close to call" where the value's interval reaches over the target, or there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One load and what became of it."""

    load: float
    run: str
    """The run's folder."""
    n: int
    failed: int
    held: tuple[Held, ...]
    ttft_s: float | None
    """At the targets' percentile, a failed request as infinitely slow (None)."""
    tpot_s: float | None
    e2e_mean_s: float | None
    req_per_s: float | None
    output_tok_per_s: float | None
    goodput_req_per_s: float | None
    goodput_frac: float | None
    grows: bool
    """Open loop: those waiting became more and more while requests came, so it never settles at this rate."""
    run_verdict: str

    @property
    def holds(self) -> bool:
        """Whether every promise holds, by its value."""
        return not self.grows and all(h.holds for h in self.held)

    @property
    def few(self) -> bool:
        """Whether there are too few requests for the interval of a latency that holds."""
        return any(h.holds and h.interval is None and h.name != "goodput" for h in self.held)

    @property
    def clear(self) -> bool:
        """Whether every promise holds with its whole interval."""
        return not self.grows and all(h.verdict == "pass" for h in self.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How far one promise holds."""

    label: str
    target: float
    name: str
    up_to: float | None
    """The largest load up to which it holds at every load tried; None where the smallest breaks it."""
    breaks_at: float | None
    clear_up_to: float | None
    """The largest of those loads at which it holds with its whole interval; None where too few requests say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """How many copies carry a peak; each carries what this one did."""

    peak: float
    each: float
    at_peak: int
    headroom_frac: float
    with_headroom: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Every load tried, smallest first, and what follows from them."""

    kind: LoadKind
    target: str
    model: str
    targets: Targets
    workload_sha256: str
    """Of the workload without its rate or users."""
    steps: tuple[Step, ...]
    limits: tuple[Limit, ...]
    up_to: float | None
    """The largest load up to which every promise holds."""
    breaks_at: float | None
    knee: float | None
    replicas: Replicas | None
    simulated: bool
    schema_version: int = 1


def at_load(base: Workload, kind: LoadKind, load: float, n: int | None) -> Workload:
    """The workload at this load, `n` requests of it: 10 a user and at least 20, or 20 seconds' worth and at least 40.

    >>> at_load(Workload(), "users", 8, None).n, at_load(Workload(), "rate", 2.5, None).n
    (80, 50)

    The first wave of users starts all at once, which no later one does: of 10 a user it is a tenth.
    """
    none: dict[str, object] = {"trace": None, "stages": ()}
    if kind == "users":
        count = n or max(20, 10 * round(load))
        return replace(base, **none, concurrency=round(load), rate_req_per_s=None, n=count)  # type: ignore[arg-type]
    count = n or max(40, math.ceil(20 * load))
    return replace(base, **none, concurrency=None, rate_req_per_s=load, n=count)  # type: ignore[arg-type]


def search(kind: LoadKind, holds: Callable[[float], bool], *, start: float, most: float) -> None:
    """Ask `holds` at start, twice that and so on until it does not or `most` is reached, then between the two.

    >>> asked = []
    >>> search("users", lambda c: asked.append(c) is None and c <= 9, start=1, most=64); asked
    [1, 2, 4, 8, 16, 12, 10, 9]
    """
    good: float | None = None
    bad: float | None = None
    load = start
    while True:
        if not holds(load):
            bad = load
            break
        good = load
        if load >= most:
            return
        load = min(2 * load, most)
    while good is not None and (middle := _between(kind, good, bad)) is not None:
        if holds(middle):
            good = middle
        else:
            bad = middle


def _between(kind: LoadKind, good: float, bad: float) -> float | None:
    """The next load to try; None where the edge is known."""
    if kind == "users":
        middle = (good + bad) // 2
        return middle if good < middle < bad and bad / good > SHARP else None
    return math.sqrt(good * bad) if bad / good > SHARP else None


def make_step(run: Run, targets: Targets, load: float, folder: str) -> Step:
    """What became of one load: each promise with its value, its interval and whether it holds."""
    summary = summarize(run, targets)
    held = [_latency(run, targets, name) for name in ("ttft", "tpot", "e2e")]
    held += [_goodput(summary, targets)]
    ttft, tpot = (_finite(failures_as_inf(run, figure, targets.p)) for figure in ("ttft_s", "tpot_s"))
    return Step(
        load=load, run=folder, n=summary.n, failed=summary.failed, held=tuple(h for h in held if h is not None),
        ttft_s=ttft, tpot_s=tpot, e2e_mean_s=summary.e2e_s.mean, req_per_s=summary.req_per_s,
        output_tok_per_s=summary.output_tok_per_s, goodput_req_per_s=summary.goodput_req_per_s,
        goodput_frac=summary.goodput_frac, grows=waiting_grows(run), run_verdict=summary.verdict,
    )  # fmt: skip


def _latency(run: Run, targets: Targets, name: Literal["ttft", "tpot", "e2e"]) -> Held | None:
    target = getattr(targets, f"{name}_s")
    if target is None:
        return None
    figure = f"{name}_s"
    p = targets.p
    value = _finite(failures_as_inf(run, figure, p))  # type: ignore[arg-type]  # the literal's members stand above
    seen = [math.inf if not row.ok else getattr(row, figure) for row in run.load_rows]
    interval = percentile_interval([v for v in seen if v is not None], p)
    holds = value is not None and value <= target
    if value is None:
        verdict: Verdict = "fail"
    elif interval is None:  # too few requests for an interval: only a value that is within or beyond is known
        verdict = "fail" if not holds else "too close to call"
    else:
        verdict = verdict_of(interval, target, at_most=True)
    if interval is not None and not all(map(math.isfinite, interval)):
        interval = None
    label = f"p{p} {LABELS[name][0]}"
    return Held(name=name, label=label, target=target, value=value, interval=interval, holds=holds, verdict=verdict)


def _goodput(summary: Summary, targets: Targets) -> Held | None:
    """A share of the requests that must be good; an absolute goodput is no promise of one replica at every load."""
    target = targets.goodput_frac
    if target is None:
        return None
    value = summary.goodput_frac
    holds = value is not None and value >= target - 1e-12
    return Held(
        name="goodput", label="share of good requests", target=target, value=value, interval=None, holds=holds,
        verdict="pass" if holds else "fail",
    )  # fmt: skip


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def waiting_grows(run: Run) -> bool:
    """Whether an open loop's queue grows while requests come: more wait for a first token at the end than in the middle.

    More by half again, and by 4 at least: below that it is the ebb and flow of random arrivals. A short schedule can
    meet its targets at any rate, only because it ends in time.
    """
    rows = run.load_rows
    if run.header.load.get("kind") == "closed" or len(rows) < 20:
        return False
    due = sorted(row.due_s for row in rows)
    waits = [(row.due_s, row.chunk_s[0] if row.chunk_s else row.done_s or math.inf) for row in rows]

    def open_at(moment: float) -> int:
        return sum(a <= moment < b for a, b in waits)

    middle = sum(open_at(due[len(due) * k // 20]) for k in (8, 9, 10, 11)) / 4
    late = sum(open_at(due[len(due) * k // 20]) for k in (16, 17, 18, 19)) / 4
    return late > 1.5 * middle and late > middle + 4


# --- what follows ---------------------------------------------------------------------------------------------------


def conclude(
    kind: LoadKind,
    steps: Sequence[Step],
    *,
    targets: Targets,
    target: str,
    model: str,
    workload_sha256: str,
    simulated: bool,
    peak: float | None = None,
    headroom_frac: float = 0.2,
) -> Sweep:
    """The sweep of these steps, in order of load."""
    ordered = tuple(sorted(steps, key=lambda s: s.load))
    names = [(h.name, h.label, h.target) for h in ordered[0].held] if ordered else []
    limits = [_limit(ordered, name, label, value) for name, label, value in names]
    up_to, breaks_at = _edge([(s.load, s.holds) for s in ordered])
    return Sweep(
        kind=kind, target=target, model=model, targets=targets, workload_sha256=workload_sha256, steps=ordered,
        limits=tuple(limits), up_to=up_to, breaks_at=breaks_at, knee=knee(ordered),
        replicas=replicas(peak, up_to, headroom_frac), simulated=simulated,
    )  # fmt: skip


def _limit(steps: Sequence[Step], name: str, label: str, target: float) -> Limit:
    def of(step: Step) -> Held:
        return next(h for h in step.held if h.name == name)

    up_to, breaks_at = _edge([(s.load, of(s).holds and not s.grows) for s in steps])
    within = [s.load for s in steps if of(s).verdict == "pass" and up_to is not None and s.load <= up_to]
    clear = max(within, default=None)
    return Limit(name=name, label=label, target=target, up_to=up_to, breaks_at=breaks_at, clear_up_to=clear)


def _edge(seen: Sequence[tuple[float, bool]]) -> tuple[float | None, float | None]:
    """The last load before the first that breaks, and that one."""
    up_to = None
    for load, holds in seen:
        if not holds:
            return up_to, load
        up_to = load
    return up_to, None


def knee(steps: Sequence[Step]) -> float | None:
    """The load where throughput per second of response time is largest: past it, waiting buys little throughput.

    Kleinrock's "power", requests per second / mean end-to-end seconds; at its peak an M/M/1 queue is half loaded. None
    below three loads, or where the largest is the last (the knee was not reached). Source: L. Kleinrock, Power and
    deterministic rules of thumb for probabilistic problems in computer communications, ICC 1979.
    """
    power = [(s.req_per_s / s.e2e_mean_s, s.load) for s in steps if s.req_per_s and s.e2e_mean_s]
    if len(power) < 3:
        return None
    best = max(power)[1]
    return None if best == power[-1][1] else best


def replicas(peak: float | None, each: float | None, headroom_frac: float) -> Replicas | None:
    """Copies for a peak, and for one that is `headroom_frac` higher: ceil(peak / each); None without a peak or capacity.

    >>> found = replicas(120, 8, 0.2); found.at_peak, found.with_headroom
    (15, 18)
    """
    at_peak, with_headroom = (replicas_for(peak, each or 0.0, room) for room in (0.0, headroom_frac))
    if peak is None or not each or at_peak is None or with_headroom is None:
        return None
    return Replicas(peak=peak, each=each, headroom_frac=headroom_frac, at_peak=at_peak, with_headroom=with_headroom)


def show_load(kind: LoadKind, load: float | None) -> str:
    """A load for people: "8 users", "1 user", "2.5 requests a second"."""
    if load is None:
        return "-"
    if kind == "users":
        return fmt_count(load, "user")
    return f"{fmt(load, 0 if float(load).is_integer() else 2)} requests a second"


def sentences(sweep: Sweep) -> tuple[str, ...]:
    """The capacity in words: one line a promise, the whole, the knee and the replicas."""
    out = [_capacity_line(sweep, limit) for limit in sweep.limits]
    if any(s.grows for s in sweep.steps):
        first = min(s.load for s in sweep.steps if s.grows)
        out.append(f"From {show_load(sweep.kind, first)} the queue grows without end: no wait is the last.")
    if len(sweep.limits) > 1:
        out.append(_whole(sweep))
    if sweep.knee is not None:
        out.append(
            f"The knee is at {show_load(sweep.kind, sweep.knee)}: past it, more load buys more waiting than throughput."
        )
    if sweep.replicas is not None:
        r = sweep.replicas
        out.append(
            f"{show_load(sweep.kind, r.peak)} at the peak, {fmt(r.each, 0 if float(r.each).is_integer() else 2)} a replica: "
            f"{r.at_peak}, say {r.with_headroom} ({fmt_percent(r.headroom_frac)} headroom)."
        )
    return tuple(out)


def _bound(limit: Limit) -> str:
    if limit.name == "goodput":
        return f"{limit.label} >= {fmt_percent(limit.target, 0 if limit.target * 100 % 1 == 0 else 1)}"
    return f"{limit.label} <= {fmt_s(limit.target)}"


def _capacity_line(sweep: Sweep, limit: Limit) -> str:
    place = "with this configuration (simulated)" if sweep.simulated else "on this replica"
    if limit.up_to is None:
        return f"{_bound(limit)} does not hold at {show_load(sweep.kind, limit.breaks_at)}, the smallest load tried."
    line = f"{_bound(limit)} holds up to {show_load(sweep.kind, limit.up_to)} {place}"
    if limit.breaks_at is None:
        line += "; the edge was not reached"
    else:
        line += f"; it breaks at {fmt(limit.breaks_at, 0 if float(limit.breaks_at).is_integer() else 2)}"
    if limit.clear_up_to != limit.up_to and limit.name != "goodput":
        line += f" ({_how_sure(sweep, limit)})"
    return line + "."


def _how_sure(sweep: Sweep, limit: Limit) -> str:
    """Up to where it is 95% sure; where nowhere, whether for too few requests or for values too near the target."""
    if limit.clear_up_to is not None:
        return f"95% sure: up to {show_load(sweep.kind, limit.clear_up_to)}"
    p = sweep.targets.p
    enough = next(n for n in count(2) if interval_ranks(p, n))
    most = max(s.n for s in sweep.steps if limit.up_to is not None and s.load <= limit.up_to)
    if most < enough:
        return (
            f"not yet sure: p{p} has an interval from {enough} requests at a load on, e.g. -n {-(-enough // 50) * 50}"
        )
    return "not yet sure: too close to the target for so few requests"


def _whole(sweep: Sweep) -> str:
    if sweep.up_to is None:
        return f"Together they do not hold at {show_load(sweep.kind, sweep.breaks_at)}, the smallest load tried."
    binding = [limit for limit in sweep.limits if limit.breaks_at == sweep.breaks_at and limit.breaks_at is not None]
    because = f"; {' and '.join(limit.label for limit in binding)} breaks first" if binding else ""
    return f"All of them hold up to {show_load(sweep.kind, sweep.up_to)}{because}."

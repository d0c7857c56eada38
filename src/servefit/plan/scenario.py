"""One configuration under one load, as data: change a field and ask again. Everything the planner says is made here.

Candidates, capacity, assumptions and what-ifs are all the same call on a scenario that differs in one thing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from servefit.engine.config import EngineConfig
from servefit.engine.outcome import OK, Outcome
from servefit.engine.simulate import simulate
from servefit.objectives import Targets
from servefit.physics.steptime import StepTime, scaled
from servefit.plan import checks
from servefit.plan.plan import Check, Figures
from servefit.stats import Spread
from servefit.workload.requests import Request

Schedule = Sequence[Request]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What decides how one candidate does."""

    schedules: tuple[Schedule, ...]
    """One per seed; the same for every candidate."""
    concurrency: int | None = None
    think_s: float = 0.0
    offered_req_per_s: float | None = None
    """The rate that was asked for; None in a closed loop and for a burst."""
    config: EngineConfig
    step: StepTime
    replicas: int = 1
    targets: Targets
    memory_frac: float
    """Needed over usable memory."""
    usd_per_hour: float | None = None
    """All replicas together."""
    quality: float | None = None
    quality_at_least: float | None = None
    extra_ttft_s: float = 0.0
    """Added to every first token outside the engine: a network, a proxy."""


def run(scenario: Scenario, index: int = 0) -> Outcome:
    """What the engine does with the schedule of that seed."""
    requests = scenario.schedules[index]
    if scenario.replicas == 1:
        return simulate(
            requests, scenario.config, scenario.step, concurrency=scenario.concurrency, think_s=scenario.think_s
        )
    from servefit.engine.fleet import simulate_fleet

    outcome: Outcome = simulate_fleet(
        requests,
        scenario.config,
        scenario.step,
        replicas=scenario.replicas,
        concurrency=scenario.concurrency,
        think_s=scenario.think_s,
    )
    return outcome


def figures_of(outcome: Outcome, scenario: Scenario, *, itl: bool = True) -> Figures:
    """The figures of one simulated schedule; without `itl` where no check reads the gaps."""
    spreads = outcome.spreads(itl=itl)
    duration = outcome.duration_s
    ttft, e2e = (_later(spreads[name], scenario.extra_ttft_s) for name in ("ttft_s", "e2e_s"))
    good = outcome.good(
        ttft_s=_sooner(scenario.targets.ttft_s, scenario.extra_ttft_s),
        tpot_s=scenario.targets.tpot_s,
        e2e_s=_sooner(scenario.targets.e2e_s, scenario.extra_ttft_s),
    )

    def rate(count: float) -> float | None:
        return count / duration if duration > 0 else None

    mean, peak = _in_flight(outcome)
    return Figures(
        n=outcome.n,
        ok=outcome.finished,
        failed=outcome.n - outcome.finished,
        ttft_s=ttft,
        tpot_s=spreads["tpot_s"],
        itl_s=spreads["itl_s"],
        e2e_s=e2e,
        output_tok_per_s=rate(outcome.output_tok),
        req_per_s=rate(outcome.finished),
        goodput_req_per_s=rate(good),
        goodput_frac=good / outcome.n if outcome.n else None,
        duration_s=duration,
        busy_frac=None if outcome.busy_frac is None else outcome.busy_frac / scenario.replicas,
        in_flight_mean=mean,
        in_flight_peak=peak,
        preemptions=sum(outcome.preempted),
        kv_peak_blocks=outcome.peak_kv_blocks,
        waiting_at_end=scenario.concurrency is None and _grows(outcome),
    )


def _later(spread: Spread, extra_s: float) -> Spread:
    """Every figure of it `extra_s` later."""
    if not extra_s or not spread.n:
        return spread
    names = ("p50", "p90", "p95", "p99", "mean", "max")
    return replace(spread, **{name: getattr(spread, name) + extra_s for name in names})


def _sooner(limit: float | None, extra_s: float) -> float | None:
    return None if limit is None else limit - extra_s


def _in_flight(outcome: Outcome) -> tuple[float | None, int | None]:
    """Mean (Little's law) and peak number of requests waiting or running."""
    waits = outcome.e2e_s
    if not waits or outcome.duration_s <= 0:
        return None, None
    return math.fsum(waits) / outcome.duration_s, outcome.in_flight_peak


def _grows(outcome: Outcome) -> bool:
    """Whether the queue grew to the end.

    More than 5% of the requests got their first token after the last arrival, and the later half of them waited more
    than twice as long as the earlier half.
    """
    rows = [(d, f) for s, d, f in zip(outcome.status, outcome.due_s, outcome.first_s, strict=True) if s == OK]
    if len(rows) < 20:
        return False
    rows.sort()
    last_due = rows[-1][0]
    late = sum(1 for _, f in rows if f > last_due)
    half = len(rows) // 2
    early_wait = math.fsum(f - d for d, f in rows[:half]) / half
    late_wait = math.fsum(f - d for d, f in rows[half:]) / (len(rows) - half)
    return late > 0.05 * len(rows) and late_wait > 2 * early_wait


def merge(figures: Sequence[Figures]) -> Figures:
    """Several seeds as one: counts are sums, every other figure is the mean of the runs' own (None where one is)."""
    first = figures[0]
    if len(figures) == 1:
        return first

    def mean(name: str) -> float | None:
        return checks.mean([getattr(f, name) for f in figures])

    def spread(name: str) -> Spread:
        parts: list[Spread] = [getattr(f, name) for f in figures]
        shape = {p: checks.mean([getattr(s, p) for s in parts]) for p in ("p50", "p90", "p95", "p99", "mean", "max")}
        return Spread(n=sum(s.n for s in parts), **shape)

    peaks = [f.in_flight_peak for f in figures if f.in_flight_peak is not None]
    return Figures(
        n=sum(f.n for f in figures),
        ok=sum(f.ok for f in figures),
        failed=sum(f.failed for f in figures),
        ttft_s=spread("ttft_s"),
        tpot_s=spread("tpot_s"),
        itl_s=spread("itl_s"),
        e2e_s=spread("e2e_s"),
        output_tok_per_s=mean("output_tok_per_s"),
        req_per_s=mean("req_per_s"),
        goodput_req_per_s=mean("goodput_req_per_s"),
        goodput_frac=mean("goodput_frac"),
        duration_s=mean("duration_s"),
        busy_frac=mean("busy_frac"),
        in_flight_mean=mean("in_flight_mean"),
        in_flight_peak=max(peaks, default=None),
        preemptions=sum(f.preemptions for f in figures),
        kv_peak_blocks=max(f.kv_peak_blocks for f in figures),
        waiting_at_end=any(f.waiting_at_end for f in figures),
    )


def goals(targets: Targets, *, quality_at_least: float | None = None) -> dict[str, tuple[float, str]]:
    """Check name -> (target, unit), for every target that is set, in the order they are shown."""
    wanted: dict[str, tuple[float | None, str]] = {
        "ttft": (targets.ttft_s, "s"),
        "tpot": (targets.tpot_s, "s"),
        "e2e": (targets.e2e_s, "s"),
        "memory": (targets.memory_frac, "frac"),
        "goodput": (targets.goodput_req_per_s, "req_per_s")
        if targets.goodput_req_per_s is not None
        else (targets.goodput_frac, "frac"),
        "usd_per_hour": (targets.usd_per_hour, "usd_per_hour"),
        "usd_per_mtok": (targets.usd_per_mtok, "usd_per_mtok"),
        "quality": (quality_at_least, "score"),
    }
    return {name: (target, unit) for name, (target, unit) in wanted.items() if target is not None}


def value_of(name: str, figures: Figures | None, scenario: Scenario) -> float | None:
    """The figure that the check of that name looks at; None where nothing was observed."""
    targets = scenario.targets
    if name == "memory":
        return scenario.memory_frac
    if name == "usd_per_hour":
        return scenario.usd_per_hour
    if name == "quality":
        return scenario.quality
    if figures is None:
        return None
    if name in ("ttft", "tpot", "e2e"):
        # a latency target is a promise to every request: too many failures push the percentile beyond any value
        if figures.failed * 100 > (100 - targets.p) * figures.n:
            return None
        spread: Spread = getattr(figures, f"{name}_s")
        value = getattr(spread, f"p{targets.p}", None)
        return value if isinstance(value, float) else None
    if name == "goodput":
        return figures.goodput_frac if targets.goodput_req_per_s is None else _goodput_req_per_s(figures, scenario)
    assert name == "usd_per_mtok", f"there is no check called {name}"
    if scenario.usd_per_hour is None or not figures.output_tok_per_s:
        return None
    return scenario.usd_per_hour / 3600 / figures.output_tok_per_s * 1e6


def _goodput_req_per_s(figures: Figures, scenario: Scenario) -> float | None:
    """Good requests per second: their share of the offered rate, where the engine keeps up with it.

    Counting those of one schedule over its length would put the luck of its arrivals into the figure: 60 Poisson
    arrivals at 4/s take anything from 11 to 19 s.
    """
    if scenario.offered_req_per_s is None or figures.goodput_frac is None or figures.waiting_at_end:
        return figures.goodput_req_per_s
    return figures.goodput_frac * scenario.offered_req_per_s


FAR = -0.5
"""A first schedule that misses a target by half of it settles the verdict: no further one is simulated."""


def hold(scenario: Scenario, *, error_frac: float | None, one_sided: bool) -> tuple[Figures | None, tuple[Check, ...]]:
    """The scenario against its targets: figures over all seeds, and checks whose interval holds seeds and step error.

    `error_frac` is how far a step's time may be off; `one_sided` where it can only be longer (a lower bound). How that
    moves each check is found by simulating with the step that much longer and shorter.
    """
    wanted = goals(scenario.targets, quality_at_least=scenario.quality_at_least)
    if scenario.config.kv_blocks is not None and scenario.config.kv_blocks < 1:
        return None, _checks(wanted, scenario, [None], {})
    runs = [figures_of(run(scenario), scenario)]
    if len(scenario.schedules) > 1 or error_frac:
        first = _checks(wanted, scenario, [runs[0]], {})
        if any(c.margin is None or c.margin < FAR * (1 + (error_frac or 0)) for c in first):
            return runs[0], tuple(replace(c, interval=None) if c.name not in STATIC else c for c in first)
    runs += [figures_of(run(scenario, k), scenario) for k in range(1, len(scenario.schedules))]
    shifts = _shifts(wanted, scenario, runs[0], error_frac, one_sided=one_sided)
    return merge(runs), _checks(wanted, scenario, runs, shifts)


STATIC = ("memory", "usd_per_hour", "quality")
"""Checks that no schedule moves."""


def _shifts(
    wanted: dict[str, tuple[float, str]],
    scenario: Scenario,
    base: Figures,
    error_frac: float | None,
    *,
    one_sided: bool,
) -> dict[str, tuple[float, float]]:
    """How far the step's error moves each check down and up, from the first schedule; nothing where no error is known."""
    if not error_frac:
        return {}
    factors = [1 + error_frac] if one_sided else [1 - error_frac, 1 + error_frac]
    moved = []
    for factor in factors:
        other = replace(scenario, step=scaled(scenario.step, factor))
        moved.append(figures_of(run(other), other, itl=False))
    out: dict[str, tuple[float, float]] = {}
    for name in wanted:
        here = value_of(name, base, scenario)
        there = [value_of(name, f, scenario) for f in moved]
        if here is None:
            continue
        changes = [math.inf if v is None else v - here for v in there]
        out[name] = (min(0.0, *changes), max(0.0, *changes))
    return out


def _checks(
    wanted: dict[str, tuple[float, str]],
    scenario: Scenario,
    runs: Sequence[Figures | None],
    shifts: dict[str, tuple[float, float]],
) -> tuple[Check, ...]:
    out = []
    for name, (target, unit) in wanted.items():
        values = [value_of(name, f, scenario) for f in runs]
        value = checks.mean(values)
        interval = None
        if value is not None:
            low, high = checks.seed_interval([v for v in values if v is not None])
            down, up = shifts.get(name, (0.0, 0.0))
            low, high = max(0.0, low + down), high + up
            if unit == "frac" and name == "goodput":
                high = min(1.0, high)
            interval = (low, high if math.isfinite(high) else 1e9)
        out.append(checks.make_check(name, target, value, interval, p=scenario.targets.p, unit=unit))
    return tuple(out)


def at_rate(scenario: Scenario, factor: float) -> Scenario:
    """The same requests in the same order, arriving `factor` times as fast."""
    offered = scenario.offered_req_per_s
    return replace(
        scenario,
        offered_req_per_s=None if offered is None else offered * factor,
        schedules=tuple(
            tuple(replace(r, due_s=round(r.due_s / factor * 1e6) / 1e6) for r in requests)
            for requests in scenario.schedules
        ),
    )


def with_users(scenario: Scenario, users: int) -> Scenario:
    """The closed loop with that many users, each asking as often as before; the schedule is repeated as needed.

    A ramp takes as long as before.
    """
    asked = scenario.concurrency
    assert asked is not None, "an open loop has no users"
    return replace(scenario, concurrency=users, schedules=tuple(_repeated(q, asked, users) for q in scenario.schedules))


def _repeated(requests: Schedule, asked: int, users: int) -> Schedule:
    n = len(requests)
    count = max(n, -(-n * users // asked))
    sessions = 1 + max((r.session for r in requests if r.session is not None), default=0)
    ramp_s = max(r.due_s for r in requests) * asked / max(1, asked - 1)
    out = []
    for i in range(count):
        r, lap = requests[i % n], i // n
        session = None if r.session is None else r.session + lap * sessions
        due_s = round(ramp_s * i / users * 1e6) / 1e6 if i < users else 0.0
        out.append(replace(r, id=r.id if not lap else i, session=session, due_s=due_s))
    return tuple(out)


def offered_req_per_s(requests: Schedule) -> float | None:
    """The rate at which a schedule arrives: gaps over the time between the first and the last; None for a burst."""
    span = max(r.due_s for r in requests) - min(r.due_s for r in requests)
    return (len(requests) - 1) / span if span > 0 else None

"""Each figure of a plan, a candidate, a range, a device, an assumption and a run as a named quantity, derived anew."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from servefit.decide.decision import numbers_in
from servefit.decide.written import UNITS
from servefit.objectives import Summary, Targets, Verdict, margin, summarize
from servefit.plan.checks import misses, never, overall, smallest_margin, tightest, verdict_of, worst
from servefit.plan.edges import seat_range
from servefit.plan.plan import Assumption, Candidate, Check, Figures, Plan
from servefit.records import Run
from servefit.stats import Spread, percentile

Value = float | str | None

PERCENTILES = ("p50", "p90", "p95", "p99", "mean", "max")
FIGURES = ("ttft", "tpot", "itl", "e2e")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A figure with its name, its unit and where it comes from."""

    name: str
    value: Value
    dim: str
    """A dimension of `written.UNITS`, or "text"."""
    formula: str
    inputs: tuple[str, ...] = ()
    """Names of the quantities in the formula, in the same scope."""
    source: str = ""
    signed: bool = False
    """Whether it is a difference or a margin, printed with its sign."""
    side: Literal["", "at most", "at least"] = ""
    """Of a target: on which side of it the value has to be."""


def plain_names(candidate: Candidate) -> tuple[tuple[str, Value, str], ...]:
    """A configuration's axes as (name, value, dimension)."""
    c = candidate
    return (
        ("device", c.device, "text"),
        ("model", c.model, "text"),
        ("precision", c.precision, "text"),
        ("kv_bits", c.kv_bits, "count"),
        ("policy", c.policy, "text"),
        ("seats", c.seats, "count"),
        ("budget", c.budget_tok, "tok"),
        ("tp", c.tp, "count"),
        ("replicas", c.replicas, "count"),
    )


# --- the plan -------------------------------------------------------------------------------------------------------


def of_plan(plan: Plan, label: str) -> Iterator[Quantity]:
    work = plan.spec.workload
    verdicts = [verdict(c) for c in plan.candidates]
    rows: tuple[tuple[str, Value, str, str], ...] = (
        ("seed", work.seed, "count", "the workload's seed"),
        ("seeds", len(plan.schedule_sha256), "count", "schedules that every candidate saw"),
        ("load.n", work.n, "count", "requests in each schedule"),
        ("load.rate", work.rate_req_per_s, "req_per_s", "offered rate"),
        ("load.concurrency", work.concurrency, "count", "users in a closed loop"),
        ("load.isl", work.isl.mean, "tok", "mean prompt length"),
        ("load.osl", work.osl.mean, "tok", "mean answer length"),
        ("load.context", plan.max_context_tok, "tok", "longest request, prompt and answer"),
        (
            "load.peak",
            plan.spec.peak_req_per_s or work.rate_req_per_s,
            "req_per_s",
            "the peak that replicas must carry",
        ),
        ("load.headroom", plan.spec.headroom_frac, "frac", "how much higher than stated the peak may be"),
        ("count.candidates", len(verdicts), "count", "configurations that were tried"),
        ("count.pass", verdicts.count("pass"), "count", "configurations that meet every target"),
        ("count.fail", verdicts.count("fail"), "count", "configurations that miss one"),
        ("count.close", verdicts.count("too close to call"), "count", "configurations too close to call"),
    )
    for name, value, dim, formula in rows:
        yield Quantity(name=name, value=value, dim=dim, formula=formula, source=label)


def verdict(candidate: Candidate) -> Verdict:
    """The candidate's verdict, from its checks' values and intervals."""
    return overall([_judged(c) for c in candidate.checks])


def _judged(check: Check) -> Check:
    return replace(check, verdict=check_verdict(check))


def check_verdict(check: Check) -> Verdict:
    """Pass where the whole interval meets the target, fail where none of it does or nothing was observed."""
    if check.value is None:
        return "fail"
    return verdict_of(check.interval or (check.value, check.value), check.target, at_most=check.at_most)


# --- a candidate ----------------------------------------------------------------------------------------------------


def of_candidate(plan: Plan, c: Candidate, label: str) -> Iterator[Quantity]:
    where = f"{label}, {c.id}"
    for name, value, dim in plain_names(c):
        yield Quantity(name=name, value=value, dim=dim, formula="as searched", source=where)
    yield Quantity(
        name="verdict",
        value=verdict(c),
        dim="text",
        formula="pass where every check passes, fail where one fails, else too close to call",
        inputs=tuple(f"{check.name}.verdict" for check in c.checks),
        source=where,
    )
    basis = plan.basis(c.basis)
    made = f"{where}; mean of {len(plan.schedule_sha256)} simulated schedules; step time {basis.source}: {basis.origin}"
    for check in c.checks:
        yield from _check(check, where if check.name == "memory" else made)
    # "least" is what decisions of earlier versions name; it must go on meaning what it meant
    least = worst([x for x in c.checks if x.margin is not None])
    for name, close, said in (
        (
            "tightest",
            tightest([_judged(x) for x in c.checks]),
            "the worst miss, else the latency with the smallest margin",
        ),
        ("least", least, "the check with the smallest margin"),
    ):
        if close is not None:
            gap = margin(close.value or 0.0, close.target, at_most=close.at_most)
            inputs = (f"{close.name}.margin",)
            yield Quantity(name=f"{name}.margin", value=gap, dim="frac", formula=f"the margin of {said}",
                           inputs=inputs, source=where, signed=True)  # fmt: skip
            yield Quantity(
                name=f"{name}.check", value=close.label, dim="text", formula=said, inputs=inputs, source=where
            )
    yield Quantity(
        name="basis.source", value=basis.source, dim="text", formula="where the step time is from", source=where
    )
    yield Quantity(name="basis.error", value=basis.error_frac, dim="frac", formula="relative error of a step's time",
                   source=f"{where}; {basis.origin}")  # fmt: skip
    if c.figures:
        yield from _figures(c, made)
    yield from _memory(c, where)
    yield from _money(c, where)


def _check(check: Check, source: str) -> Iterator[Quantity]:
    low, high = check.interval or (None, None)
    name, dim = check.name, check_dim(check)
    formula = "(target - value) / target" if check.at_most else "(value - target) / target"
    gap = None if check.value is None or not check.target else margin(check.value, check.target, at_most=check.at_most)
    both = (f"{name}.value", f"{name}.target")
    side: Literal["at most", "at least"] = "at most" if check.at_most else "at least"
    yield Quantity(name=f"{name}.target", value=check.target, dim=dim, source="the plan's targets",
                   formula=f"{check.label} {side} this", side=side)  # fmt: skip
    yield Quantity(name=f"{name}.value", value=check.value, dim=dim, formula=check.label, source=source)
    yield Quantity(name=f"{name}.low", value=low, dim=dim, formula="low end of what the value may be", source=source)
    yield Quantity(name=f"{name}.high", value=high, dim=dim, formula="high end of what the value may be", source=source)
    yield Quantity(
        name=f"{name}.margin", value=gap, dim="frac", formula=formula, inputs=both, source=source, signed=True
    )
    yield Quantity(
        name=f"{name}.verdict",
        value=check_verdict(check),
        dim="text",
        formula="pass where the whole interval meets the target, fail where none of it does",
        inputs=(f"{name}.low", f"{name}.high", f"{name}.target"),
        source=source,
    )


def _spread(name: str, spread: Spread, source: str) -> Iterator[Quantity]:
    for p in PERCENTILES:
        said = {"mean": "mean", "max": "largest"}.get(p, f"{p} (nearest rank)")
        yield Quantity(name=f"{name}.{p}", value=getattr(spread, p), dim="s", source=source,
                       formula=f"{said} {name.upper()} of the requests that completed")  # fmt: skip


def _rates(of: Figures | Summary) -> tuple[tuple[str, Value, str, str], ...]:
    """(name, value, dimension, formula) of what a candidate and a run have alike."""
    return (
        ("output.rate", of.output_tok_per_s, "tok_per_s", "output tokens / duration"),
        ("throughput", of.req_per_s, "req_per_s", "requests that completed / duration"),
        ("goodput.rate", of.goodput_req_per_s, "req_per_s", "requests that met every latency target / duration"),
        ("goodput.share", of.goodput_frac, "frac", "requests that met every latency target / all requests"),
        ("duration", of.duration_s, "s", "first due to last end"),
    )


def _figures(c: Candidate, source: str) -> Iterator[Quantity]:
    f = c.figures
    assert f is not None, f"{c.id} was not simulated"
    for name in FIGURES:
        yield from _spread(name, getattr(f, f"{name}_s"), source)
    yield from _counts(f.n, f.ok, f.failed, source)
    rows: tuple[tuple[str, Value, str, str], ...] = (
        *_rates(f),
        ("busy", f.busy_frac, "frac", "share of the time in which a step ran"),
        ("in_flight.mean", f.in_flight_mean, "plain", "mean number of requests waiting or running (Little)"),
        ("in_flight.peak", f.in_flight_peak, "count", "most requests waiting or running at once"),
        ("preemptions", f.preemptions, "count", "requests that were put back for lack of KV memory"),
    )
    for name, value, dim, formula in rows:
        yield Quantity(name=name, value=value, dim=dim, formula=formula, source=source)


def _counts(n: int, ok: int, failed: int, source: str) -> Iterator[Quantity]:
    yield Quantity(name="n", value=n, dim="count", formula="requests", source=source)
    yield Quantity(name="ok", value=ok, dim="count", formula="requests that completed", source=source)
    yield Quantity(name="failed", value=failed, dim="count", formula="requests that did not complete", source=source)
    share = failed / n if n else None
    yield Quantity(
        name="failed.share", value=share, dim="frac", formula="failed / n", inputs=("failed", "n"), source=source
    )


def _memory(c: Candidate, source: str) -> Iterator[Quantity]:
    m = c.memory
    rows: tuple[tuple[str, Value, str, str], ...] = (
        ("memory.usable", m.usable_bytes, "bytes", "what the engine may use on one device"),
        ("memory.weights", m.weight_bytes, "bytes", "the model's weights"),
        ("memory.activations", m.activation_bytes, "bytes", "working memory of one step"),
        ("memory.overhead", m.overhead_bytes, "bytes", "the engine's own"),
        ("memory.kv_per_tok", m.kv_bytes_per_tok, "bytes", "KV cache of one token over all layers"),
        ("memory.kv_per_seat", m.kv_per_seat_bytes, "bytes", "KV cache of one seat at the longest request"),
        ("memory.needed", m.needed_bytes, "bytes", "weights + activations + overhead + KV of the seats"),
        ("memory.share", m.needed_bytes / m.usable_bytes if m.usable_bytes else None, "frac", "needed / usable"),
        ("memory.seats_that_fit", m.seats_that_fit, "count", "seats that the KV pool holds at the longest request"),
        ("memory.blocks", m.kv_pool_blocks, "count", "blocks in the KV pool"),
        ("memory.block", m.block_tok, "tok", "tokens in a block"),
    )
    for name, value, dim, formula in rows:
        yield Quantity(name=name, value=value, dim=dim, formula=formula, source=source)


def _money(c: Candidate, source: str) -> Iterator[Quantity]:
    if c.cost:
        said = "; ".join((source, ", ".join(filter(None, (c.cost.source, c.cost.as_of)))))
        rows: tuple[tuple[str, Value, str, str], ...] = (
            ("cost.per_hour", c.cost.usd_per_hour, "usd_per_hour", "price per hour, all replicas"),
            ("cost.per_request", c.cost.usd_per_request, "usd", "price per hour / requests served per hour"),
            ("cost.per_mtok", c.cost.usd_per_mtok, "usd_per_mtok", "price per hour / million output tokens per hour"),
            ("cost.as_of", c.cost.as_of, "text", "date of the price")
            if c.cost.as_of
            else ("cost.source", c.cost.source, "text", "who says what it costs"),
        )
        for name, value, dim, formula in rows:
            yield Quantity(name=name, value=value, dim=dim, formula=formula, source=said)
    if c.capacity:
        k = c.capacity
        rows = (
            (
                "capacity.rate",
                k.req_per_s,
                "req_per_s",
                "largest rate at which every check passes"
                if k.users is None
                else "answered per second with the most users that pass",
            ),
            *(
                []
                if k.users is None
                else [("capacity.users", k.users, "count", "most users with whom every check passes")]
            ),
            ("capacity.limited_by", check_label(c, k.limited_by), "text", "the check that fails just above it"),
            ("capacity.fails_at", k.fails_at_req_per_s, "req_per_s", "the lowest rate tried that fails"),
            ("capacity.replicas", k.replicas_for_peak, "count", "replicas that carry the peak with headroom"),
        )
        for name, value, dim, formula in rows:
            yield Quantity(name=name, value=value, dim=dim, formula=formula, source=source)


def of_difference(c: Candidate, decided: Candidate, label: str) -> Iterator[Quantity]:
    """What another candidate costs or buys against the decided one: `delta.NAME`, latencies at each percentile (`delta.ttft.p95`)."""

    def latency(x: Candidate, name: str, p: int) -> float | None:
        found: Spread | None = getattr(x.figures, f"{name}_s") if x.figures else None
        return found.at(p) if found else None

    def rate(x: Candidate) -> float | None:
        return x.figures.goodput_req_per_s if x.figures else None

    pairs: list[tuple[str, float | None, float | None, str]] = [
        ("seats", c.seats, decided.seats, "count"),
        ("memory", c.memory.needed_bytes, decided.memory.needed_bytes, "bytes"),
        (
            "capacity",
            c.capacity.req_per_s if c.capacity else None,
            decided.capacity.req_per_s if decided.capacity else None,
            "req_per_s",
        ),
        ("goodput", rate(c), rate(decided), "req_per_s"),
        (
            "cost",
            c.cost.usd_per_hour if c.cost else None,
            decided.cost.usd_per_hour if decided.cost else None,
            "usd_per_hour",
        ),
    ]
    for name in ("ttft", "tpot"):
        # without a percentile it is p99: what decisions of earlier versions name must go on meaning what it meant
        for suffix, p in (("", 99), *((f".p{p}", p) for p in (50, 90, 95, 99))):
            pairs.append((f"{name}{suffix}", latency(c, name, p), latency(decided, name, p), "s"))
    for name, there, here, dim in pairs:
        gap = None if there is None or here is None else round(there - here, 12)
        yield Quantity(name=f"delta.{name}", value=gap, dim=dim, formula="this candidate's - the decided one's",
                       source=f"{label}, {c.id} - {decided.id}", signed=True)  # fmt: skip


# --- ranges, devices, assumptions -----------------------------------------------------------------------------------


def of_range(members: list[Candidate], label: str) -> Iterator[Quantity]:
    seats = seat_range([replace(c, verdict=verdict(c)) for c in members])
    source = f"{label}, every number of seats tried with {seats.policy} on {seats.device}"
    yield Quantity(
        name="range.count", value=len(seats.passing), dim="count", formula="numbers of seats that pass", source=source
    )
    for side, edge in (("low", seats.low), ("high", seats.high)):
        if edge is None:
            continue
        dim = next((check_dim(k) for c in members for k in c.checks if k.name == edge.check), "plain")
        rows: tuple[tuple[str, Value, str, str], ...] = (
            ("seats", edge.seats, "count", f"the {'fewest' if side == 'low' else 'most'} seats that pass"),
            ("reached", "reached" if edge.reached else "not reached", "text", "whether the search went past it"),
            ("outside", edge.outside_seats, "count", "the next number tried, which does not pass"),
            (
                "check",
                check_label(members[0], edge.check),
                "text",
                "the target that sets it: missed by most one step further",
            ),
            ("value", edge.value, dim, "that check's value there"),
            ("verdict", edge.verdict, "text", "its verdict there"),
            ("low", edge.interval[0] if edge.interval else None, dim, "low end of what it may be there"),
            ("high", edge.interval[1] if edge.interval else None, dim, "high end of what it may be there"),
            ("target", edge.target, dim, "its target"),
        )
        for name, value, dim, formula in rows:
            yield Quantity(name=f"range.{side}.{name}", value=value, dim=dim, formula=formula, source=source)


def check_label(candidate: Candidate, name: str | None) -> str | None:
    """A check's name for people; the name itself where the candidate has no such check."""
    check = candidate.check(name) if name else None
    return check.label if check else name


def check_dim(check: Check) -> str:
    """The dimension of a check's value."""
    return "plain" if check.unit == "score" else check.unit


_UNITS = {"ttft": "s", "tpot": "s", "e2e": "s", "memory": "frac", "usd_per_hour": "usd_per_hour",
          "usd_per_mtok": "usd_per_mtok", "quality": "plain"}  # fmt: skip


def unit_of(check: str | None, plan: Plan | None = None) -> str:
    """The dimension of a check's value; goodput is a share or a rate, as the plan's targets say."""
    if check == "goodput":
        absolute = plan is not None and plan.spec.targets.goodput_req_per_s is not None
        return "req_per_s" if absolute else "frac"
    return _UNITS.get(check or "", "plain")


def _short_of(scope: str, near: Candidate, chosen: str, source: str) -> Iterator[Quantity]:
    """What a setting that does not pass misses by most, or may."""
    if (short := worst([k for k in near.checks if check_verdict(k) != "pass"])) is None:
        return
    at = f"{near.policy}, {near.seats} seats"
    yield Quantity(name=f"{scope}.candidate", value=at, dim="text", formula=chosen, source=source)
    yield Quantity(
        name=f"{scope}.check", value=short.label, dim="text", formula="what it misses by most", source=source
    )
    ends = zip(("low", "high"), short.interval or (None, None), strict=True)
    for name, value in (("value", short.value), *ends, ("target", short.target)):
        yield Quantity(
            name=f"{scope}.{name}", value=value, dim=check_dim(short), formula=f"its {name} there", source=source
        )


def of_device(members: list[Candidate], label: str) -> Iterator[Quantity]:
    source = f"{label}, every candidate on {members[0].device}"
    # "nearest" is what decisions of earlier versions name; it must go on meaning what it meant
    least = max(members, key=lambda c: smallest_margin(c.checks))
    yield from _short_of("nearest", least, "the setting whose smallest margin is largest", source)
    clear = min(members, key=lambda c: (*misses([_judged(k) for k in c.checks]), c.seats))
    yield from _short_of("closest", clear, "the setting nearest to a clear pass, by its checks in doubt", source)
    for miss in never([(c.id, tuple(_judged(k) for k in c.checks)) for c in members]):
        dim = "plain" if miss.unit == "score" else miss.unit
        best = "lowest" if miss.at_most else "highest"
        at = f"{source}; {miss.best_candidate}" if miss.best_candidate else source
        yield Quantity(name=f"never.{miss.check}.best", value=miss.best_value, dim=dim, source=at,
                       formula=f"{best} {miss.label} at any setting")  # fmt: skip
        yield Quantity(
            name=f"never.{miss.check}.target", value=miss.target, dim=dim, formula="its target", source=source
        )


_ASSUMED = {"tok": "tok", "s": "s", "frac": "frac", "bytes": "bytes", "req_per_s": "req_per_s", "usd_per_hour": "usd_per_hour",
            "usd_per_mtok": "usd_per_mtok", "ratio": "ratio", "factor": "ratio"}  # fmt: skip


def of_assumption(plan: Plan, a: Assumption, label: str) -> Iterator[Quantity]:
    source = f"{label}, assumption {a.id}"
    dim = _ASSUMED.get(a.unit, "plain")
    measured, reached, tried = (pair or (None, None) for pair in (a.measured, a.reached, a.tried))
    rows: list[tuple[str, Value, str, str]] = [
        ("planned", a.planned, dim, "what the plan uses"),
        ("measured.low", measured[0], dim, "least that was measured"),
        ("measured.high", measured[1], dim, "most that was measured"),
        ("reached.low", reached[0], dim, "least that this workload reaches"),
        ("reached.high", reached[1], dim, "most that this workload reaches"),
        ("tried.low", tried[0], dim, "least that was tried"),
        ("tried.high", tried[1], dim, "most that was tried"),
        ("breaking", a.breaking and a.breaking.value, dim, "where the recommended candidate stops passing"),  # type: ignore[list-item]
        ("breaking.factor", a.breaking and a.breaking.factor, "ratio", "breaking point / planned value"),  # type: ignore[list-item]
    ]
    for bias in a.biases:
        unit = unit_of(bias.check, plan)
        ratio = bias.otherwise / bias.as_planned if bias.otherwise is not None and bias.as_planned else None
        rows += [
            (f"{bias.check}.planned", bias.as_planned, unit, "as planned"),
            (f"{bias.check}.otherwise", bias.otherwise, unit, a.alternative),
            (f"{bias.check}.ratio", ratio, "ratio", "otherwise / as planned"),
            (f"{bias.check}.direction", bias.direction, "text", "optimistic: the plan looks better than otherwise"),
        ]
    rows.append(("id", a.id, "text", "its stable id"))
    rows += [(f"{part}.{i}", value, unit, "as the plan words it") for part, value, unit, i in _said(a)]
    rows += [(f"detail.{key}", value, "ratio" if "ratio" in key else "plain", key) for key, value in a.details.items()]
    for name, value, unit, formula in rows:
        yield Quantity(name=name, value=value, dim=unit, formula=formula, source=source)


def _said(a: Assumption) -> Iterator[tuple[str, float, str, int]]:
    """The numbers in the plan's own sentences: (which sentence, value, dimension, place from 1)."""
    for part, text in (("text", a.text), ("alternative", a.alternative)):
        for place, (_, found) in enumerate(numbers_in(text), 1):
            assert found.number is not None, "numbers_in finds numbers"
            dim = next((d for d, units in UNITS.items() if found.unit and found.unit in units), "plain")
            yield part, float(found.number * UNITS[dim].get(found.unit, Decimal(1))), dim, place


# --- a measured run -------------------------------------------------------------------------------------------------


def run_quantities(run: Run, targets: Targets, *, source: str) -> Iterator[Quantity]:
    """What a run's summary says, under the same names as a candidate's figures."""
    s: Summary = summarize(run, targets)
    for name in FIGURES:
        yield from _spread(name, getattr(s, f"{name}_s"), source)
    for name in ("ttft", "tpot", "e2e"):
        values = [v for row in run.load_rows if row.ok and (v := getattr(row, f"{name}_s")) is not None]
        yield Quantity(name=f"{name}.value", value=percentile(values, targets.p), dim="s", source=source,
                       formula=f"p{targets.p} (nearest rank) {name.upper()} of the requests that completed")  # fmt: skip
    yield from _counts(s.n, s.ok, s.failed, source)
    for name, value, dim, formula in _rates(s):
        yield Quantity(name=name, value=value, dim=dim, formula=formula, source=source)

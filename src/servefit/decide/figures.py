"""The figures of a report, from the plan and the runs behind a decision."""

from servefit.charts.figures import Chart, Point, distribution, lines, pareto
from servefit.decide.quantities import Ledger, all_groups, group_id
from servefit.plan.plan import Candidate
from servefit.units import fmt


def figures(ledger: Ledger) -> list[Chart]:
    """Seats against each latency check with the passing band, the Pareto front, and predicted beside measured waits."""
    charts = [chart for name in ("ttft", "tpot", "e2e", "goodput") if (chart := _seats(ledger, name))]
    if (chart := _front(ledger)) is not None:
        charts.append(chart)
    targets = ledger.plan.spec.targets
    for name, target in (("ttft", targets.ttft_s), ("tpot", targets.tpot_s)):
        seen = [
            (m.name, [v for r in m.run.load_rows if r.ok and (v := getattr(r, f"{name}_s")) is not None])
            for m in ledger.runs
        ]
        if any(values for _, values in seen):
            charts.append(distribution(seen, what=name.upper(), target_s=target))
    return charts


def _seats(ledger: Ledger, name: str) -> Chart | None:
    """One check against the number of seats, a line for every policy on the decided device."""
    decided = ledger.candidate
    own = decided.check(name)
    if own is None:
        return None
    scale, unit = {"s": (1e3, "ms"), "frac": (100.0, "%")}.get(own.unit, (1.0, "requests per second"))
    points = []
    for members in all_groups(ledger.plan).values():
        first = members[0]
        if first.device != decided.device or first.model != decided.model or len(members) < 2:
            continue
        series = first.policy if _only_policy_differs(first, decided) else f"{first.policy} {_rest(first, decided)}"
        for c in members:
            check = c.check(name)
            if check is None or check.value is None:
                continue
            low, high = check.interval or (check.value, check.value)
            points.append(Point(series=series, x=c.seats, y=check.value * scale, low=low * scale, high=high * scale))
    if len({p.x for p in points}) < 2:
        return None
    fewest, most = ledger.find("range.low.seats"), ledger.find("range.high.seats")
    band = None
    if fewest and most and isinstance(fewest.value, int | float) and isinstance(most.value, int | float):
        band = (float(fewest.value), float(most.value)) if fewest.value < most.value else None
    return lines(
        points,
        name=f"seats-{name}",
        title=f"{own.label} against seats on {decided.device}",
        x="seats",
        y=f"{own.label} ({unit})",
        target=own.target * scale,
        band=band,
        log_x=True,
        log_y=_spans_decades([v for p in points for v in (p.y, p.low) if v is not None]),
        places=0 if float(round(own.target * scale, 9)).is_integer() else 1,
    )


def _spans_decades(values: list[float]) -> bool:
    """Whether a linear axis would press the small values flat: a queue that never empties beside one that does."""
    return bool(values) and min(values) > 0 and max(values) > 30 * min(values)


def _only_policy_differs(a: Candidate, b: Candidate) -> bool:
    return [p for p in group_id(a).split("/") if p != a.policy] == [p for p in group_id(b).split("/") if p != b.policy]


def _rest(a: Candidate, b: Candidate) -> str:
    ours = group_id(b).split("/")
    return " ".join(p for p in group_id(a).split("/") if p not in ours and p != a.policy)


def _front(ledger: Ledger) -> Chart | None:
    """Passing candidates by price and wait, those that nothing beats marked."""
    points = []
    p = ledger.plan.spec.targets.p
    for c in ledger.plan.passing:
        wait_s = c.figures.ttft_s.at(p) if c.figures else None
        if c.cost and wait_s is not None:
            label = f"{c.policy} {fmt(c.seats)}" + (" (decided)" if c.id == ledger.candidate.id else "")
            points.append((label, c.cost.usd_per_hour, wait_s * 1e3, c.device, c.id in ledger.plan.pareto))
    if len({p[1] for p in points}) < 2:
        return None
    return pareto(points, x="US dollars per hour", y=f"p{p} TTFT (ms)")

"""Which one: the Pareto front, the recommended candidate with its rule, the nearest where nothing passes, seat trades."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from servefit.objectives import margin
from servefit.physics.steptime import Source
from servefit.plan import checks
from servefit.plan.checks import LATENCIES
from servefit.plan.edges import against, closest, group_of, groups, show
from servefit.plan.plan import Candidate, Check, Recommended, SeatTrade
from servefit.plan.spec import Pick
from servefit.units import fmt, fmt_count, fmt_percent

_KNOWN: dict[Source, float] = {"measured": 0, "published": 1, "spec": 2, "assumed": 3}

_COPIES = "with as many replicas as carry the peak with the headroom"
SEATS = (
    "of the batch limits whose margin is the same within its interval, the one farthest from both ends of the passing "
    "range (twice an end, or half of it, is far enough), then the fewest seats"
)
"""A limit on the edge has no room for one more user, or for a calibration that is a little off."""
_THEN = f"then the largest smallest latency margin; {SEATS}"
RULES: dict[Pick, str] = {
    "measured": "a measured step time before a published one, a published one before a datasheet's; then the lowest cost "
    f"per hour, {_COPIES}; {_THEN}",
    "cheapest": f"the lowest cost per hour, {_COPIES}; {_THEN}",
    "margin": "the largest smallest latency margin; then the lowest cost per hour; then the fewest seats",
    "capacity": "the largest capacity; then the lowest cost per hour; then the fewest seats",
}
"""Each among the candidates that pass."""


def recommend(
    candidates: Sequence[Candidate],
    pick: Pick,
    sources: Mapping[str, Source] = MappingProxyType({}),
    measured_seqs: Mapping[str, float] = MappingProxyType({}),
) -> Recommended | None:
    """The candidate that the rule picks among those that pass; None where none does.

    A device without a known price stands behind every priced one in the rule "cheapest"; where no price is known at
    all, the fewest devices that carry the peak win, and the rule that is recorded says so. `sources` says how each basis
    is known, for the rule "measured"; `measured_seqs` the largest batch that a measured one was measured on, beyond which
    no pick is moved.
    """
    passing = [c for c in candidates if c.verdict == "pass"]
    if not passing:
        return None
    rule = RULES[pick]
    if pick == "cheapest" and all(c.cost is None for c in passing):
        rule = f"no price is known for any that pass, so: the fewest devices that carry the peak with the headroom; {_THEN}"
    best = min(passing, key=lambda c: _key(c, pick, sources))
    if pick in ("measured", "cheapest"):
        best = _clear_of_the_ends(
            best,
            [c for c in candidates if group_of(c) == group_of(best)],
            as_good=lambda c: _before_margin(c, pick, sources) == _before_margin(best, pick, sources),
            most=measured_seqs.get(best.basis, math.inf),
        )
    return Recommended(id=best.id, rule=rule)


def _clear_of_the_ends(
    best: Candidate, group: Sequence[Candidate], *, as_good: Callable[[Candidate], bool], most: float
) -> Candidate:
    """Of the batch limits around `best` whose margin is the same within its interval, the farthest from both ends.

    `most` seats were measured: none beyond is taken for one within. Where best stands beyond already, that says nothing.
    """
    members = sorted(group, key=lambda c: c.seats)
    at = members.index(best)
    first = last = at
    while first > 0 and members[first - 1].verdict == "pass":
        first -= 1
    while last < len(members) - 1 and members[last + 1].verdict == "pass":
        last += 1
    below = members[first - 1].seats if first > 0 else members[first].seats
    end = members[last].figures
    peak = end.in_flight_peak if end else None
    if last < len(members) - 1:
        above: float = members[last + 1].seats
    else:  # seats that change nothing end nothing; those that were not tried may
        above = math.inf if peak is not None and peak <= members[last].seats else members[last].seats
    least = worst_latency_margin(best)
    alike = [
        c
        for c in members[first : last + 1]
        if as_good(c) and latency_margin(c) >= least and (c.seats <= most or best.seats > most)
    ]
    return max(alike, key=lambda c: (min(c.seats / below, above / c.seats, 2.0), -c.seats))


def worst_latency_margin(c: Candidate) -> float:
    """The smallest margin of the latency checks where each value is the worst it may be."""
    latencies = [check for check in c.checks if check.name in LATENCIES] or list(c.checks)
    ends = [(check, check.interval[1 if check.at_most else 0]) for check in latencies if check.interval]
    return min((margin(end, check.target, at_most=check.at_most) for check, end in ends), default=-math.inf)


def _before_margin(c: Candidate, pick: Pick, sources: Mapping[str, Source]) -> tuple[float, ...]:
    """What the rule looks at before the margin: those alike in it differ in nothing that costs."""
    return _key(c, pick, sources)[:-3]


def _key(c: Candidate, pick: Pick, sources: Mapping[str, Source]) -> tuple[float, ...]:
    copies = c.replicas if c.capacity is None else max(c.replicas, c.capacity.replicas_for_peak or 0)
    price = math.inf if c.cost is None else c.cost.usd_per_hour / c.replicas * copies
    tight = -round(latency_margin(c), 2)
    capacity = -(c.capacity.req_per_s if c.capacity else 0.0)
    devices = float(c.tp * copies)
    order: dict[Pick, tuple[float, ...]] = {
        "measured": (_KNOWN[sources.get(c.basis, "assumed")], price, devices, tight),
        "cheapest": (price, devices, tight),
        "margin": (tight, price),
        "capacity": (capacity, price),
    }
    return (*order[pick], float(c.seats), float(c.memory.needed_bytes))


def latency_margin(c: Candidate) -> float:
    """The smallest margin of the latency checks; of all checks where no latency is promised."""
    names = [check.name for check in c.checks if check.name in LATENCIES]
    return checks.smallest_margin(c.checks, names=names or None)


def nearest(candidates: Sequence[Candidate]) -> Recommended | None:
    """The candidate that is nearest to a clear pass, where nothing passes; None where nothing was simulated."""
    seen = [c for c in candidates if c.figures is not None]
    if not seen:
        return None
    best = closest(seen)
    missed = [c for c in best.checks if c.verdict != "pass"]
    missed.sort(key=lambda c: (c.verdict != "fail", c.name not in LATENCIES, _gap(c)))
    assert missed, f"{best.id} passes, and something else was to be recommended"
    lead = "misses by least"
    if best.verdict == "too close to call":
        by_value = any(_gap(c) < 0 for c in missed)
        lead = "is too close to call" + ("" if by_value else ", by what its figures may be and not by what they are")
    return Recommended(id=best.id, rule=f"{lead}: {'; '.join(against(c) for c in missed)}")


def _gap(check: Check) -> float:
    return -math.inf if check.margin is None else check.margin


def pareto(candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """Ids of the passing candidates that no other passing one beats: cost per hour, latency margin and capacity.

    One is beaten by another that is at least as good in all three and better in one. An unknown price counts as worst.
    """
    passing = [c for c in candidates if c.verdict == "pass"]
    points = {c.id: _point(c) for c in passing}
    return tuple(
        c.id
        for c in passing
        if not any(
            all(theirs >= ours for theirs, ours in zip(points[o.id], points[c.id], strict=True))
            and points[o.id] != points[c.id]
            for o in passing
        )
    )


def _point(c: Candidate) -> tuple[float, float, float]:
    """Higher is better in each."""
    price = -math.inf if c.cost is None else -c.cost.usd_per_hour
    return price, round(latency_margin(c), 4), round(c.capacity.req_per_s, 4) if c.capacity else 0.0


def seat_trades(candidates: Sequence[Candidate], best: str | None, *, p: int) -> tuple[SeatTrade, ...]:
    """What more seats cost in memory and buy in capacity, from each passing number of seats to the next.

    Only in the group of `best`: the trade-off that its reader has to make. `p` is the percentile of its latencies.
    """
    out: list[SeatTrade] = []
    for members in groups(candidates).values():
        if best not in [c.id for c in members]:
            continue
        passing = [c for c in members if c.verdict == "pass"]
        out.extend(_trade(a, b, p) for a, b in pairwise(passing))
    return tuple(out)


def _trade(a: Candidate, b: Candidate, p: int) -> SeatTrade:
    def grow(x: float | None, y: float | None) -> float | None:
        return None if x is None or y is None else y - x

    fa, fb = a.figures, b.figures
    assert fa and fb, "a candidate without figures does not pass"
    return SeatTrade(
        from_id=a.id,
        to_id=b.id,
        extra_seats=b.seats - a.seats,
        memory_bytes=b.memory.needed_bytes - a.memory.needed_bytes,
        capacity_req_per_s=grow(
            a.capacity.req_per_s if a.capacity else None, b.capacity.req_per_s if b.capacity else None
        ),
        goodput_req_per_s=grow(fa.goodput_req_per_s, fb.goodput_req_per_s),
        p=p,
        ttft_s=grow(fa.ttft_s.at(p), fb.ttft_s.at(p)),
        tpot_s=grow(fa.tpot_s.at(p), fb.tpot_s.at(p)),
    )


def answer(candidates: Sequence[Candidate], best: Recommended | None, near: Recommended | None) -> str:
    """The plan in one sentence, with the tightest margin or the nearest miss in it."""
    by_id = {c.id: c for c in candidates}
    if best:
        c = by_id[best.id]
        tight = checks.tightest(c.checks) or c.checks[0]
        bound = " at the datasheet's lower bound" if c.lower_bound else ""
        return (
            f"{name(c)} meets every target{bound}; the tightest is {tight.label} with "
            f"{show(tight.value, tight.unit)} of {show(tight.target, tight.unit)} ({fmt_percent(tight.margin)} to spare)."
        )
    if near:
        close = by_id[near.id]
        word = "clearly meets" if close.verdict == "too close to call" else "meets"
        return f"No candidate {word} every target; the nearest, {name(close)}, {near.rule}."
    return "No candidate fits in memory."


def name(c: Candidate) -> str:
    """A candidate for people: "a100-80gb with chunked batching and 16 seats, llama-3.1-8b in bf16"."""
    many = f"{fmt(c.replicas)} x " if c.replicas > 1 else ""
    spread = f" over {c.tp} GPUs" if c.tp > 1 else ""
    policy = "no batching" if c.policy == "none" else f"{c.policy} batching and {fmt_count(c.seats, 'seat')}"
    return f"{many}{c.device}{spread} with {policy} ({c.model} in {c.precision})"

"""Capacity: the largest load at which a candidate keeps every promise, by bisection on one and the same schedule.

In an open loop the load is a rate, in a closed loop a number of users.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from servefit.objectives import Targets
from servefit.plan import checks
from servefit.plan.plan import Capacity, Check, Figures
from servefit.plan.scenario import (
    STATIC,
    Scenario,
    at_rate,
    figures_of,
    goals,
    offered_req_per_s,
    run,
    value_of,
    with_users,
)

SHARP = 1.02
"""The edge is known when what passes and what fails are within 2%."""
WIDEST = 2.0**10
"""How many times the offered rate the search goes up, and down."""
MOST_USERS = 16
"""How many times the stated users the search goes up."""


def capacity(scenario: Scenario, *, peak_req_per_s: float | None = None, headroom_frac: float = 0.0) -> Capacity | None:
    """The largest rate, in requests per second, at which every latency and goodput check still holds.

    The schedule's gaps are scaled, so that its order, lengths and burstiness stay; a promise of an absolute goodput
    becomes one of the same share. Only the first seed is used: the edge itself has no interval. None for a burst, or
    where even a thousandth of the offered rate fails. A closed loop's capacity is a number of users, see `_users`.
    """
    if scenario.concurrency is not None:
        return _users(scenario, scenario.concurrency, peak_req_per_s, headroom_frac)
    base = scenario.offered_req_per_s or offered_req_per_s(scenario.schedules[0])
    if base is None:
        return None
    scenario = replace(scenario, schedules=scenario.schedules[:1], targets=_as_share(scenario.targets, base))

    def fails(factor: float) -> Check | None:
        return failing(at_rate(scenario, factor))

    good, bad, binding = _bracket(fails)
    if good is None:
        return None
    while bad is not None and bad / good > SHARP:
        middle = math.sqrt(good * bad)
        found = fails(middle)
        if found is None:
            good = middle
        else:
            bad, binding = middle, found
    carried = base * good
    return Capacity(
        req_per_s=carried,
        limited_by=binding.name if binding else "edge not reached",
        fails_at_req_per_s=base * bad if bad is not None else None,
        replicas_for_peak=replicas_for(peak_req_per_s, carried / scenario.replicas, headroom_frac),
    )


def _users(scenario: Scenario, asked: int, peak_req_per_s: float | None, headroom_frac: float) -> Capacity | None:
    """The largest number of users with whom every latency and goodput check still holds: to the user, or to 2%.

    Each user asks as often as in the question; the schedule is repeated where there are more of them. None where even
    one user fails. More than MOST_USERS times those that were asked about are not tried: the edge is not reached then.
    """
    scenario = replace(scenario, schedules=scenario.schedules[:1])
    seen: dict[int, tuple[Check | None, Figures]] = {}

    def fails(users: int) -> Check | None:
        if users not in seen:
            changed = with_users(scenario, users)
            figures = figures_of(run(changed), changed)
            seen[users] = (_missed(figures, changed), figures)
        return seen[users][0]

    good, bad = (asked, None) if fails(asked) is None else (0, asked)
    while bad is None and good < MOST_USERS * asked:
        if fails(2 * good) is None:
            good *= 2
        else:
            bad = 2 * good
    while bad is not None and bad - good > 1 and bad > SHARP * good:
        middle = (good + bad) // 2
        if fails(middle) is None:
            good = middle
        else:
            bad = middle
    if good == 0:
        return None
    rate = seen[good][1].req_per_s or 0.0
    binding = fails(bad) if bad is not None else None
    return Capacity(
        req_per_s=rate,
        limited_by=binding.name if binding else "edge not reached",
        fails_at_req_per_s=None,
        replicas_for_peak=replicas_for(peak_req_per_s, rate / scenario.replicas, headroom_frac),
        users=good,
        fails_at_users=bad,
    )


def _bracket(fails: Callable[[float], Check | None]) -> tuple[float | None, float | None, Check | None]:
    """(a factor that passes, one that fails, what fails there), a factor of two apart; None where there is none."""
    factor = 1.0
    found = fails(factor)
    if found is None:
        while found is None and factor < WIDEST:
            factor *= 2
            found = fails(factor)
        return (factor / 2, factor, found) if found else (factor, None, None)
    while factor > 1 / WIDEST:
        bad, binding = factor, found
        factor /= 2
        found = fails(factor)
        if found is None:
            return factor, bad, binding
        binding = found
    return None, factor, found


def failing(scenario: Scenario) -> Check | None:
    """The check that misses by most on the first schedule, None where all that a rate can move hold."""
    return _missed(figures_of(run(scenario), scenario), scenario)


def _missed(figures: Figures, scenario: Scenario) -> Check | None:
    wanted = goals(scenario.targets)
    missed = []
    for name, (target, unit) in wanted.items():
        if name in STATIC or name == "usd_per_mtok":
            continue
        check = checks.make_check(
            name, target, value_of(name, figures, scenario), None, p=scenario.targets.p, unit=unit
        )
        if check.verdict != "pass":
            missed.append(check)
    if not missed and figures.waiting_at_end:  # it meets its targets only because the schedule ends in time
        return checks.make_check("goodput", 1.0, figures.goodput_frac and min(figures.goodput_frac, 0.999), None)
    return checks.worst(missed)


def _as_share(targets: Targets, offered: float) -> Targets:
    """The same promise at any rate."""
    if targets.goodput_req_per_s is None:
        return targets
    return replace(targets, goodput_req_per_s=None, goodput_frac=min(1.0, targets.goodput_req_per_s / offered))


def replicas_for(peak_req_per_s: float | None, capacity_req_per_s: float, headroom_frac: float) -> int | None:
    """Replicas that carry a peak `headroom_frac` higher than stated: ceil(peak * (1 + headroom) / capacity); None without one.

    >>> replicas_for(120.0, 8.0, 0.0), replicas_for(120.0, 8.0, 0.2)
    (15, 18)
    """
    if peak_req_per_s is None or capacity_req_per_s <= 0:
        return None
    return max(1, math.ceil(peak_req_per_s * (1 + headroom_frac) / capacity_req_per_s - 1e-9))

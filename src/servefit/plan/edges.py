"""Passing ranges: from how many seats to how many every target holds, and which target ends the range on each side."""

from collections.abc import Sequence

from servefit.plan import checks
from servefit.plan.plan import Candidate, Check, DeviceFailure, Edge, SeatRange
from servefit.units import fmt, fmt_count, fmt_percent, fmt_s

Group = tuple[str, str, str, int, str, int, int, int]


def group_of(candidate: Candidate) -> Group:
    """Everything about a candidate but its seats."""
    c = candidate
    return (c.device, c.model, c.precision, c.kv_bits, c.policy, c.budget_tok, c.tp, c.replicas)


def groups(candidates: Sequence[Candidate]) -> dict[Group, list[Candidate]]:
    """Candidates by group, each in rising seats, groups in the order they come."""
    out: dict[Group, list[Candidate]] = {}
    for candidate in candidates:
        out.setdefault(group_of(candidate), []).append(candidate)
    return {key: sorted(members, key=lambda c: c.seats) for key, members in out.items()}


def seat_range(members: Sequence[Candidate]) -> SeatRange:
    """The passing range of one group (candidates that differ in seats alone), with both edges."""
    members = sorted(members, key=lambda c: c.seats)
    first = members[0]
    passing = tuple(c.seats for c in members if c.verdict == "pass")
    never = checks.never([(c.id, c.checks) for c in members]) if not passing else ()
    return SeatRange(
        device=first.device,
        model=first.model,
        precision=first.precision,
        kv_bits=first.kv_bits,
        policy=first.policy,
        budget_tok=first.budget_tok,
        tp=first.tp,
        replicas=first.replicas,
        seats_tried=tuple(c.seats for c in members),
        passing=passing,
        too_close=tuple(c.seats for c in members if c.verdict == "too close to call"),
        low=_edge(members, min(passing), -1) if passing else None,
        high=_edge(members, max(passing), +1) if passing else None,
        never=never,
    )


def _edge(members: Sequence[Candidate], seats: int, side: int) -> Edge:
    """The edge at `seats`: the neighbour on that side, and the check that misses by most there."""
    index = next(i for i, c in enumerate(members) if c.seats == seats) + side
    if not 0 <= index < len(members):
        why = _why_not(members[index - side], side)
        return Edge(seats=seats, reached=False, why_not=why, check=None, outside_seats=None, value=None, target=None)
    outside = members[index]
    binding = checks.worst([c for c in outside.checks if c.verdict != "pass"])
    assert binding is not None, f"{outside.id} does not pass, yet every check of it does"
    return Edge(
        seats=seats,
        reached=True,
        check=binding.name,
        outside_seats=outside.seats,
        value=binding.value,
        target=binding.target,
        verdict=binding.verdict,
        interval=binding.interval,
    )


def _why_not(last: Candidate, side: int) -> str:
    """Why nothing was tried beyond the last candidate on that side."""
    if last.policy == "none":
        return "one at a time"
    if side < 0:
        return "1 is the least" if last.seats == 1 else "fewer were not tried"
    peak = last.figures.in_flight_peak if last.figures else None
    if peak is not None and peak <= last.seats:
        return f"more change nothing: never more than {peak} at once"
    return "more were not tried"


def device_failures(candidates: Sequence[Candidate]) -> tuple[DeviceFailure, ...]:
    """The devices on which nothing passes, each with the checks that no setting of it passes and their best values."""
    by_device: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_device.setdefault(candidate.device, []).append(candidate)
    out = []
    for device, members in by_device.items():
        if any(c.verdict != "fail" for c in members):
            continue
        never = checks.never([(c.id, c.checks) for c in members])
        out.append(DeviceFailure(device=device, never=never, sentence=_sentence(device, members)))
    return tuple(out)


def _sentence(device: str, members: Sequence[Candidate]) -> str:
    """Why nothing passes on this device, in one sentence with the best value."""
    never = checks.never([(c.id, c.checks) for c in members])
    if not never:
        nearest = closest(members)
        binding = checks.worst(nearest.checks)
        assert binding is not None, f"{nearest.id} has no checks"
        return (
            f"{device} passes each check somewhere but never all together; the nearest, {nearest.policy} with "
            f"{nearest.seats} seats, misses {binding.label} with {show(binding.value, binding.unit)} against "
            f"{show(binding.target, binding.unit)}."
        )
    if all(c.figures is None for c in members):
        least = min(members, key=lambda c: c.memory.needed_bytes)
        share = least.memory.needed_bytes / max(1, least.memory.usable_bytes)
        return f"{device} does not hold {least.model} in {least.precision}: it needs {fmt(share, 2)} times the usable memory."
    # TPOT first: it misses for want of speed alone, while TTFT and goodput also miss because a queue grows
    first, *others = sorted(never, key=lambda n: (n.check != "tpot", never.index(n)))
    best = next((c for c in members if c.id == first.best_candidate), None)
    where = f" ({best.policy}, {fmt_count(best.seats, 'seat')})" if best else ""
    rest = "".join(f"; nor {n.label} (best {show(n.best_value, n.unit)})" for n in others)
    if first.best_value is None:
        why = ", as an answer of one token has no gap" if first.check == "tpot" else ""
        return f"{device} never shows {first.label}{why}, so {show(first.target, first.unit)} is not met{rest}."
    return (
        f"{device} never passes {first.label}: its best is {show(first.best_value, first.unit)}{where} against "
        f"{show(first.target, first.unit)}{rest}."
    )


def closest(candidates: Sequence[Candidate]) -> Candidate:
    """The one that is nearest to a clear pass; of equal ones the one with the fewest seats."""
    return min(candidates, key=lambda c: (*checks.misses(c.checks), c.seats))


def against(check: Check) -> str:
    """A check that is no clear pass: its value, its target, and what it may be where that is what stands in the way."""
    says = f"{check.label} is {show(check.value, check.unit)} against {show(check.target, check.unit)}"
    if check.verdict == "fail" or check.interval is None:
        return says
    low, high = (show(end, check.unit) for end in check.interval)
    return f"{says}, but may be {f'{low} to {high}' if check.interval[0] else f'up to {high}'}"


def too_close(candidates: Sequence[Candidate]) -> dict[str, str]:
    """For each device on which nothing passes and not all fails: which check stands in the way, where it comes nearest."""
    by_device: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_device.setdefault(candidate.device, []).append(candidate)
    out = {}
    for device, members in by_device.items():
        near = closest(members)
        if near.verdict == "too close to call":
            doubtful = "; ".join(against(c) for c in near.checks if c.verdict != "pass")
            where = near.policy + ("" if near.policy == "none" else f", {fmt_count(near.seats, 'seat')}")
            out[device] = f"{device} is too close to call at its nearest ({where}): {doubtful}."
    return out


def show(value: float | None, unit: str) -> str:
    """A check's value for people, in its unit.

    >>> show(0.21, "s"), show(0.995, "frac"), show(None, "s")
    ('210 ms', '99.5%', '-')
    """
    if value is None:
        return "-"
    if unit == "s":
        return fmt_s(value)
    if unit == "frac":
        return fmt_percent(value, 1)
    if unit == "req_per_s":
        return f"{fmt(value, 2)} req/s"
    if unit in ("usd_per_hour", "usd_per_mtok"):
        return f"${fmt(value, 2)}"
    return fmt(value, 4)

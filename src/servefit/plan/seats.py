"""How many seats to try: doubling until both edges are passed, then the numbers around each edge."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from servefit.plan.plan import Candidate

MOST_SEATS = 1024
"""No search goes beyond it: an edge further out is "not reached"."""


def search_seats(attempt: Callable[[int], Candidate], *, limit: int = MOST_SEATS) -> list[Candidate]:
    """Candidates with 1, 2, 4, 8 ... seats until more cannot help, and around each edge of the passing range.

    Doubling ends where a passing range has ended, where memory is full, where half the seats are never taken, or where TPOT
    misses its target (it only grows with seats) and TTFT no longer gains. Each edge is then halved in until the numbers
    on its two sides are neighbours (within 3% above 32 seats).
    """
    tried: dict[int, Candidate] = {}
    seats = 1
    while seats <= limit:
        tried[seats] = attempt(seats)
        if _enough([tried[s] for s in sorted(tried)]):
            break
        seats = min(seats * 2, limit) if seats < limit else limit + 1
    passing = [s for s in sorted(tried) if tried[s].verdict == "pass"]
    if passing:
        below = max((s for s in tried if s < passing[0]), default=None)
        above = min((s for s in tried if s > passing[-1]), default=None)
        if below is not None:
            _narrow(attempt, tried, outside=below, inside=passing[0])
        if above is not None:
            _narrow(attempt, tried, outside=above, inside=passing[-1])
    else:
        _look_between(attempt, tried)
    return [tried[s] for s in sorted(tried)]


def _enough(so_far: Sequence[Candidate]) -> bool:
    """Whether more seats cannot open or widen a passing range."""
    last = so_far[-1]
    if last.figures is None:
        return True
    memory, tpot, ttft = last.check("memory"), last.check("tpot"), last.check("ttft")
    if memory and memory.verdict == "fail":
        return True
    passed = any(c.verdict == "pass" for c in so_far)
    if passed and last.verdict == "fail":
        return True
    if last.figures.in_flight_peak is not None and 2 * last.figures.in_flight_peak <= last.seats:
        return True  # seats that are never taken change no latency; those just above still buy capacity
    if tpot is not None and tpot.verdict == "fail":
        before = so_far[-2].check("ttft") if len(so_far) > 1 else None
        if ttft is None or ttft.verdict == "pass":
            return True
        if before and before.value is not None and ttft.value is not None and ttft.value > 0.95 * before.value:
            return True
    return False


def _narrow(attempt: Callable[[int], Candidate], tried: dict[int, Candidate], *, outside: int, inside: int) -> None:
    """Halve in on the edge between a number of seats that passes and one that does not."""
    while abs(outside - inside) > max(1, min(outside, inside) // 32):
        middle = (outside + inside) // 2
        tried[middle] = attempt(middle)
        if tried[middle].verdict == "pass":
            inside = middle
        else:
            outside = middle


def _look_between(attempt: Callable[[int], Candidate], tried: dict[int, Candidate]) -> None:
    """Where nothing passed but the checks that miss change between two neighbours, look for a narrow range in between."""
    order = sorted(tried)
    for low, high in pairwise(order):
        a, b = tried[low], tried[high]
        if a.figures is None or b.figures is None or high - low < 2:
            continue
        missed_low = {c.name for c in a.checks if c.verdict != "pass"}
        missed_high = {c.name for c in b.checks if c.verdict != "pass"}
        if missed_low & missed_high - {"goodput"}:
            continue
        gap = max(1, (high - low) // 4)
        for seats in range(low + gap, high, gap):
            tried[seats] = attempt(seats)

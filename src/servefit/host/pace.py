"""Whether this machine keeps its pace: one small piece of work again and again, by the processor time that it takes.

Processor time leaves out what other programs of this machine take. What still differs comes from below: a virtual core
shares its physical one with a neighbour's, or the clock changes. On a 2-core virtual machine (AMD EPYC, 2026-12-01) with
nothing else in it the same loop took 10.2 ms at the 10th percentile and 18 at the 90th, no time was reported as stolen, and a
lone token of the embedded engine took 13 to 22 ms. On a machine that is still the two lie within a few percent.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from servefit.stats import percentile

WANDERS: Final = 1.25
"""From this factor on a machine is said not to keep its pace."""
PIECE_NS: Final = 400_000
"""About how long one piece takes: far above the clock's steps, far below a neighbour's."""
_FIRST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Processor time of equal pieces of work."""

    fast_s: float
    """Of one in ten, or less."""
    slow_s: float
    """Of nine in ten, or less."""
    n: int

    @property
    def factor(self) -> float:
        """How much longer the slow ones take."""
        return self.slow_s / self.fast_s

    @property
    def wanders(self) -> bool:
        """Whether the machine does not keep its pace."""
        return self.factor > WANDERS


def watch(
    seconds: float = 0.2,
    *,
    clock_ns: Callable[[], int] = time.thread_time_ns,
    work: Callable[[int], object] | None = None,
) -> Pace | None:
    """The pace of this thread within `seconds` of its processor time; None where the clock shows nothing.

    >>> steady = iter(range(0, 10**12, 400_000))
    >>> watch(0.1, clock_ns=lambda: next(steady)).factor
    1.0
    """
    work = work or _work
    first = min(_timed(work, _FIRST, clock_ns) for _ in range(2))
    if first <= 0:
        return None
    rounds = max(1, _FIRST * PIECE_NS // first)
    pieces, spent, most = [], 0, seconds * 1e9
    while spent < most:
        took = _timed(work, rounds, clock_ns)
        if took <= 0:
            return None
        pieces.append(took / 1e9)
        spent += took
    fast, slow = percentile(pieces, 10), percentile(pieces, 90)
    return Pace(fast_s=fast, slow_s=slow, n=len(pieces)) if fast and slow else None


def _timed(work: Callable[[int], object], rounds: int, clock_ns: Callable[[], int]) -> int:
    before = clock_ns()
    work(rounds)
    return clock_ns() - before


def _work(rounds: int) -> int:
    total = 0
    for i in range(rounds):
        total += i * i
    return total

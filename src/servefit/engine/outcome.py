"""What a simulated configuration did, in compact columns: enough for every percentile and count, without token times."""

from __future__ import annotations  # array[float] is a type only to the checker before Python 3.12

import math
import sys
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from servefit.stats import Spread, rank, spread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence as Many

OK, UNFINISHED, REJECTED, NOT_DUE = 0, 1, 2, 3
"""Codes in `Outcome.status`; a request that was not due before the horizon is no part of the run."""


@dataclass(slots=True, kw_only=True)
class Gaps:
    """Every gap between token arrivals, kept as arithmetic series: `weight` sequences, `count` steps, each `delta_s` longer.

    A series stands for the gaps first_s, first_s + delta_s, ..., each `weight` times.
    """

    weight: array[int] = field(default_factory=lambda: array("q"))
    count: array[int] = field(default_factory=lambda: array("q"))
    first_s: array[float] = field(default_factory=lambda: array("d"))
    delta_s: array[float] = field(default_factory=lambda: array("d"))

    def add(self, weight: int, first_s: float, count: int = 1, delta_s: float = 0.0) -> None:
        """One more series."""
        self.weight.append(weight)
        self.count.append(count)
        self.first_s.append(first_s)
        self.delta_s.append(delta_s)

    @property
    def n(self) -> int:
        """How many gaps there are."""
        if np := _numpy(len(self.weight)):
            return int((np.frombuffer(self.weight, np.int64) * np.frombuffer(self.count, np.int64)).sum())
        return sum(w * k for w, k in zip(self.weight, self.count, strict=True))

    @property
    def total_s(self) -> float:
        """All gaps together."""
        if np := _numpy(len(self.weight)):
            w, k = (np.frombuffer(column, np.int64) for column in (self.weight, self.count))
            a, d = (np.frombuffer(column) for column in (self.first_s, self.delta_s))
            return math.fsum(_floats(w * (k * a + d * (k * (k - 1) // 2))))
        return math.fsum(w * (k * a + d * (k * (k - 1) // 2)) for w, a, k, d in self.series())

    def series(self) -> Iterator[tuple[int, float, int, float]]:
        """The series as (weight, first_s, count, delta_s)."""
        return zip(self.weight, self.first_s, self.count, self.delta_s, strict=True)

    def spread(self) -> Spread:
        """Percentiles (exact: each is one of the gaps), mean and maximum of all gaps, in seconds."""
        n = self.n
        if n == 0:
            return Spread(n=0)
        total = self.total_s
        p50, p90, p95, p99, longest = self.at_ranks([*(rank(p, n) for p in (50, 90, 95, 99)), n])
        return Spread(n=n, p50=p50, p90=p90, p95=p95, p99=p99, mean=total / n, max=longest)

    def percentile(self, p: int) -> float | None:
        """The p-th percentile of all gaps by nearest rank, in seconds; None where there are none.

        >>> gaps = Gaps()
        >>> gaps.add(2, 0.010, 3, 0.001)  # 10, 10, 11, 11, 12, 12 ms
        >>> gaps.percentile(50)
        0.011
        """
        n = self.n
        return self.at_ranks([rank(p, n)])[0] if n else None

    def at_ranks(self, ranks: Many[int]) -> list[float]:
        """The gaps at these 1-based ranks, each exactly one of the gaps.

        Were every series as short as its shortest gap, or as long as its longest, the rank would fall on a value below or
        above the right one: only the few series that reach between the two are looked into.
        """
        if _numpy(len(self.weight)):  # the same values, sooner
            return self._at_ranks_numpy(ranks)
        lows = [a + min(d, 0.0) * (k - 1) for _, a, k, d in self.series()]
        highs = [a + max(d, 0.0) * (k - 1) for _, a, k, d in self.series()]
        sizes = [w * k for w, k in zip(self.weight, self.count, strict=True)]
        low_at, low_sum = _cumulated(lows, sizes)
        high_at, high_sum = _cumulated(highs, sizes)
        out = []
        for wanted in ranks:
            least = low_at[bisect_left(low_sum, wanted)]
            most = high_at[bisect_left(high_sum, wanted)]
            below = bisect_left(high_at, least)
            left = wanted - (high_sum[below - 1] if below else 0)
            rows = zip(lows, highs, self.weight, self.first_s, self.count, self.delta_s, strict=True)
            near = [(w, a, k, d) for low, high, w, a, k, d in rows if low <= most and high >= least]
            out.append(_select(near, left))
        return out

    def _at_ranks_numpy(self, ranks: Many[int]) -> list[float]:
        import numpy as np

        w, k = (np.frombuffer(column, np.int64) for column in (self.weight, self.count))
        a, d = (np.frombuffer(column, np.float64) for column in (self.first_s, self.delta_s))
        lows, highs, sizes = a + np.minimum(d, 0.0) * (k - 1), a + np.maximum(d, 0.0) * (k - 1), w * k
        by_low, by_high = np.argsort(lows, kind="stable"), np.argsort(highs, kind="stable")
        low_at, low_sum = lows[by_low], np.cumsum(sizes[by_low])
        high_at, high_sum = highs[by_high], np.cumsum(sizes[by_high])
        out = []
        for wanted in ranks:
            least, most = low_at[np.searchsorted(low_sum, wanted)], high_at[np.searchsorted(high_sum, wanted)]
            below = int(np.searchsorted(high_at, least))
            left = wanted - (int(high_sum[below - 1]) if below else 0)
            near = np.nonzero((lows <= most) & (highs >= least))[0]
            out.append(_select_numpy(w[near], a[near], k[near], d[near], left))
        return out


def _cumulated(values: list[float], sizes: list[int]) -> tuple[list[float], list[int]]:
    """The values in order, and how many gaps belong to each and those before."""
    order = sorted(range(len(values)), key=values.__getitem__)
    return [values[i] for i in order], list(accumulate(sizes[i] for i in order))


def _select(series: list[tuple[int, float, int, float]], wanted: int) -> float:
    """The value of 1-based rank `wanted` in a set of series: bisect on the value, dropping what lies outside."""
    low = min(min(a, a + d * (k - 1)) for _, a, k, d in series)
    high = max(max(a, a + d * (k - 1)) for _, a, k, d in series)
    while True:
        size = sum(k for _, _, k, _ in series)
        middle = low + (high - low) / 2
        if size <= 4096 or not low < middle < high:
            values = sorted((a + d * i, w) for w, a, k, d in series for i in range(k))
            for value, weight in values:
                wanted -= weight
                if wanted <= 0:
                    return value
            raise AssertionError("a rank beyond the last gap was asked for")
        left, right = _split(series, middle)
        count = sum(w * k for w, _, k, _ in left)
        if wanted <= count:
            series, high = left, middle
        else:
            series, low, wanted = right, middle, wanted - count


def _split(
    series: list[tuple[int, float, int, float]], at: float
) -> tuple[list[tuple[int, float, int, float]], list[tuple[int, float, int, float]]]:
    """The series cut into values up to `at` and values above it."""
    left, right = [], []
    for w, a, k, d in series:
        below = _count_up_to(a, k, d, at)
        if below == k:
            left.append((w, a, k, d))
        elif below == 0:
            right.append((w, a, k, d))
        elif d > 0:
            left.append((w, a, below, d))
            right.append((w, a + d * below, k - below, d))
        else:
            right.append((w, a, k - below, d))
            left.append((w, a + d * (k - below), below, d))
    return left, right


def _count_up_to(a: float, k: int, d: float, at: float) -> int:
    if d == 0.0:
        return k if a <= at else 0
    if d > 0:
        return min(max(math.floor((at - a) / d) + 1, 0), k)
    return k - min(max(math.ceil((a - at) / -d), 0), k)


def _select_numpy(w: Any, a: Any, k: Any, d: Any, wanted: int) -> float:
    """What `_select` finds, to the bit, in arrays."""
    import numpy as np

    last = a + d * (k - 1)
    low, high = float(np.minimum(a, last).min()), float(np.maximum(a, last).max())
    while k.sum() > 4096:
        middle = low + (high - low) / 2
        if not low < middle < high:
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            up, down = np.floor((middle - a) / d) + 1.0, np.ceil((a - middle) / -d)
        below = np.where(d > 0, np.clip(up, 0, k), k - np.clip(down, 0, k))
        below = np.where(d == 0.0, np.where(a <= middle, k, 0), below).astype(np.int64)
        count = int((w * below).sum())
        lower = wanted <= count
        size = below if lower else k - below
        start = a + d * np.where((d > 0) == lower, 0, np.where(d > 0, below, k - below))
        keep = size > 0
        w, a, k, d = w[keep], start[keep], size[keep], d[keep]
        if lower:
            high = middle
        else:
            low, wanted = middle, wanted - count
    return _select(list(zip(w.tolist(), a.tolist(), k.tolist(), d.tolist(), strict=True)), wanted)


def _numpy(n: int) -> Any:
    """The numpy that is loaded already, where there is enough to do; the figures are the same without."""
    return sys.modules.get("numpy") if n > 500 else None


def _floats(values: Any) -> array[float]:
    out = array("d")
    out.frombytes(values.tobytes())
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One configuration under one schedule. Columns have one entry a request, in the schedule's order; NaN: never was."""

    due_s: array[float]
    first_s: array[float]
    """Arrival of the first token."""
    last_s: array[float]
    """Arrival of the last token so far."""
    produced_tok: array[int]
    osl: array[int]
    isl: array[int]
    status: array[int]
    preempted: array[int]
    gaps: Gaps
    steps: int
    busy_s: float
    """Time in steps, all replicas together."""
    kv_blocks: int | None
    peak_kv_blocks: int
    end_s: float
    """When the last request ended, or the horizon."""
    cached_tok: int = 0
    """Prompt tokens that a prefix cache saved."""

    @property
    def n(self) -> int:
        """Requests in: those that were due. Equals finished + unfinished + rejected."""
        return len(self.status) - self.status.count(NOT_DUE)

    @property
    def finished(self) -> int:
        """Requests that got all their tokens."""
        return self.status.count(OK)

    @property
    def unfinished(self) -> int:
        """Requests that were still waiting or running at the horizon: misses."""
        return self.status.count(UNFINISHED)

    @property
    def rejected(self) -> int:
        """Requests larger than the whole KV cache: misses."""
        return self.status.count(REJECTED)

    @property
    def ttft_s(self) -> array[float]:
        """Due to first token, of the finished requests."""
        return self._between(self.first_s, self.due_s)

    @property
    def e2e_s(self) -> array[float]:
        """Due to last token, of the finished requests."""
        return self._between(self.last_s, self.due_s)

    def _between(self, later: array[float], earlier: array[float]) -> array[float]:
        if np := _numpy(len(later)):
            at, since = np.frombuffer(later), np.frombuffer(earlier)
            return _floats((at - since)[np.frombuffer(self.status, np.int8) == OK])
        return array("d", (b - a for s, a, b in zip(self.status, earlier, later, strict=True) if s == OK))

    @property
    def tpot_s(self) -> array[float]:
        """(last - first) / (tokens - 1), of the finished requests with two tokens or more."""
        if np := _numpy(len(self.osl)):
            osl = np.frombuffer(self.osl, np.int64)
            some = (np.frombuffer(self.status, np.int8) == OK) & (osl > 1)
            return _floats((np.frombuffer(self.last_s)[some] - np.frombuffer(self.first_s)[some]) / (osl[some] - 1))
        rows = zip(self.status, self.first_s, self.last_s, self.osl, strict=True)
        return array("d", ((e - f) / (k - 1) for s, f, e, k in rows if s == OK and k > 1))

    @property
    def itl_s(self) -> Spread:
        """Percentiles of every gap between tokens, those of unfinished requests included."""
        return self.gaps.spread()

    @property
    def output_tok(self) -> int:
        """Tokens of the finished requests."""
        return sum(k for s, k in zip(self.status, self.produced_tok, strict=True) if s == OK)

    @property
    def duration_s(self) -> float:
        """From the first due to the end, in seconds."""
        dues = [d for s, d in zip(self.status, self.due_s, strict=True) if s != NOT_DUE]
        return self.end_s - min(dues) if dues else 0.0

    @property
    def busy_frac(self) -> float | None:
        """Share of the time in which a step ran (of one replica); None where no time passed."""
        return self.busy_s / self.duration_s if self.duration_s > 0 else None

    @property
    def in_flight_peak(self) -> int:
        """The most requests that were there at once, waiting or running, of those that finished."""
        if np := _numpy(len(self.status)):
            ok = np.frombuffer(self.status, np.int8) == OK
            begun = np.sort(np.frombuffer(self.due_s)[ok])
            gone = np.searchsorted(np.sort(np.frombuffer(self.last_s)[ok]), begun, side="right")
            return int((np.arange(1, len(begun) + 1) - gone).max(initial=0))
        rows = [(d, e) for s, d, e in zip(self.status, self.due_s, self.last_s, strict=True) if s == OK]
        ends = sorted(e for _, e in rows)
        return max((i - bisect_right(ends, d) for i, d in enumerate(sorted(d for d, _ in rows), start=1)), default=0)

    def good(self, *, ttft_s: float | None = None, tpot_s: float | None = None, e2e_s: float | None = None) -> int:
        """How many requests finished and met every limit that is given."""
        if np := _numpy(len(self.osl)):
            due, first, last = (np.frombuffer(column) for column in (self.due_s, self.first_s, self.last_s))
            osl, good = np.frombuffer(self.osl, np.int64), np.frombuffer(self.status, np.int8) == OK
            if ttft_s is not None:
                good &= first - due <= ttft_s
            if tpot_s is not None:
                good &= (osl < 2) | ((last - first) / np.maximum(osl - 1, 1) <= tpot_s)
            if e2e_s is not None:
                good &= last - due <= e2e_s
            return int(good.sum())
        count = 0
        rows = zip(self.status, self.due_s, self.first_s, self.last_s, self.osl, strict=True)
        for status, due, first, last, osl in rows:
            if (
                status == OK
                and (ttft_s is None or first - due <= ttft_s)
                and (tpot_s is None or osl < 2 or (last - first) / (osl - 1) <= tpot_s)
                and (e2e_s is None or last - due <= e2e_s)
            ):
                count += 1
        return count

    def spreads(self, *, itl: bool = True) -> dict[str, Spread]:
        """Percentiles of ttft_s, tpot_s, e2e_s and itl_s; without `itl`, the most work by far, that one is empty."""
        return {
            "ttft_s": spread(self.ttft_s),
            "tpot_s": spread(self.tpot_s),
            "e2e_s": spread(self.e2e_s),
            "itl_s": self.itl_s if itl else Spread(n=0),
        }

"""Percentiles that are measured values, and how sure one may be of them.

Nearest rank in integer arithmetic: float `p / 100 * n` gives a wrong rank for 141 of the pairs p 1..99, n 1..1000.
"""

import math
import random
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain
from statistics import NormalDist

from servefit.spill import Ranked


def rank(p: int, n: int) -> int:
    """The 1-based nearest rank of percentile `p` (1 to 100) among `n` values: ceil(p * n / 100).

    >>> rank(50, 10), rank(95, 10), rank(99, 100)
    (5, 10, 99)
    """
    assert 1 <= p <= 100 and n >= 1, f"no rank for p{p} of {n} values"
    return -(-p * n // 100)


def in_order(values: Iterable[float]) -> Sequence[float] | Ranked:
    """The values, the least first."""
    return values if isinstance(values, Ranked) else sorted(values)


def percentile(values: Iterable[float], p: int) -> float | None:
    """The p-th percentile by nearest rank: always one of the values; None where there are none.

    >>> percentile([0] * 19 + [60], 95), percentile([0] * 19 + [60], 96)
    (0, 60)
    """
    ordered = in_order(values)
    return ordered[rank(p, len(ordered)) - 1] if len(ordered) else None


def is_slowest(p: int, n: int) -> bool:
    """Whether percentile `p` of `n` values is simply their maximum (p95 below 20 values, p99 below 100)."""
    return n > 0 and rank(p, n) == n


def percentile_interval(
    values: Sequence[float] | Ranked, p: int, *, confidence: float = 0.95
) -> tuple[float, float] | None:
    """An order-statistic interval for the p-th percentile, at least `confidence` sure; None where n is too small.

    Exact binomial: the number of values below the true percentile is Binomial(n, p/100), whatever the distribution.
    The interval is (x_(l), x_(u)) with the smallest u - l around the nearest rank whose coverage reaches `confidence`.
    Source: David and Nagaraja, Order Statistics, 3rd ed., 7.1. Assumes independent values, which requests that share a
    queue are not quite: repeats (`--repeat`) say what that costs.
    """
    ordered = in_order(values)
    ranks = interval_ranks(p, len(ordered), confidence=confidence)
    return (ordered[ranks[0] - 1], ordered[ranks[1] - 1]) if ranks else None


@cache
def interval_ranks(p: int, n: int, *, confidence: float = 0.95) -> tuple[int, int] | None:
    """The 1-based ranks (l, u) of the interval for percentile `p` of `n` values; None where n is too small.

    >>> interval_ranks(50, 10), interval_ranks(95, 10)
    ((2, 9), None)
    """
    if n == 0:
        return None
    if n > 2000:  # the normal approximation is off by less than a rank here, and constant in time
        z = NormalDist().inv_cdf(0.5 + confidence / 2)
        middle, half = n * p / 100, z * math.sqrt(n * p / 100 * (1 - p / 100))
        lower, upper = max(1, math.floor(middle - half)), math.ceil(middle + half) + 1
        return (lower, upper) if upper <= n else None
    cdf = binomial_cdf(n, p / 100)

    def chance(k: int) -> float:
        """P(B = k); below 0 where k is no rank to move to."""
        return cdf[k] - (cdf[k - 1] if k else 0.0) if 0 <= k <= n else -1.0

    # P(x_(l) <= quantile < x_(u)) = P(l <= B <= u - 1): grow toward the likelier side until it is sure enough
    lower = upper = rank(p, n)
    while lower == upper or cdf[upper - 1] - cdf[lower - 1] < confidence:
        below = chance(lower - 1) if lower > 1 else -1.0
        above = chance(upper) if upper < n else -1.0
        if below < 0 and above < 0:
            return None
        lower, upper = (lower - 1, upper) if below >= above else (lower, upper + 1)
    return lower, upper


def binomial_cdf(n: int, q: float) -> list[float]:
    """P(B <= k) for k = 0..n, B ~ Binomial(n, q), by log-space terms."""
    if q >= 1:
        return [0.0] * n + [1.0]
    log_q, log_r = math.log(q), math.log1p(-q)
    total, out = 0.0, []
    for k in range(n + 1):
        term = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * log_q + (n - k) * log_r
        total += math.exp(term)
        out.append(min(total, 1.0))
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The shape of one figure over its observations, in the figure's own unit; all None where there are none."""

    n: int
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    mean: float | None = None
    max: float | None = None

    def at(self, p: int) -> float | None:
        """The p-th percentile, one of 50, 90, 95 and 99.

        >>> spread([1.0, 2.0, 3.0]).at(50)
        2.0
        """
        assert p in (50, 90, 95, 99), f"no p{p} is kept"
        value: float | None = getattr(self, f"p{p}")
        return value


def spread(values: Iterable[float]) -> Spread:
    """Percentiles, mean and maximum of the values."""
    if isinstance(values, array) and "numpy" in sys.modules:  # the same figures, in a tenth of the time and memory
        import numpy as np

        ordered: Sequence[float] | Ranked = array(
            values.typecode, np.sort(np.frombuffer(values, values.typecode)).tobytes()
        )
    else:
        ordered = in_order(values)
    n = len(ordered)
    if n == 0:
        return Spread(n=0)
    p50, p90, p95, p99 = (ordered[rank(p, n) - 1] for p in (50, 90, 95, 99))
    mean = ordered.mean() if isinstance(ordered, Ranked) else math.fsum(ordered) / n
    return Spread(n=n, p50=p50, p90=p90, p95=p95, p99=p99, mean=mean, max=ordered[-1])


class Tally:
    """The spread of very many values in bounded memory: exact up to `exact` of them, beyond that to 0.003%.

    Beyond, values are counted in bins, 16,384 to each power of two, and a percentile is the middle of its bin: off by half a
    bin at most. n and max stay exact, the mean to rounding. Values are times: a negative one counts as 0.

    >>> tally = Tally(exact=2); tally.add([1.0, 2.0, 3.0]); found = tally.spread(); (found.n, found.max, found.mean)
    (3, 3.0, 2.0)
    """

    def __init__(self, *, exact: int = 1_000_000) -> None:
        self._exact = exact
        self._values = array("d")
        self._octaves: dict[int, array[int]] = {}
        """By the power of two: how many fell into each of its bins, 131 kB."""
        self._n = 0
        self._sum = self._max = 0.0

    def add(self, values: Sequence[float]) -> None:
        """Count more values."""
        self._values.extend(values)
        if len(self._values) <= self._exact:
            return
        self._exact = min(self._exact, 10_000)  # from now on only gathered, to be counted
        # a piece at a time: a million at once would hold up whoever measures for half a second
        self._count(max(_PIECE, 2 * len(values)))

    def _count(self, most: int) -> None:
        """Have the last of the values that wait counted, so many at most."""
        piece = self._values[-most:]
        del self._values[-most:]
        self._n += len(piece)
        self._sum = math.fsum(chain((self._sum,), piece))
        self._max = max(self._max, *piece)
        octaves = self._octaves
        for key in map(_bin_of, piece):
            octave = octaves.get(key // _STEPS)
            if octave is None:
                octave = octaves[key // _STEPS] = array("Q", bytes(8 * _STEPS))
            octave[key % _STEPS] += 1

    def spread(self) -> Spread:
        """Percentiles, mean and maximum of all values."""
        if not self._n:
            return spread(self._values)
        if self._values:
            self._count(len(self._values))
        p50, p90, p95, p99 = (self._at(rank(p, self._n)) for p in (50, 90, 95, 99))
        return Spread(n=self._n, p50=p50, p90=p90, p95=p95, p99=p99, mean=self._sum / self._n, max=self._max)

    def _at(self, place: int) -> float:
        """The middle of the bin in which the value of this rank lies."""
        for power in sorted(self._octaves):
            octave = self._octaves[power]
            if (inside := sum(octave)) >= place:
                return _middle_of(power * _STEPS + bisect_left(list(accumulate(octave)), place))
            place -= inside
        raise AssertionError("a rank is at most the number of values")


_STEPS = 1 << 14
_PIECE = 1_000
_ZERO = -(1 << 62)


def _bin_of(value: float) -> int:
    """The number of the bin that a value falls into; larger values have larger numbers."""
    share, power = math.frexp(value)  # value = share * 2**power, share from 0.5 to 1
    return power * _STEPS + int((share - 0.5) * 2 * _STEPS) if value > 0 else _ZERO


def _middle_of(key: int) -> float:
    power, step = divmod(key, _STEPS)
    return math.ldexp(0.5 + (step + 0.5) / (2 * _STEPS), power) if key != _ZERO else 0.0


# --- differences ------------------------------------------------------------------------------------------------------


def percentile_difference(
    a: Sequence[float], b: Sequence[float], p: int, rng: random.Random, *, confidence: float = 0.95, draws: int = 4000
) -> tuple[float, float] | None:
    """An interval for (p-th percentile of `b`) - (that of `a`), by bootstrap; None where either has too few values.

    Nothing is resampled: the r-th smallest of n resampled values is the ceil(n * U)-th of the sample, U ~ Beta(r, n - r + 1),
    so each draw costs the same at any n. Too few: where the percentile of one alone has no order-statistic interval at
    this confidence (p95 below 59 values at 95%). Sources: Maritz and Jarrett, JASA 73 (1978) 194; Efron and Tibshirani, An
    Introduction to the Bootstrap, 13.3. Takes values as independent; requests that share a queue are so only roughly.

    >>> percentile_difference([1.0] * 80, [3.0] * 80, 95, random.Random(0))
    (2.0, 2.0)
    >>> percentile_difference([1.0] * 10, [3.0] * 10, 95, random.Random(0)) is None
    True
    """
    if any(interval_ranks(p, len(values), confidence=confidence) is None for values in (a, b)):
        return None
    first, second = _percentile_draws(a, p, rng, draws), _percentile_draws(b, p, rng, draws)
    gaps = sorted(y - x for x, y in zip(first, second, strict=True))
    tail = round(draws * (1 - confidence) / 2)
    return gaps[tail], gaps[-tail - 1]


def _percentile_draws(values: Sequence[float], p: int, rng: random.Random, draws: int) -> list[float]:
    ordered = sorted(values)
    n = len(ordered)
    r = rank(p, n)
    return [ordered[max(1, math.ceil(n * rng.betavariate(r, n - r + 1))) - 1] for _ in range(draws)]


def share_interval(hits: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a share of n trials; (0, 1) without trials.

    >>> tuple(round(x, 4) for x in share_interval(0, 10))
    (0.0, 0.2775)
    """
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = hits / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def share_difference(a: tuple[int, int], b: tuple[int, int], *, confidence: float = 0.95) -> tuple[float, float]:
    """An interval for share(b) - share(a), each (hits, trials): Newcombe's hybrid of two Wilson intervals.

    His example, 56 of 70 against 48 of 80: from 0.0524 to 0.3339. Source: R. G. Newcombe, Statistics in Medicine 17
    (1998) 873, method 10, table II (a).

    >>> tuple(round(x, 4) for x in share_difference((48, 80), (56, 70)))
    (0.0524, 0.3339)
    """
    (a_low, a_high), (b_low, b_high) = (share_interval(*pair, confidence=confidence) for pair in (a, b))
    pa, pb = (hits / n if n else 0.5 for hits, n in (a, b))
    down = math.hypot(pb - b_low, a_high - pa)
    up = math.hypot(b_high - pb, pa - a_low)
    return pb - pa - down, pb - pa + up


def mean_difference(a: Sequence[float], b: Sequence[float], *, confidence: float = 0.95) -> tuple[float, float] | None:
    """Welch's interval for mean(b) - mean(a); None where either has fewer than five values.

    Student's t by Abramowitz and Stegun 26.7.5, off by less than 1% from five degrees of freedom on at 95%.

    >>> low, high = mean_difference([1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6, 7]); round(low, 2), round(high, 2)
    (-1.41, 3.41)
    """
    if min(len(a), len(b)) < 5:
        return None
    means = [math.fsum(v) / len(v) for v in (a, b)]
    squares = [math.fsum((x - m) ** 2 for x in v) / (len(v) - 1) / len(v) for v, m in zip((a, b), means, strict=True)]
    spread_ = math.sqrt(sum(squares))
    gap = means[1] - means[0]
    if spread_ == 0:
        return gap, gap
    freedom = sum(squares) ** 2 / sum(s * s / (len(v) - 1) for s, v in zip(squares, (a, b), strict=True))
    half = student_t(0.5 + confidence / 2, freedom) * spread_
    return gap - half, gap + half


def student_t(q: float, freedom: float) -> float:
    """The q-quantile of Student's t, by Abramowitz and Stegun 26.7.5.

    >>> round(student_t(0.975, 7), 2), round(student_t(0.995, 10), 2)
    (2.36, 3.17)
    """
    z, v = NormalDist().inv_cdf(q), freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3

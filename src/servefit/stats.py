"""Percentiles that are measured values, and how sure one may be of them.

Nearest rank in integer arithmetic: float `p / 100 * n` gives a wrong rank for 141 of the pairs p 1..99, n 1..1000.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist


def rank(p: int, n: int) -> int:
    """The 1-based nearest rank of percentile `p` (1 to 100) among `n` values: ceil(p * n / 100).

    >>> rank(50, 10), rank(95, 10), rank(99, 100)
    (5, 10, 99)
    """
    assert 1 <= p <= 100 and n >= 1, f"no rank for p{p} of {n} values"
    return -(-p * n // 100)


def percentile(values: Iterable[float], p: int) -> float | None:
    """The p-th percentile by nearest rank: always one of the values; None where there are none.

    >>> percentile([0] * 19 + [60], 95), percentile([0] * 19 + [60], 96)
    (0, 60)
    """
    ordered = sorted(values)
    return ordered[rank(p, len(ordered)) - 1] if ordered else None


def is_slowest(p: int, n: int) -> bool:
    """Whether percentile `p` of `n` values is simply their maximum (p95 below 20 values, p99 below 100)."""
    return n > 0 and rank(p, n) == n


def percentile_interval(values: Sequence[float], p: int, *, confidence: float = 0.95) -> tuple[float, float] | None:
    """An order-statistic interval for the p-th percentile, at least `confidence` sure; None where n is too small.

    Exact binomial: the number of values below the true percentile is Binomial(n, p/100), whatever the distribution.
    The interval is (x_(l), x_(u)) with the smallest u - l around the nearest rank whose coverage reaches `confidence`.
    Source: David and Nagaraja, Order Statistics, 3rd ed., 7.1. Assumes independent values, which requests that share a
    queue are not quite: repeats (`--repeat`) say what that costs.
    """
    ordered = sorted(values)
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


def spread(values: Iterable[float]) -> Spread:
    """Percentiles, mean and maximum of the values."""
    ordered = sorted(values)
    n = len(ordered)
    if n == 0:
        return Spread(n=0)
    p50, p90, p95, p99 = (ordered[rank(p, n) - 1] for p in (50, 90, 95, 99))
    return Spread(n=n, p50=p50, p90=p90, p95=p95, p99=p99, mean=math.fsum(ordered) / n, max=ordered[-1])

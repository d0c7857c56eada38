"""Robust linear regression in plain Python: a few non-negative coefficients from some thousand observations.

Errors of step times are relative and one-sided (a busy moment makes a step late, nothing makes it early), so rows are
scaled by the fitted value and weighted by Tukey's biweight, started from Huber's weights. Sources: P. J. Huber, Robust
Statistics (1981), 7.8; Beaton and Tukey, Technometrics 16 (1974). The covariance is the sandwich, over groups of rows
that share a moment, since neighbours in time share their luck (Liang and Zeger, Biometrika 73, 1986).
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

HUBER_K = 1.345
TUKEY_K = 4.685
"""Both give 95% of the efficiency of least squares on normal errors."""
_TOLERANCE = 1e-4
"""A column that the columns before it explain to this share of its squared norm cannot be told apart from them."""


_FINEST = 1e-3
"""No clock on the way tells step times to better than this share: a perfect fit must not throw out all but itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Coefficients in the columns' order; None where the rows cannot tell a column from the others."""

    beta: tuple[float | None, ...]
    covariance: tuple[tuple[float, ...], ...]
    scale: float
    """Robust standard deviation of (measured - fitted) / fitted."""
    weights: tuple[float, ...]
    freedom: int
    """Degrees of freedom behind the covariance: groups minus coefficients."""


def robust_fit(
    x: Sequence[Sequence[float]],
    y: Sequence[float],
    groups: Sequence[Hashable],
    *,
    importance: Sequence[float] | None = None,
    rounds: int = 30,
) -> Fit:
    """Non-negative coefficients b with y ~ x b, errors relative to the fitted value.

    Columns are judged in order: the first are kept where two say the same. `importance` weighs rows (1 each by
    default). Columns whose coefficient would be negative are held at zero, one at a time, the most negative first.
    """
    n, m = len(y), len(x[0]) if x else 0
    given = list(importance) if importance is not None else [1.0] * n
    told = identifiable(x, y, given)
    all_told = [j for j in range(m) if told[j]]
    free = list(all_told)
    beta, weights, scale = _iterate(x, y, given, free, rounds)
    while free and min(beta[j] for j in free) < 0:
        free.remove(min(free, key=lambda j: beta[j] * _norm(x, j)))
        beta, weights, scale = _iterate(x, y, given, free, rounds)
    # Columns held at zero stay in the covariance: that they may not be negative does not make them certain.
    used = [g * w for g, w in zip(given, weights, strict=True)]
    covariance, freedom = _sandwich(x, y, used, beta=beta, free=all_told, groups=groups)
    return Fit(
        beta=tuple(beta[j] if told[j] else None for j in range(m)),
        covariance=covariance,
        scale=scale,
        weights=tuple(weights),
        freedom=freedom,
    )


def identifiable(x: Sequence[Sequence[float]], y: Sequence[float], importance: Sequence[float]) -> list[bool]:
    """For each column, whether the rows tell it from the columns before it (modified Gram-Schmidt on relative rows)."""
    m = len(x[0]) if x else 0
    root = [math.sqrt(w) / v if v > 0 else 0.0 for w, v in zip(importance, y, strict=True)]
    basis: list[list[float]] = []
    told: list[bool] = []
    for j in range(m):
        column = [row[j] * r for row, r in zip(x, root, strict=True)]
        norm = math.fsum(v * v for v in column)
        rest = column
        for q in basis:
            dot = math.fsum(a * b for a, b in zip(q, rest, strict=True))
            rest = [a - dot * b for a, b in zip(rest, q, strict=True)]
        left = math.fsum(v * v for v in rest)
        seen = sum(1 for row in x if row[j])
        told.append(norm > 0 and left > _TOLERANCE * norm and seen >= 3)
        if told[-1]:
            size = math.sqrt(left)
            basis.append([v / size for v in rest])
    return told


def _norm(x: Sequence[Sequence[float]], j: int) -> float:
    return math.sqrt(math.fsum(row[j] * row[j] for row in x))


def _iterate(
    x: Sequence[Sequence[float]], y: Sequence[float], given: Sequence[float], free: list[int], rounds: int
) -> tuple[list[float], list[float], float]:
    """Iteratively reweighted least squares over the `free` columns: Huber first, then Tukey."""
    m = len(x[0]) if x else 0
    n = len(y)
    weights = [1.0] * n
    size = list(y)
    beta = [0.0] * m
    scale = 0.0
    for round_ in range(rounds):
        solved = _weighted(x, y, [g * w / (s * s) for g, w, s in zip(given, weights, size, strict=True)], free)
        moved = max((abs(solved[j] - beta[j]) / (abs(solved[j]) + 1e-15) for j in free), default=0.0)
        beta = solved
        fitted = [max(math.fsum(row[j] * beta[j] for j in free), 1e-3 * v) for row, v in zip(x, y, strict=True)]
        size = fitted
        relative = [(v - f) / f for v, f in zip(y, fitted, strict=True)]
        scale = max(_median([abs(r) for r in relative]) / 0.6745, _FINEST)
        tukey = round_ >= 5
        weights = [_tukey(r / scale) if tukey else _huber(r / scale) for r in relative]
        if tukey and moved < 1e-7:
            break
    return beta, weights, scale


def _huber(z: float) -> float:
    return 1.0 if abs(z) <= HUBER_K else HUBER_K / abs(z)


def _tukey(z: float) -> float:
    return (1.0 - (z / TUKEY_K) ** 2) ** 2 if abs(z) < TUKEY_K else 0.0


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


def _weighted(
    x: Sequence[Sequence[float]], y: Sequence[float], weights: Sequence[float], free: list[int]
) -> list[float]:
    """Weighted least squares over the `free` columns; the others are zero. Columns are scaled before solving."""
    m = len(x[0]) if x else 0
    scales = {
        j: math.sqrt(math.fsum(w * row[j] * row[j] for row, w in zip(x, weights, strict=True))) or 1.0 for j in free
    }
    k = len(free)
    gram = [[0.0] * k for _ in range(k)]
    right = [0.0] * k
    for row, v, w in zip(x, y, weights, strict=True):
        if w == 0.0:
            continue
        scaled = [row[j] / scales[j] for j in free]
        for a in range(k):
            if scaled[a] == 0.0:
                continue
            wa = w * scaled[a]
            right[a] += wa * v
            for b in range(a, k):
                gram[a][b] += wa * scaled[b]
    for a in range(k):
        for b in range(a):
            gram[a][b] = gram[b][a]
    inverse = _inverse(gram)
    beta = [0.0] * m
    for a, j in enumerate(free):
        beta[j] = math.fsum(inverse[a][b] * right[b] for b in range(k)) / scales[j]
    return beta


def _inverse(matrix: list[list[float]]) -> list[list[float]]:
    """Inverse of a symmetric matrix of unit diagonal by Gauss-Jordan with pivots; a whisper of ridge keeps it regular."""
    n = len(matrix)
    work = [
        [*(v + (1e-12 if i == j else 0.0) for j, v in enumerate(row)), *(1.0 if i == j else 0.0 for j in range(n))]
        for i, row in enumerate(matrix)
    ]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(work[r][i]))
        work[i], work[pivot] = work[pivot], work[i]
        head = work[i][i] or 1e-300
        work[i] = [v / head for v in work[i]]
        for r in range(n):
            if r != i and work[r][i] != 0.0:
                factor = work[r][i]
                work[r] = [a - factor * b for a, b in zip(work[r], work[i], strict=True)]
    return [row[n:] for row in work]


def _sandwich(
    x: Sequence[Sequence[float]],
    y: Sequence[float],
    weights: Sequence[float],
    *,
    beta: Sequence[float],
    free: list[int],
    groups: Sequence[Hashable],
) -> tuple[tuple[tuple[float, ...], ...], int]:
    """Covariance of beta: the larger, entry by entry of the diagonal, of the row-wise and the group-wise sandwich."""
    m, k = len(x[0]) if x else 0, len(free)
    fitted = [max(math.fsum(row[j] * beta[j] for j in free), 1e-3 * v) for row, v in zip(x, y, strict=True)]
    units = [1.0 / (_rms([row[j] / f for row, f in zip(x, fitted, strict=True)]) or 1.0) for j in free]
    bread = [[0.0] * k for _ in range(k)]
    single = [[0.0] * k for _ in range(k)]
    scores: dict[Hashable, list[float]] = defaultdict(lambda: [0.0] * k)
    for row, v, f, w, group in zip(x, y, fitted, weights, groups, strict=True):
        if w == 0.0:
            continue
        z = [row[j] / f * u for j, u in zip(free, units, strict=True)]
        error = (v - f) / f
        score = scores[group]
        for a in range(k):
            score[a] += w * z[a] * error
            for b in range(k):
                bread[a][b] += w * z[a] * z[b]
                single[a][b] += (w * error) ** 2 * z[a] * z[b]
    together = [[math.fsum(s[a] * s[b] for s in scores.values()) for b in range(k)] for a in range(k)]
    inverse = _inverse(bread)
    count = len(scores)
    freedom = max(count - k, 1)
    inflate = count / freedom
    by_row, by_group = _meat(inverse, single), _meat(inverse, together)
    out = [[0.0] * m for _ in range(m)]
    grow = [math.sqrt(max(1.0, by_row[a][a] / by_group[a][a])) if by_group[a][a] > 0 else 0.0 for a in range(k)]
    for a, i in enumerate(free):
        for b, j in enumerate(free):
            value = by_group[a][b] * grow[a] * grow[b] if grow[a] and grow[b] else by_row[a][b]
            out[i][j] = value * inflate * units[a] * units[b]
    return tuple(tuple(row) for row in out), freedom


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(math.fsum(v * v for v in values) / len(values)) if values else 0.0


def _meat(inverse: list[list[float]], middle: list[list[float]]) -> list[list[float]]:
    k = len(inverse)
    half = [[math.fsum(inverse[a][c] * middle[c][b] for c in range(k)) for b in range(k)] for a in range(k)]
    return [[math.fsum(half[a][c] * inverse[c][b] for c in range(k)) for b in range(k)] for a in range(k)]


def t95(freedom: int) -> float:
    """The two-sided 95% quantile of Student's t, by Cornish and Fisher's expansion (within 1% from 3 degrees on).

    >>> round(t95(10), 2), round(t95(1000), 2)
    (2.23, 1.96)
    """
    if freedom <= 2:
        return (12.71, 4.30)[max(freedom, 1) - 1]
    z = 1.959964
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )

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
    importance: Sequence[float],
    loose: Sequence[float] = (),
    rounds: int = 25,
) -> Fit:
    """Non-negative coefficients b with y ~ x b, errors relative to the fitted value.

    Columns are judged in order: the first are kept where two say the same. `importance` weighs rows. `loose` gives, for
    each column, the size that its coefficient may well have (0: no opinion): a whisper of shrinkage that decides only
    where the rows do not. Columns whose coefficient would be negative are held at zero (Lawson and Hanson's active set).
    """
    m = len(x[0]) if x else 0
    size = [*loose, *[0.0] * (m - len(loose))]
    seen = identifiable(x, y, importance, skip=[s > 0 for s in size])
    told = [j for j in range(m) if seen[j]]
    beta, weights, scale = _iterate(x, y, importance, told=told, size=size, rounds=rounds)
    # Columns held at zero stay in the covariance: that they may not be negative does not make them certain.
    free = [j for j in told if beta[j] > 0 or not size[j]]
    used = [g * w for g, w in zip(importance, weights, strict=True)]
    covariance, freedom = _sandwich(x, y, used, beta=beta, free=free, groups=groups, size=size, scale=scale)
    return Fit(
        beta=tuple(beta[j] if seen[j] else None for j in range(m)),
        covariance=covariance,
        scale=scale,
        weights=tuple(weights),
        freedom=freedom,
    )


def identifiable(
    x: Sequence[Sequence[float]], y: Sequence[float], importance: Sequence[float], *, skip: Sequence[bool] = ()
) -> list[bool]:
    """For each column, whether the rows tell it from the columns before it (modified Gram-Schmidt on relative rows).

    Columns in `skip` are only asked whether any row bears on them.
    """
    m = len(x[0]) if x else 0
    root = [math.sqrt(w) / v if v > 0 else 0.0 for w, v in zip(importance, y, strict=True)]
    basis: list[list[float]] = []
    told: list[bool] = []
    for j in range(m):
        seen = sum(1 for row in x if row[j])
        if skip and skip[j]:
            told.append(seen >= 1)
            continue
        column = [row[j] * r for row, r in zip(x, root, strict=True)]
        norm = math.fsum(v * v for v in column)
        rest = column
        for q in basis:
            dot = math.fsum(a * b for a, b in zip(q, rest, strict=True))
            rest = [a - dot * b for a, b in zip(rest, q, strict=True)]
        left = math.fsum(v * v for v in rest)
        told.append(norm > 0 and left > _TOLERANCE * norm and seen >= 3)
        if told[-1]:
            unit = math.sqrt(left)
            basis.append([v / unit for v in rest])
    return told


def _iterate(
    x: Sequence[Sequence[float]],
    y: Sequence[float],
    given: Sequence[float],
    *,
    told: list[int],
    size: Sequence[float],
    rounds: int,
) -> tuple[list[float], list[float], float]:
    """Iteratively reweighted non-negative least squares over the columns in `told`: Huber first, then Tukey."""
    m, n = len(x[0]) if x else 0, len(y)
    weights, divisor = [1.0] * n, list(y)
    beta = [0.0] * m
    scale = 0.05
    for round_ in range(rounds):
        row_weights = [g * w / (s * s) for g, w, s in zip(given, weights, divisor, strict=True)]
        gram, right = _gram(x, y, row_weights, told)
        for a, j in enumerate(told):
            if size[j] > 0:
                gram[a][a] += (scale / size[j]) ** 2
        solved = [0.0] * m
        guess = [a for a, j in enumerate(told) if beta[j] > 0]
        for j, value in zip(told, nonnegative(gram, right, guess), strict=True):
            solved[j] = value
        moved = max((abs(new - old) / (abs(new) + 1e-15) for new, old in zip(solved, beta, strict=True)), default=0.0)
        beta = solved
        divisor = [max(math.fsum(row[j] * beta[j] for j in told), 1e-3 * v) for row, v in zip(x, y, strict=True)]
        relative = [(v - f) / f for v, f in zip(y, divisor, strict=True)]
        scale = max(_median([abs(r) for r in relative]) / 0.6745, _FINEST)
        tukey = round_ >= 5
        weights = [_tukey(r / scale) if tukey else _huber(r / scale) for r in relative]
        if tukey and moved < 1e-5:
            break
    return beta, weights, scale


def nonnegative(gram: list[list[float]], right: list[float], guess: Sequence[int] = ()) -> list[float]:
    """The b >= 0 that minimises b'Gb/2 - r'b, by Lawson and Hanson's active set (Solving Least Squares Problems, 23).

    `guess` names the coefficients that are probably positive: a good one saves most of the work.

    >>> [round(x, 6) for x in nonnegative([[1.0, 0.0], [0.0, 1.0]], [2.0, -1.0])]
    [2.0, 0.0]
    """
    n = len(right)
    unit = [math.sqrt(gram[i][i]) or 1.0 for i in range(n)]
    g = [[gram[i][j] / unit[i] / unit[j] for j in range(n)] for i in range(n)]
    r = [right[i] / unit[i] for i in range(n)]
    b = [0.0] * n
    free = list(guess)
    while free:
        trial = _solve(g, r, free)
        gone = [i for i, t in zip(free, trial, strict=True) if t <= 0]
        if not gone:
            for i, t in zip(free, trial, strict=True):
                b[i] = t
            break
        free = [i for i in free if i not in gone]
    limit = 1e-10 * max((abs(v) for v in r), default=1.0)
    for _ in range(6 * n + 10):
        slope = {i: r[i] - math.fsum(g[i][j] * b[j] for j in free) for i in range(n) if i not in free}
        best = max(slope, key=lambda i: slope[i], default=None)
        if best is None or slope[best] <= limit:
            break
        free.append(best)
        while free:
            trial = _solve(g, r, free)
            if min(trial) > 0:
                b = [0.0] * n
                for i, value in zip(free, trial, strict=True):
                    b[i] = value
                break
            step = min(b[i] / (b[i] - t) if b[i] > t else 0.0 for i, t in zip(free, trial, strict=True) if t <= 0)
            for i, t in zip(free, trial, strict=True):
                b[i] += step * (t - b[i])
            gone = [i for i, t in zip(free, trial, strict=True) if t <= 0 and b[i] <= 1e-13]
            for i in gone:
                b[i] = 0.0
            free = [i for i in free if i not in gone]
    return [v / u for v, u in zip(b, unit, strict=True)]


def _solve(g: list[list[float]], r: list[float], free: list[int]) -> list[float]:
    """The solution of the rows and columns in `free` of g b = r: g symmetric of unit diagonal, by Cholesky's root."""
    k = len(free)
    root: list[list[float]] = []
    y: list[float] = []
    for a in range(k):
        row = g[free[a]]
        line: list[float] = []
        for c in range(a):
            other = root[c]
            line.append((row[free[c]] - sum(p * q for p, q in zip(line, other, strict=False))) / other[c])
        line.append(math.sqrt(max(row[free[a]] + 1e-12 - sum(p * p for p in line), 1e-14)))
        y.append((r[free[a]] - sum(p * q for p, q in zip(line, y, strict=False))) / line[a])
        root.append(line)
    out = [0.0] * k
    for a in range(k - 1, -1, -1):
        out[a] = (y[a] - sum(root[c][a] * out[c] for c in range(a + 1, k))) / root[a][a]
    return out


def _gram(
    x: Sequence[Sequence[float]], y: Sequence[float], weights: Sequence[float], told: list[int]
) -> tuple[list[list[float]], list[float]]:
    """X'WX and X'Wy over the columns in `told`."""
    k = len(told)
    gram, right = [[0.0] * k for _ in range(k)], [0.0] * k
    for row, v, w in zip(x, y, weights, strict=True):
        if w == 0.0:
            continue
        used = [(a, row[j]) for a, j in enumerate(told) if row[j]]
        for place, (a, value) in enumerate(used):
            wa = w * value
            right[a] += wa * v
            line = gram[a]
            for c, other in used[place:]:
                line[c] += wa * other
    for a in range(k):
        for c in range(a):
            gram[a][c] = gram[c][a]
    return gram, right


def _huber(z: float) -> float:
    return 1.0 if abs(z) <= HUBER_K else HUBER_K / abs(z)


def _tukey(z: float) -> float:
    return (1.0 - (z / TUKEY_K) ** 2) ** 2 if abs(z) < TUKEY_K else 0.0


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


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
    size: Sequence[float],
    scale: float,
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
    for a, j in enumerate(free):
        if size[j] > 0:
            bread[a][a] += (scale / size[j] * units[a]) ** 2
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

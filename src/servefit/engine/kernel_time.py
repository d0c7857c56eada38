# ruff: noqa: ANN001, ANN201, N803 - array notation, as in kernel
# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
"""The arithmetic of the jumping engine: how long a step takes, how long k steps take, how many fit (see `kernel`);
and gaps counted in bins where there are very many.
"""

import math

EPSILON_S = 1e-9
TILE_TOK = 128  # as in physics.steptime, which a test holds it to
# C: step-time coefficients, then the clock's settings
(CONST, PER_SEQ, PER_TOK, PER_POS, PER_KV, WEIGHT, EXPERT, ACTIVE, COMPUTE, P_NORM, PER_LINK_TOK, FRONT, FRONT_TOK,
 THINK, TIMEOUT, HORIZON, COMPUTE_SEQ, CHANGE, PROMPT, SERIAL, RAGGED) = range(21)  # fmt: skip
# Places in the arrays of `kernel`: the points of the bend, and the tokens of the step before.
BEND_AT, BEND_S = 7, 8
LAST_TOK = 23

# Bins of gaps: so many to an octave, from 2^LEAST_E s on.
PER_OCTAVE, OCTAVES, LEAST_E = 16384, 42, -20


def fold(n, series, bins):
    """Count the gaps of the first n series in bins, none wider than 1/16384 of its value."""
    for j in range(n):
        weight, k, a, d = series[0][j], series[1][j], series[2][j], series[3][j]
        i = 0
        while i < k:
            value = a + d * i
            part, e = math.frexp(value)
            b = int((part - 0.5) * 2 * PER_OCTAVE)
            upto = k
            if d > 0.0:
                edge = math.ldexp(0.5 + (b + 1) / (2 * PER_OCTAVE), e)
                upto = i + math.ceil(min((edge - value) / d, k))
            elif d < 0.0:
                edge = math.ldexp(0.5 + b / (2 * PER_OCTAVE), e)
                upto = i + math.floor(min((value - edge) / -d, k)) + 1
            upto = min(max(upto, i + 1), k)
            place = min(max((e - LEAST_E) * PER_OCTAVE + b, 0), PER_OCTAVE * OCTAVES - 1)
            bins[place] += weight * (upto - i)
            i = upto


def fixed_s(C, X, seqs, tok, pos):
    """Seconds of a step without its KV reads (see physics.steptime)."""
    tokens = seqs + tok
    weights = C[WEIGHT]
    if C[EXPERT] > 0.0:
        weights += C[EXPERT] * (1.0 - (1.0 - C[ACTIVE]) ** float(tokens))
    compute = C[COMPUTE] * tokens + C[COMPUTE_SEQ] * seqs
    larger = max(weights, compute)
    smaller = min(weights, compute)
    overlap = larger
    if smaller > 0.0 and C[P_NORM] < math.inf:
        overlap = larger * (1.0 + (smaller / larger) ** C[P_NORM]) ** (1.0 / C[P_NORM])
    linear = C[CONST] + C[PER_SEQ] * seqs + C[PER_TOK] * tok + C[PER_POS] * pos + C[PER_LINK_TOK] * tokens
    if tokens % TILE_TOK:
        linear += C[RAGGED] * tok
    return linear + overlap + bend_s(tokens, X) if len(X[BEND_AT]) else linear + overlap


def bend_s(tokens, X):
    """What the step time's bend adds (see physics.steptime)."""
    at, extra = X[BEND_AT], X[BEND_S]
    n = len(at)
    for j in range(n):
        if at[j] >= tokens:
            if j == 0 or at[j] == at[j - 1]:
                return extra[j]
            return extra[j - 1] + (extra[j] - extra[j - 1]) * (tokens - at[j - 1]) / (at[j] - at[j - 1])
    return extra[n - 1] if n else 0.0


def changed_s(tokens, S, C):
    """What a step costs more because the one before had another number of tokens."""
    changed = tokens != S[LAST_TOK]
    S[LAST_TOK] = tokens
    return C[CHANGE] if changed else 0.0


def total_s(k, first, delta):
    """Seconds of k steps, the first of `first` seconds, each further one `delta` longer."""
    return k * first + delta * (k * (k - 1) // 2)


def steps_to(target, first, delta):
    """The fewest steps (1 or more) that take `target` seconds or longer."""
    if first >= target:
        return 1
    if first <= 0.0 and delta <= 0.0:
        return 1 << 40
    half = first - delta / 2
    k = max(int(2.0 * target / (half + math.sqrt(half * half + 2.0 * delta * target))), 1)
    while k * first + delta * (k * (k - 1) // 2) < target:
        k += 1
    while k > 1 and (k - 1) * first + delta * ((k - 1) * (k - 2) // 2) >= target:
        k -= 1
    return k


def steps_before(left, k, first, delta):
    """The k steps, or as many of them as end within `left` seconds."""
    if total_s(k, first, delta) > left:
        k = steps_to(left, first, delta)
        if total_s(k, first, delta) > left:
            k -= 1
    return k

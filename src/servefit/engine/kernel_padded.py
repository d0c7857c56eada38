# ruff: noqa: ANN001, ANN201, N803, PLR0917 - array notation, as in kernel
# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
"""The hot loop of the policies whose batch starts together and is padded to its longest; arrays as in `kernel`."""

import math

from servefit.engine.kernel import (
    A_HEAD,
    A_TAIL,
    ARRIVING_S,
    BLOCK_TOK,
    BUSY_S,
    DYNAMIC,
    FIRST,
    HEAP,
    HEAPED,
    ISL,
    KIND,
    LAST,
    LOW,
    NOW_S,
    OK,
    OSL,
    PLACES,
    PREFILL,
    PRODUCED,
    READY,
    SEATS,
    SERIES,
    STATIC,
    STATUS,
    STEPS,
    STOP,
    TOTAL,
    W_HEAD,
    W_TAIL,
    WAITING,
    WIDTH,
    add_series,
    deliver,
    ended,
    heap_pop,
    heap_push,
)
from servefit.engine.kernel_time import EPSILON_S, HORIZON, PER_KV, PROMPT, TIMEOUT, changed_s, fixed_s, steps_before


def run_padded(R, X, S, F, L, C, series):
    """`none`, `static`, `dynamic`: a batch starts together and holds its seats until its longest answer is done.

    False where it wants more room for series first.
    """
    now = F[NOW_S]
    while True:
        if now >= F[STOP] - EPSILON_S:
            F[NOW_S] = now
            return True
        deliver(now, R, X, S, F, L, C)
        waiting = S[W_TAIL] - S[W_HEAD]
        coming = S[A_HEAD] < S[A_TAIL]
        after = X[ARRIVING_S][S[A_HEAD]] if coming else math.inf
        if waiting == 0:
            if not coming or after > C[HORIZON]:
                break
            now = max(now, after)
            continue
        late = X[READY][R[WAITING][S[W_HEAD]]] + C[TIMEOUT]
        full = waiting >= L[SEATS]
        if not full and L[KIND] == STATIC and coming:
            if after > C[HORIZON]:
                break
            now = max(now, after)
            continue
        if not full and L[KIND] == DYNAMIC and now + EPSILON_S < late:
            now = max(now, after if after <= late + EPSILON_S else late)
            if now > C[HORIZON]:
                break
            continue
        if S[SERIES] + 2 * L[WIDTH] + 8 > len(series[0]):
            F[NOW_S] = now
            return False
        end = padded_batch(now, R, X, S, F, L, C, series)
        if end < 0.0:
            break
        now = end
    deliver(C[HORIZON] - EPSILON_S, R, X, S, F, L, C)
    return True


def padded_batch(now, R, X, S, F, L, C, series):
    """One batch from its prompts to its longest answer; returns when it ends, below 0 where the horizon cut it."""
    block = L[BLOCK_TOK]
    isl = osl = n = 0
    while S[W_HEAD] < S[W_TAIL] and n < L[SEATS]:
        i = R[WAITING][S[W_HEAD]]
        wider, longer = max(isl, R[ISL][i]), max(osl, R[OSL][i])
        if n and (n + 1) * (-(-(wider + longer - 1) // block)) > L[TOTAL]:
            break
        isl, osl = wider, longer
        R[PREFILL][n] = i
        S[W_HEAD] += 1
        n += 1
    S[LOW] = min(S[LOW], L[TOTAL] - n * (-(-(isl + osl - 1) // block)))
    took = fixed_s(C, X, 0, n * isl, n * (isl * (isl + 1) // 2)) + changed_s(n * isl, S, C) + C[PROMPT] * n
    if now + took > C[HORIZON] + EPSILON_S:
        return -1.0
    now += took
    S[STEPS] += 1
    F[BUSY_S] += took
    for m in range(n):
        X[FIRST][R[PREFILL][m]] = now
    S[HEAPED] = 0
    for m in range(n):
        heap_push(R[OSL][R[PREFILL][m]] * L[PLACES] + R[PREFILL][m], R, S, L)
    produced = 1
    while True:
        deliver(now - 2 * EPSILON_S, R, X, S, F, L, C)
        while S[HEAPED] and R[HEAP][0] // L[PLACES] == produced:
            i = heap_pop(R, S) % L[PLACES]
            R[STATUS][i] = OK
            R[PRODUCED][i] = produced
            X[LAST][i] = now
            ended(i, now, R, X, S, F, C)
        if S[HEAPED] == 0:
            return now
        first = fixed_s(C, X, n, 0, 0) + C[PER_KV] * (n * (isl + produced))
        delta = C[PER_KV] * n
        k = R[HEAP][0] // L[PLACES] - produced
        extra = changed_s(n, S, C)
        wanted = k
        k = steps_before(C[HORIZON] + EPSILON_S - now - extra, k, first, delta)
        if k:
            add_series(S[HEAPED], 1, first + extra, 0.0, S, series)
            if k > 1:
                add_series(S[HEAPED], k - 1, first + delta, delta, S, series)
            S[STEPS] += k
            took = k * first + delta * (k * (k - 1) // 2) + extra
            F[BUSY_S] += took
            now += took
            produced += k
        if k < wanted:
            for m in range(S[HEAPED]):
                i = R[HEAP][m] % L[PLACES]
                R[PRODUCED][i] = produced
                X[LAST][i] = now
            return -1.0

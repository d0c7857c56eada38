# ruff: noqa: ANN001, ANN201, N803, PLR0917 - array notation, as in kernel
# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
"""The hot loop of a fleet whose router sends each request to the replica with the fewest that are not done.

A replica is only moved on when a request comes to it, or when an answer of its own may have ended: `bound` is a moment
before which none does. What is one array a request in `kernel` is shared by all; queues and scalars are one row a replica.
"""

import math

from servefit.engine.kernel import (
    A_HEAD,
    A_TAIL,
    ARRIVING,
    ARRIVING_S,
    BLOCK_TOK,
    DECODING,
    DONE,
    DONE_NOW,
    END_S,
    FREE,
    ISL,
    KV,
    NOW_S,
    OSL,
    PARTIAL,
    REJECTED,
    RUNNING,
    SEATS,
    SENT,
    SERIES,
    STACKED,
    STATUS,
    STEP,
    TOTAL,
    UNTIL,
    W_HEAD,
    W_TAIL,
    heap_top,
    run_together,
)
from servefit.engine.kernel_time import EPSILON_S, PER_KV, fixed_s

# G: which arrival is next, series so far, and whether there are arrivals after those given here
NEXT, SERIES_SO_FAR, MORE = range(3)
# Q: queues of each replica
Q_ARRIVING, Q_WAITING, Q_STACK, Q_HEAP, Q_PHASE, Q_PREFILL, Q_CHUNK, Q_GROUP_N = range(8)
# T: when each replica's step in flight ends, a moment before which no answer of it ends; N: requests not done with
# those that end with the step in flight, and those that do
FREE_S, BOUND_S = range(2)
OPEN, IN_FLIGHT = range(2)


def run_fleet(G, R, X, S, F, L, C, series, Q, Q_S, T, N):
    """Everyone to the replica with the fewest not done. False where it wants more room, for series or in a queue, first."""
    n = len(R[ARRIVING])
    while G[NEXT] < n:
        at, i = X[ARRIVING_S][G[NEXT]], R[ARRIVING][G[NEXT]]
        for s in range(len(S)):
            stale = T[FREE_S][s] < at - EPSILON_S and T[BOUND_S][s] <= at + 2 * EPSILON_S
            if stale and not advance(s, at, G, R, X, S, F, L, C, series, Q, Q_S, T, N):
                return False
        best = fewest(at, T, N)
        if -(-(R[ISL][i] + R[OSL][i] - 1) // L[BLOCK_TOK]) > L[TOTAL]:
            R[STATUS][i] = REJECTED
            F[best][END_S] = max(F[best][END_S], at)
        else:
            if not make_room(S[best], Q[Q_ARRIVING][best], Q[Q_WAITING][best], Q_S[0][best]):
                return False
            tail = S[best][A_TAIL]
            Q[Q_ARRIVING][best][tail], Q_S[0][best][tail] = i, at
            S[best][A_TAIL] += 1
            S[best][SENT] += 1
            N[OPEN][best] += 1
            T[BOUND_S][best] = at
        G[NEXT] += 1
    if G[MORE]:
        return True
    for s in range(len(S)):
        if F[s][UNTIL] < math.inf and not advance(s, math.inf, G, R, X, S, F, L, C, series, Q, Q_S, T, N):
            F[s][UNTIL] = 0.0
            return False
    return True


def fewest(at, T, N):
    """The replica with the fewest requests that are not done; the first of equals."""
    best, least = 0, 1 << 60
    free_s, open_, in_flight = T[FREE_S], N[OPEN], N[IN_FLIGHT]
    for s in range(len(open_)):
        mine = open_[s] + in_flight[s] * (free_s[s] > at + EPSILON_S)
        if mine < least:
            best, least = s, mine
    return best


def advance(s, until, G, R, X, S, F, L, C, series, Q, Q_S, T, N):
    """Move one replica on until its step in flight ends at `until` or later. False where series need more room first."""
    mine = (
        R[0], R[1], R[2], R[3], R[4], R[5], R[6], R[7], R[8], R[9], R[10], R[11], Q[Q_ARRIVING][s], Q[Q_WAITING][s],
        Q[Q_STACK][s], Q[Q_HEAP][s], Q[Q_PHASE][s], Q[Q_PREFILL][s], Q[Q_CHUNK][s], Q[Q_GROUP_N][s],
    )  # fmt: skip
    times = (X[0], X[1], X[2], X[3], X[4], Q_S[0][s], Q_S[1][s], X[7], X[8], X[9])
    scalars, floats = S[s], F[s]
    floats[UNTIL] = until
    scalars[SERIES] = G[SERIES_SO_FAR]
    done = run_together(mine, times, scalars, floats, L, C, series)
    G[SERIES_SO_FAR] = scalars[SERIES]
    T[FREE_S][s] = floats[NOW_S]
    N[OPEN][s] = scalars[SENT] - scalars[DONE]
    N[IN_FLIGHT][s] = scalars[DONE_NOW]
    T[BOUND_S][s] = next_end(mine, times, scalars, floats, L, C) if done else 0.0
    return done


def next_end(R, X, S, F, L, C):
    """A moment before which no answer ends, while nobody else comes: exact while everyone decodes, else at once."""
    waits = S[W_HEAD] < S[W_TAIL] or S[A_HEAD] < S[A_TAIL]
    if S[RUNNING] == 0 and S[STACKED] == 0 and not waits:
        return math.inf
    starts = waits and S[RUNNING] < L[SEATS]
    if starts or S[DECODING] == 0 or S[PARTIAL] >= 0 or S[STACKED] > 0:
        return F[NOW_S]
    k = heap_top(R, S, L) - S[STEP]
    if S[FREE] < S[DECODING] * (k // L[BLOCK_TOK] + 1):
        return F[NOW_S]
    first = fixed_s(C, X, S[DECODING], 0, 0) + C[PER_KV] * S[KV]
    return F[NOW_S] + k * first + C[PER_KV] * S[DECODING] * (k * (k - 1) // 2)


def make_room(S, arriving, waiting, arriving_s):
    """Move both queues of a replica to their beginnings where one more would not fit. False where it still does not."""
    coming, waits = S[A_TAIL] - S[A_HEAD], S[W_TAIL] - S[W_HEAD]
    if coming + waits + 1 > len(arriving):
        return False
    if S[A_TAIL] + 1 > len(arriving):
        for j in range(coming):
            arriving[j], arriving_s[j] = arriving[S[A_HEAD] + j], arriving_s[S[A_HEAD] + j]
        S[A_HEAD], S[A_TAIL] = 0, coming
    if S[W_TAIL] + coming + 1 > len(waiting):
        for j in range(waits):
            waiting[j] = waiting[S[W_HEAD] + j]
        S[W_HEAD], S[W_TAIL] = 0, waits
    return True

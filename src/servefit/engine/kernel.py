# ruff: noqa: ANN001, ANN201, N803, PLR0917 - array notation: R, X, S, F, L, C stand everywhere for what is said below
# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
"""The jumping engine's hot loop, on plain arrays: the same source runs compiled by numba and uncompiled on lists.

Between two events (an arrival that finds a seat, an answer that ends, a full cache) nothing changes but the number of KV
tokens read, so the k steps in between take

    T(k) = k * first + delta * k * (k - 1) / 2        first = time of the next step, delta = growth from step to step

and the clock jumps. `stepping` is the readable truth; tests hold this module equal to it.

Arrays come in tuples: R holds whole numbers, X times, one entry a request unless said otherwise; S and F hold the state's
scalars. The constants below are their indices.
"""

import math

from servefit.engine.kernel_time import (
    CHANGE,
    EPSILON_S,
    FRONT,
    FRONT_TOK,
    HORIZON,
    PER_KV,
    PER_POS,
    PROMPT,
    SERIAL,
    THINK,
    changed_s,
    fixed_s,
    fold,  # noqa: F401 - called from outside
    steps_before,
    steps_to,
)  # fmt: skip

OK, UNFINISHED, REJECTED, NOT_DUE = 0, 1, 2, 3

# R: whole numbers a request
ISL, OSL, PRODUCED, BASE, FINISH, PREV, NEXT, COMPUTED, STATUS, PREEMPTED, FOLLOW = range(11)
# R: queues: the rest that users of a closed loop ask, arrivals to come, who waits, who was preempted, finish heap,
# block phases, prefills of this step and their tokens, group sizes
LATER, ARRIVING, WAITING, STACK, HEAP, PHASE, PREFILL, CHUNK, GROUP_N = range(11, 20)
# X: times a request, then when each arrival is ready, then when each group of decoding sequences had its last token,
# then the points of the step time's bend (tokens, seconds), then how long so many decode alone, without their KV
DUE, FIRST, LAST, JOINED, READY, ARRIVING_S, GROUP_S = range(7)  # and BEND_AT, BEND_S
ALONE_S = 9
# S: scalars. Decode steps so far, decoding sequences, their KV tokens, free blocks and the fewest ever, who runs,
# who is half prefilled, ends of the queues ...
(STEP, DECODING, KV, FREE, LOW, RUNNING, PARTIAL, W_HEAD, W_TAIL, STACKED, NEWEST, GROUPS, HEAPED, A_HEAD, A_TAIL, L_HEAD,
 L_TAIL, SERIES, STEPS, PREFILLS, P_TOK, P_POS, WAS_PREEMPTED) = range(23)  # fmt: skip
# after LAST_TOK: requests that began with this step; answers complete so far, those of the last step, requests sent here
BEGUN, DONE, DONE_NOW, SENT = range(24, 28)
SCALARS = 28
# F: float scalars; when the last request was due, and was ready; the moment to be at for a while; when the last arrival
# known so far is ready: before that one is let in, the engine stops as it stands and waits for more
BUSY_S, END_S, NOW_S, LAST_DUE, LAST_READY, UNTIL, STOP = range(7)
# L: limits
SEATS, BUDGET, BLOCK_TOK, TOTAL, RESERVE, KIND, PLACES, WIDTH = range(8)
NONE, STATIC, DYNAMIC, CONTINUOUS, CHUNKED = range(5)


def run_together(R, X, S, F, L, C, series):
    """`continuous` and `chunked`: everyone shares the batch. False where it wants more room for series first."""
    now, until, horizon, per_kv = F[NOW_S], F[UNTIL] - EPSILON_S, C[HORIZON] + EPSILON_S, C[PER_KV]
    chunked, arriving, alone = L[KIND] == CHUNKED, X[ARRIVING_S], X[ALONE_S]
    pause = min(until, F[STOP] - EPSILON_S)
    while True:
        F[NOW_S] = now
        if now >= pause:
            return True
        if S[A_HEAD] < S[A_TAIL] and arriving[S[A_HEAD]] <= now + EPSILON_S:
            deliver(now, R, X, S, F, L, C)
        if S[RUNNING] == 0 and S[W_HEAD] == S[W_TAIL] and S[STACKED] == 0:
            if S[A_HEAD] == S[A_TAIL] and until < math.inf:
                return True
            if S[A_HEAD] == S[A_TAIL] or arriving[S[A_HEAD]] > C[HORIZON]:
                break
            now = max(now, arriving[S[A_HEAD]])
            continue
        if S[SERIES] + 2 * L[WIDTH] + 8 > len(series[0]):
            return False
        S[WAS_PREEMPTED] = S[DONE_NOW] = 0
        if S[PREFILLS]:
            S[PREFILLS] = S[P_TOK] = S[P_POS] = S[BEGUN] = 0
        decoding = form_chunked(R, X, S, L) if chunked else form_continuous(R, X, S, L)
        if decoding == 0 and S[PREFILLS] == 0:
            continue  # everyone was preempted: the first of them starts again
        delta = per_kv * decoding
        extra = C[PROMPT] * S[BEGUN]
        if C[CHANGE] > 0.0:
            extra += changed_s(decoding + S[P_TOK], S, C)
        k = 1
        if S[PREFILLS]:
            first = fixed_s(C, X, decoding, S[P_TOK], S[P_POS])
        else:
            if alone[decoding] < 0.0:
                alone[decoding] = fixed_s(C, X, decoding, 0, 0)
            first = alone[decoding]
        ends = heap_top(R, S, L) if decoding else 0
        if decoding:
            first += per_kv * S[KV]
        if S[PREFILLS] == 0:
            k = steps_alone(ends - S[STEP], now + extra, first, delta, R, X, S, L)
        elif chunked and S[PREFILLS] == 1 and S[PARTIAL] == R[PREFILL][0] and not S[WAS_PREEMPTED]:
            k = steps_of_chunk(R, S, L)
            delta += C[PER_POS] * R[CHUNK][0] * R[CHUNK][0]
        if k > 1 and until < math.inf:
            k = min(k, steps_to(until - now - extra, first, delta))
        if horizon < math.inf:
            k = steps_before(horizon - now - extra, k, first, delta)
            if k == 0:
                break
        took = k * first + delta * (k * (k - 1) // 2) + extra
        S[STEPS] += k
        F[BUSY_S] += took
        if decoding:
            record_gaps(now, k, first, delta, extra, R, X, S, series)
        take_blocks(k, R, S, L)
        if decoding:
            S[STEP] += k
            S[KV] += decoding * k
        now += took
        if S[A_HEAD] < S[A_TAIL] and arriving[S[A_HEAD]] <= now - EPSILON_S:
            deliver(now - 2 * EPSILON_S, R, X, S, F, L, C)  # who was refused meanwhile left before these answers end
        if decoding and ends == S[STEP]:
            end_decodes(now, R, X, S, F, L, C)
        before = S[DECODING]
        if S[PREFILLS]:
            end_prefills(now, k, R, X, S, F, L, C, series)
        if decoding or chunked:
            S[GROUPS] = 1
            R[GROUP_N][0] = S[DECODING]
            X[GROUP_S][0] = now
        elif S[DECODING] > before:
            R[GROUP_N][S[GROUPS]] = S[DECODING] - before
            X[GROUP_S][S[GROUPS]] = now
            S[GROUPS] += 1
    close(R, X, S)
    deliver(C[HORIZON] - EPSILON_S, R, X, S, F, L, C)
    return True


def deliver(now, R, X, S, F, L, C):
    """Let everyone wait who is ready by now; refuse what is larger than the whole cache."""
    at = X[ARRIVING_S]
    while S[A_HEAD] < S[A_TAIL] and at[S[A_HEAD]] <= now + EPSILON_S:
        ready = at[S[A_HEAD]]
        i = R[ARRIVING][S[A_HEAD]]
        S[A_HEAD] += 1
        if -(-(R[ISL][i] + R[OSL][i] - 1) // L[BLOCK_TOK]) > L[TOTAL]:
            R[STATUS][i] = REJECTED
            ended(i, ready, R, X, S, F, C)
        else:
            X[READY][i] = ready
            place = S[W_TAIL]
            S[W_TAIL] += 1
            while place > S[W_HEAD] and X[READY][R[WAITING][place - 1]] == ready and R[WAITING][place - 1] > i:
                R[WAITING][place] = R[WAITING][place - 1]
                place -= 1
            R[WAITING][place] = i


def ended(i, at, R, X, S, F, C):
    """The answer is complete (or refused): its session or its user goes on."""
    F[END_S] = max(F[END_S], at)
    j = R[FOLLOW][i]
    due = at + C[THINK]
    if j >= 0:
        due = max(due, X[DUE][j])
    elif S[L_HEAD] < S[L_TAIL]:
        j = R[LATER][S[L_HEAD]]
        S[L_HEAD] += 1
    else:
        return
    R[STATUS][j] = UNFINISHED
    X[DUE][j] = due
    ready = due + C[FRONT] + C[FRONT_TOK] * R[ISL][j]
    if F[LAST_DUE] == due and C[SERIAL] > 0.0:
        ready = max(ready, F[LAST_READY] + C[SERIAL])
    F[LAST_DUE], F[LAST_READY] = due, ready
    times, who = X[ARRIVING_S], R[ARRIVING]
    place = S[A_TAIL]
    S[A_TAIL] += 1
    while place > S[A_HEAD] and (times[place - 1] > ready or (times[place - 1] == ready and who[place - 1] > j)):
        times[place], who[place] = times[place - 1], who[place - 1]
        place -= 1
    times[place], who[place] = ready, j


def form_chunked(R, X, S, L):
    """One token budget: decodes, then the half-done prompt, then new ones. Returns how many decode."""
    if S[DECODING]:
        reserve_decodes(R, X, S, L)
        S[LOW] = min(S[LOW], S[FREE])
    if S[W_HEAD] == S[W_TAIL] and S[PARTIAL] < 0 and S[STACKED] == 0:
        return S[DECODING]
    block = L[BLOCK_TOK]
    budget = L[BUDGET] - S[DECODING]
    if S[PARTIAL] >= 0 and budget > 0:
        i = S[PARTIAL]
        done = R[COMPUTED][i]
        tok = min(R[ISL][i] + R[PRODUCED][i] - done, budget)
        need = -(-(done + tok) // block) + (-done // block)
        if need > S[FREE]:
            preempt(R, X, S, L)
        else:
            S[FREE] -= need
            budget -= tok
            add_prefill(i, tok, R, S)
    if not S[WAS_PREEMPTED]:
        while budget > 0 and S[RUNNING] < L[SEATS] and (S[STACKED] or S[W_HEAD] < S[W_TAIL]):
            i = next_waiting(R, S)
            known = R[ISL][i] + R[PRODUCED][i]
            tok = min(known, budget)
            if -(-(known if L[RESERVE] else tok) // block) > S[FREE]:
                break
            start(i, tok, R, S, L)
            budget -= tok
            if tok < known:
                S[PARTIAL] = i
    S[LOW] = min(S[LOW], S[FREE])
    return S[DECODING]


def form_continuous(R, X, S, L):
    """Whole prompts first, while decodes stand still; else everyone decodes. Returns how many decode."""
    while S[RUNNING] < L[SEATS] and (S[STACKED] or S[W_HEAD] < S[W_TAIL]):
        i = next_waiting(R, S)
        known = R[ISL][i] + R[PRODUCED][i]
        if (S[PREFILLS] and S[P_TOK] + known > L[BUDGET]) or -(-known // L[BLOCK_TOK]) > S[FREE]:
            break
        start(i, known, R, S, L)
    decoding = 0
    if S[PREFILLS] == 0:
        reserve_decodes(R, X, S, L)
        decoding = S[DECODING]
    S[LOW] = min(S[LOW], S[FREE])
    return decoding


def next_waiting(R, S):
    """Who is first in line: those that were preempted, oldest first, then new ones in turn."""
    return R[STACK][S[STACKED] - 1] if S[STACKED] else R[WAITING][S[W_HEAD]]


def start(i, tok, R, S, L):
    """Give the first in line a seat and the blocks of its first `tok` tokens."""
    if S[STACKED]:
        S[STACKED] -= 1
    else:
        S[W_HEAD] += 1
    S[FREE] -= -(-tok // L[BLOCK_TOK])
    R[COMPUTED][i] = 0
    S[BEGUN] += 1
    R[PREV][i], R[NEXT][i] = S[NEWEST], -1
    if S[NEWEST] >= 0:
        R[NEXT][S[NEWEST]] = i
    S[NEWEST] = i
    S[RUNNING] += 1
    add_prefill(i, tok, R, S)


def add_prefill(i, tok, R, S):
    """`tok` more prompt tokens of request i are part of this step."""
    done = R[COMPUTED][i]
    R[PREFILL][S[PREFILLS]], R[CHUNK][S[PREFILLS]] = i, tok
    S[PREFILLS] += 1
    S[P_TOK] += tok
    S[P_POS] += done * tok + tok * (tok + 1) // 2


def reserve_decodes(R, X, S, L):
    """Take the blocks that this step's decodes need, preempting the newest sequences for them."""
    phase = R[PHASE]
    while phase[-S[STEP] % L[BLOCK_TOK]] > S[FREE]:
        S[LOW] = 0
        preempt(R, X, S, L)
    S[FREE] -= phase[-S[STEP] % L[BLOCK_TOK]]


def preempt(R, X, S, L):
    """Send the newest sequence back to wait; what its user has seen stays seen."""
    i = S[NEWEST]
    if i == S[PARTIAL]:
        S[FREE] += -(-R[COMPUTED][i] // L[BLOCK_TOK])
        S[PARTIAL] = -1
    else:
        produced = R[BASE][i] + S[STEP]
        R[PRODUCED][i] = produced
        computed = R[ISL][i] + produced - 1
        S[FREE] += -(-computed // L[BLOCK_TOK])
        leave(computed, R, S, L)
        R[FINISH][i] = -1
        group = S[GROUPS] - 1
        while group > 0 and X[GROUP_S][group] > X[JOINED][i]:
            group -= 1
        R[GROUP_N][group] -= 1
        X[LAST][i] = max(X[JOINED][i], X[GROUP_S][0])
    unlink(i, R, S)
    R[PREEMPTED][i] += 1
    R[STACK][S[STACKED]] = i
    S[STACKED] += 1
    S[WAS_PREEMPTED] = 1


def leave(computed, R, S, L):
    """A sequence decodes no longer."""
    S[DECODING] -= 1
    S[KV] -= computed + 1
    R[PHASE][(computed - S[STEP]) % L[BLOCK_TOK]] -= 1


def unlink(i, R, S):
    """Take a sequence out of the list of those running."""
    before, after = R[PREV][i], R[NEXT][i]
    if before >= 0:
        R[NEXT][before] = after
    if after >= 0:
        R[PREV][after] = before
    else:
        S[NEWEST] = before
    S[RUNNING] -= 1


def steps_alone(k, now, first, delta, R, X, S, L):
    """Steps until something happens while everyone only decodes: an answer ends in k, memory gets short, someone comes."""
    if S[WAS_PREEMPTED]:
        return 1
    if S[FREE] < S[DECODING] * (k // L[BLOCK_TOK] + 1):
        k = min(k, 1 + steps_in_memory(R, S, L))
    seat_waits = S[RUNNING] < L[SEATS] and S[W_HEAD] == S[W_TAIL] and S[STACKED] == 0
    if seat_waits and S[A_HEAD] < S[A_TAIL]:
        k = min(k, steps_to(X[ARRIVING_S][S[A_HEAD]] - EPSILON_S - now, first, delta))
    return k


def steps_in_memory(R, S, L):
    """Steps after this one for which the free blocks are enough."""
    block = L[BLOCK_TOK]
    cycles = S[FREE] // S[DECODING]
    left = S[FREE] - cycles * S[DECODING]
    k = cycles * block
    step = S[STEP] + 1
    while left >= R[PHASE][-step % block] and k < (cycles + 1) * block:
        left -= R[PHASE][-step % block]
        step += 1
        k += 1
    return k


def steps_of_chunk(R, S, L):
    """Steps that compute equal chunks of one long prompt while the others decode; 1 where memory may get short."""
    i = R[PREFILL][0]
    tok = R[CHUNK][0]
    if tok < L[BUDGET] - S[DECODING]:
        return 1
    k = max((R[ISL][i] + R[PRODUCED][i] - R[COMPUTED][i] - 1) // tok, 1)
    if S[DECODING]:
        k = min(k, heap_top(R, S, L) - S[STEP])
    if S[FREE] < S[DECODING] * (k // L[BLOCK_TOK] + 1) + k * tok // L[BLOCK_TOK] + 1:
        return 1
    return k


def take_blocks(k, R, S, L):
    """The blocks that decodes and a long prompt need in steps 2 to k; the first step's were taken as it was formed."""
    block = L[BLOCK_TOK]
    rest = (k - 1) % block
    need = (k - 1) // block * S[DECODING]
    phase, step = R[PHASE], S[STEP] + 1
    if 2 * rest <= block:
        for j in range(step, step + rest):
            need += phase[-j % block]
    else:  # all of them but those of the steps that are left of the block
        need += S[DECODING]
        for j in range(step + rest, step + block):
            need -= phase[-j % block]
    if k > 1 and S[PREFILLS]:
        done = R[COMPUTED][R[PREFILL][0]] + R[CHUNK][0]
        need += -(-(done + R[CHUNK][0] * (k - 1)) // block) + (-done // block)
    S[FREE] -= need
    S[LOW] = min(S[LOW], S[FREE])


def record_gaps(now, k, first, delta, extra, R, X, S, series):
    """The gaps that k steps put between tokens; the first is longer by `extra`, and for those who stood still before."""
    decoding = S[DECODING]
    if S[GROUPS] == 1 and X[GROUP_S][0] == now and extra == 0.0:
        add_series(decoding, k, first, delta, S, series)
        return
    for group in range(S[GROUPS]):
        if R[GROUP_N][group] > 0:
            add_series(R[GROUP_N][group], 1, now + first + extra - X[GROUP_S][group], 0.0, S, series)
    if k > 1:
        add_series(decoding, k - 1, first + delta, delta, S, series)


def add_series(weight, count, first, delta, S, series):
    """One more arithmetic series of gaps."""
    n = S[SERIES]
    series[0][n], series[1][n], series[2][n], series[3][n] = weight, count, first, delta
    S[SERIES] = n + 1


def end_decodes(now, R, X, S, F, L, C):
    """Those whose last token came out with this step."""
    while S[HEAPED] and heap_top(R, S, L) == S[STEP]:
        i = heap_pop(R, S) % L[PLACES]
        R[FINISH][i] = -1
        computed = R[ISL][i] + R[OSL][i] - 1
        leave(computed, R, S, L)
        finish(i, now, R, X, S, F, L, C)


def end_prefills(now, k, R, X, S, F, L, C, series):
    """Prompt tokens of this step (of k equal steps for a long prompt) are computed; a complete prompt yields a token."""
    for n in range(S[PREFILLS]):
        i = R[PREFILL][n]
        tok = R[CHUNK][n]
        R[COMPUTED][i] += tok * k
        if R[COMPUTED][i] < R[ISL][i] + R[PRODUCED][i]:
            continue
        if i == S[PARTIAL]:
            S[PARTIAL] = -1
        R[PRODUCED][i] += 1
        produced = R[PRODUCED][i]
        if produced == 1:
            X[FIRST][i] = now
        else:
            add_series(1, 1, now - X[LAST][i], 0.0, S, series)
        if produced == R[OSL][i]:
            finish(i, now, R, X, S, F, L, C)
            continue
        computed = R[ISL][i] + produced - 1
        X[JOINED][i] = X[LAST][i] = now
        R[BASE][i] = produced - S[STEP]
        S[DECODING] += 1
        S[KV] += computed + 1
        R[PHASE][(computed - S[STEP]) % L[BLOCK_TOK]] += 1
        R[FINISH][i] = (S[STEP] + R[OSL][i] - produced) * L[PLACES] + i
        heap_push(R[FINISH][i], R, S, L)


def finish(i, now, R, X, S, F, L, C):
    """The answer is complete: its seat and its blocks are free."""
    S[FREE] += -(-(R[ISL][i] + R[OSL][i] - 1) // L[BLOCK_TOK])
    R[PRODUCED][i] = R[OSL][i]
    R[STATUS][i] = OK
    X[LAST][i] = now
    unlink(i, R, S)
    S[DONE] += 1
    S[DONE_NOW] += 1
    ended(i, now, R, X, S, F, C)


def close(R, X, S):
    """Write down how far those came that are still running at the horizon."""
    i = S[NEWEST]
    while i >= 0:
        if i != S[PARTIAL] and R[FINISH][i] >= 0:
            R[PRODUCED][i] = R[BASE][i] + S[STEP]
            X[LAST][i] = max(X[JOINED][i], X[GROUP_S][0])
        i = R[PREV][i]


def heap_top(R, S, L):
    """The step at which the next answer ends; entries of preempted sequences are dropped."""
    places = L[PLACES]
    while S[HEAPED] and R[FINISH][R[HEAP][0] % places] != R[HEAP][0]:
        heap_pop(R, S)
    return R[HEAP][0] // places if S[HEAPED] else 1 << 40


def heap_push(value, R, S, L):
    """Push onto the binary heap; where it is full, entries of preempted sequences are dropped first."""
    heap = R[HEAP]
    if S[HEAPED] == len(heap):
        n = S[HEAPED]
        S[HEAPED] = 0
        for j in range(n):
            if R[FINISH][heap[j] % L[PLACES]] == heap[j] != value:
                sift_up(heap[j], heap, S)
    sift_up(value, heap, S)


def sift_up(value, heap, S):
    """Put one more value into the heap."""
    place = S[HEAPED]
    S[HEAPED] = place + 1
    while place > 0:
        parent = (place - 1) >> 1
        if heap[parent] <= value:
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = value


def heap_pop(R, S):
    """Pop the smallest."""
    heap = R[HEAP]
    top = heap[0]
    n = S[HEAPED] - 1
    S[HEAPED] = n
    value = heap[n]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= n:
            break
        if child + 1 < n and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = value
    return top

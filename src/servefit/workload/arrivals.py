"""When each request is due: one seed, the same schedule for every candidate and on every machine."""

import math
from dataclasses import replace
from pathlib import Path

from servefit.errors import ServefitError
from servefit.workload.lengths import check_lengths, draw
from servefit.workload.requests import PREFIX_BLOCK_TOK, Request, stream
from servefit.workload.traces import load_trace
from servefit.workload.workload import Workload


def schedule(workload: Workload) -> tuple[Request, ...]:
    """The requests of `workload`, in the order they are due; due times are whole microseconds.

    Open loop: due times from `rate_req_per_s` or `stages` (then the stages say how many there are). Closed loop: the
    first `concurrency` requests are due at 0, or spread over `ramp_s`; the rest have 0.0 and are due when a user is
    free. Turns of one session after the first are due when the turn before is answered. Raises ServefitError where the
    workload cannot be.

    >>> from servefit.workload.workload import Lengths
    >>> [r.due_s for r in schedule(Workload(n=3, rate_req_per_s=2.0, arrivals="constant"))]
    [0.0, 0.5, 1.0]
    """
    check_workload(workload)
    if workload.trace is not None:
        requests = load_trace(Path(workload.trace), workload.n)
        return tuple(replace(r, due_s=whole_us(r.due_s / workload.time_scale)) for r in requests)
    starts = _starts(workload)
    isl_rng, osl_rng = stream(workload.seed, "isl"), stream(workload.seed, "osl")
    group_rng = stream(workload.seed, "prefix group")
    requests_out: list[Request] = []
    n = len(starts) * workload.turns if workload.stages else workload.n
    for session, start_s in enumerate(starts):
        group = group_rng.randrange(workload.prefix_groups) if workload.prefix_groups > 1 else 0
        before_tok = workload.shared_prefix_tok
        for turn in range(min(workload.turns, n - len(requests_out))):
            isl = before_tok + draw(workload.isl, isl_rng)
            osl = draw(workload.osl, osl_rng)
            requests_out.append(
                Request(
                    id=len(requests_out),
                    due_s=start_s if turn == 0 else 0.0,
                    isl=isl,
                    osl=osl,
                    prefix=_prefix(workload, isl, group, session),
                    session=session if workload.turns > 1 else None,
                )
            )
            before_tok = isl + osl
    return tuple(requests_out)


MAX_REQUESTS = 10**8
"""A day of 1,000 a second, simulated in some five minutes; ten times more is a slip."""
MIN_REQ_PER_S = 1e-6
MAX_BURSTINESS = 1e6
"""A gamma shape at which arrivals are as even as a clock's; far larger ones cannot be drawn."""


LONGEST_S = 1e9
"""No load lasts longer, and clocks in nanoseconds can still count it."""


def check_workload(workload: Workload) -> None:
    """Raise ServefitError, with the value, where the workload says nothing that could be asked of a service."""
    says_when = [
        name
        for name in ("rate_req_per_s", "concurrency", "trace", "stages")
        if getattr(workload, name) not in (None, ())
    ]
    if workload.arrivals == "burst" and not says_when:
        says_when = ["burst"]
    if len(says_when) != 1:
        raise ServefitError(
            f"The workload has {' and '.join(says_when) if says_when else 'neither rate nor concurrency nor trace'}.",
            hint="Give exactly one: --rate, --concurrency or --trace; in a file rate_req_per_s, concurrency, trace or stages.",
        )
    checks: list[tuple[str, float | None, float]] = [
        ("n", workload.n, 1),
        ("concurrency", workload.concurrency, 1),
        ("turns", workload.turns, 1),
        ("prefix_groups", workload.prefix_groups, 1),
        ("ramp_s", workload.ramp_s, 0),
        ("think_s", workload.think_s, 0),
        ("shared_prefix_tok", workload.shared_prefix_tok, 0),
    ]
    for name, value, least in checks:
        if value is not None and not (value >= least and math.isfinite(value)):
            raise ServefitError(f"{name} is {value}.", hint=f"It is at least {least:g}.")
    if workload.trace is None and workload.n > MAX_REQUESTS:
        raise ServefitError(f"n is {workload.n:,}.", hint=f"At most {MAX_REQUESTS:,} requests.")
    if workload.rate_req_per_s is not None and 0 < workload.rate_req_per_s < MIN_REQ_PER_S:
        raise ServefitError(
            f"rate_req_per_s is {workload.rate_req_per_s:g}.",
            hint=f"At least {MIN_REQ_PER_S:f}, which is one request in 12 days.",
        )
    above_zero = [("rate_req_per_s", workload.rate_req_per_s), ("burstiness", workload.burstiness),
                  ("time_scale", workload.time_scale)]  # fmt: skip
    for rate, seconds in workload.stages:
        above_zero.append(("a stage's duration", seconds))
        if not (rate >= 0 and math.isfinite(rate)):
            raise ServefitError(f"A stage's rate is {rate}.", hint="Rates are 0 or more requests per second.")
    if workload.burstiness > MAX_BURSTINESS:
        raise ServefitError(
            f"burstiness is {workload.burstiness:g}.",
            hint=f"At most {MAX_BURSTINESS:,.0f}; constant arrivals are even.",
        )
    for name, value in above_zero:
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ServefitError(f"{name} is {value}.", hint="It is above 0.")
    for name, value in (("ramp_s", workload.ramp_s), ("think_s", workload.think_s)):
        if value > LONGEST_S:
            raise ServefitError(f"{name} is {value:g}.", hint=f"At most {LONGEST_S:g} seconds, some 30 years.")
    check_lengths(workload.isl, "isl")
    check_lengths(workload.osl, "osl")


def _starts(workload: Workload) -> list[float]:
    """When each session starts, in seconds."""
    count = -(-workload.n // workload.turns)
    if workload.concurrency is not None:
        users = min(workload.concurrency, count)
        ramp = [whole_us(workload.ramp_s * user / users) for user in range(users)]
        return ramp + [0.0] * (count - users)
    stages = workload.stages or ((workload.rate_req_per_s or 0.0, math.inf),)
    rng = stream(workload.seed, "arrivals")
    out: list[float] = []
    work = 0.0  # in expected arrivals: the unit in which every arrival process here has rate 1
    while workload.stages or len(out) < count:
        if workload.arrivals == "burst":
            due: float | None = 0.0
            if workload.stages:
                raise ServefitError("A burst has no stages.", hint="Use poisson, constant or gamma arrivals.")
        elif workload.arrivals == "constant":
            due = when(float(len(out)), stages)
        else:
            shape = workload.burstiness if workload.arrivals == "gamma" else 1.0
            work += rng.gammavariate(shape, 1.0 / shape) if shape != 1.0 else rng.expovariate(1.0)
            due = when(work, stages)
        if due is None:
            break
        out.append(whole_us(due))
    if not out:
        raise ServefitError("The stages are too short for a single request.", hint="Raise a rate or a duration.")
    return out


def when(work: float, stages: tuple[tuple[float, float], ...]) -> float | None:
    """The moment by which `work` arrivals are expected; None after the last stage."""
    at = 0.0
    for rate, seconds in stages:
        if rate > 0 and work < rate * seconds:
            return at + work / rate
        work -= rate * seconds
        at += seconds
    return None


def _prefix(workload: Workload, isl: int, group: int, session: int) -> tuple[int, ...]:
    """Hashes of the prompt's full blocks that another request can share: those of its group, then those of its session."""
    if not workload.shared_prefix_tok and workload.turns == 1:
        return ()
    shared = workload.shared_prefix_tok // PREFIX_BLOCK_TOK
    blocks = isl // PREFIX_BLOCK_TOK if workload.turns > 1 else shared
    own = ((1 << 62) | (session << 24 | block) for block in range(shared, blocks))
    return (*(group << 24 | block for block in range(shared)), *own)


def whole_us(seconds: float) -> float:
    """The same moment in whole microseconds, as seconds."""
    return round(seconds * 1e6) / 1e6

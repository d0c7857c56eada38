"""Runs with a known cause, made by the simulated engine (and a little noise), for the rules to name."""

import random
from bisect import bisect_right
from dataclasses import replace
from typing import Any

from servefit.engine.simulate import EngineConfig, simulate_run
from servefit.physics.steptime import StepTime
from servefit.records import RequestRecord, Run, RunHeader
from servefit.workload.requests import Request
from servefit.workload.workload import Lengths, Workload

STEP = StepTime(const_s=0.010, per_seq_s=0.0006, per_prefill_tok_s=0.0006, per_kv_tok_s=3e-6)
"""About the embedded engine on two cores: 10.6 ms a token alone, 1,600 prompt tokens a second."""


def simulate(n: int = 40, isl: int = 64, osl: int = 48, *, rate: float | None = None, users: int | None = None,
             lengths: Lengths | None = None, seed: int = 1, **config: Any) -> Run:  # fmt: skip
    """A run of the simulated engine, each arrival moved by up to a millisecond as on a real machine."""
    workload = Workload(
        n=n, isl=lengths or Lengths(mean=isl), osl=Lengths(mean=osl), rate_req_per_s=rate, concurrency=users, seed=seed
    )
    run = simulate_run(
        workload, EngineConfig(**({"policy": "continuous", "seats": 8, "budget_tok": 4096} | config)), STEP
    )
    return shake(run)


def of_requests(requests: list[Request], **config: Any) -> Run:
    """The same for a list of requests."""
    chosen = EngineConfig(**({"policy": "continuous", "seats": 8, "budget_tok": 4096} | config))
    return shake(simulate_run(Workload(n=len(requests)), chosen, STEP, requests=requests))


def shake(run: Run, *, jitter_s: float = 0.001, seed: int = 7) -> Run:
    """Each token a little later than it was, in order, as a network and a busy machine make it; as if measured."""
    rng = random.Random(seed)
    rows = []
    for row in run.rows:
        times: list[float] = []
        for at in row.chunk_s:
            times.append(max(at + rng.random() * jitter_s, times[-1] if times else 0.0))
        rows.append(
            replace(
                row,
                chunk_s=tuple(times),
                isl_source="usage",
                osl_source="usage",
                preempted=None,
                server=None,
                cached_tok=None,
            )
        )
    return Run(header=replace(run.header, kind="measured", engine={}), rows=tuple(rows))


def disturb(run: Run, seed: int, *, most: float = 4.0) -> Run:
    """The run on a busy machine: for a moment, half of the time, everything takes up to `most` times as long, in the same order."""
    rng = random.Random(seed)
    knots = [(0.0, 0.0)]
    while knots[-1][0] < max(r.chunk_s[-1] for r in run.rows if r.chunk_s):
        at, late = knots[-1]
        piece = rng.expovariate(1 / 0.15)
        knots.append((at + piece, late + piece * rng.choice((1.0, rng.uniform(1.0, most)))))

    def moved(t: float) -> float:
        index = max(bisect_right(knots, (t,)) - 1, 0)
        (a, b), (c, d) = knots[index : index + 2]
        return b + (t - a) * (d - b) / (c - a)

    rows = [
        replace(r, due_s=moved(r.due_s), sent_s=moved(r.sent_s or r.due_s), chunk_s=tuple(map(moved, r.chunk_s)), done_s=moved(r.chunk_s[-1]))
        for r in run.rows
    ]  # fmt: skip
    return Run(header=run.header, rows=tuple(rows))


def stream(
    number: int, due: float, ttft: float, gaps: list[float], *, sizes: tuple[int, ...] | None = None, **over: Any
) -> RequestRecord:
    """A row by hand: first token `ttft` after it was due, then these gaps."""
    times = [due + ttft]
    for gap in gaps:
        times.append(times[-1] + gap)
    tokens = sum(sizes) if sizes else len(times)
    fields = {"id": str(number), "status": "ok", "due_s": due, "sent_s": due, "chunk_s": tuple(times), "chunk_tok": sizes, "done_s": times[-1],
              "isl": 64, "isl_asked": 64, "isl_source": "usage", "osl": tokens, "osl_source": "usage", "http_status": 200}  # fmt: skip
    return RequestRecord(**(fields | over))


def by_hand(rows: list[RequestRecord], **header: Any) -> Run:
    """A measured run of these rows."""
    return Run(header=RunHeader(kind="measured", **header), rows=tuple(rows))

"""Random loops on the simulated engine, each with what its requests truly waited for, step by step: a seat, or others' prompts."""

import random
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass

from explain.runs import STEP, shake
from servefit.engine.config import EngineConfig
from servefit.engine.policies import Batch, Server
from servefit.engine.sequence import Sequence
from servefit.engine.simulate import rows_of, run_of
from servefit.engine.stepping import Arrivals, drive
from servefit.records import Run
from servefit.stats import percentile
from servefit.workload.arrivals import schedule
from servefit.workload.workload import Lengths, Workload

KINDS = ("closed, prompts", "closed, seats", "closed, any", "open, prompts", "open, seats", "one user", "calm, open")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A run as measured, and of each request by id, in seconds: what it waited for before its prompt was read, and its TTFT."""

    run: Run
    workload: Workload
    config: EngineConfig
    seat_s: dict[str, float]
    prompts_s: dict[str, float]
    """With a seat free: a step reads no more, or the step in flight as it came was not over."""
    read_s: dict[str, float]
    """Steps that read some of its prompt, alone or beside others' prompts and answers."""
    beside_s: dict[str, float]
    """Of those, by tokens, what others' prompts took: read together, or waited for, as one likes to call it."""
    ttft_s: dict[str, float]

    def share(self, *parts: dict[str, float]) -> float:
        """p95 of what was waited, as a share of p95 of TTFT."""
        waits = [sum(p[i] for p in parts) for i in self.ttft_s]
        return (percentile(waits, 95) or 0.0) / self.slow_s

    @property
    def slow_s(self) -> float:
        """p95 of TTFT."""
        return percentile(self.ttft_s.values(), 95) or 1.0


def play(workload: Workload, config: EngineConfig) -> Loop:
    """Run it, and watch every step: who reads, who waits, and whether a seat was free."""
    asked = schedule(workload)
    arrivals, server = Arrivals(asked, STEP, concurrency=workload.concurrency), Server(config)
    seat: Counter[int] = Counter()
    prompts: Counter[int] = Counter()
    read: Counter[int] = Counter()
    beside: Counter[int] = Counter()
    steps: list[tuple[float, float, set[int]]] = []

    def watch(server: Server, batch: Batch, end_s: float) -> None:
        at, reads = server.now_s, {seq.index for seq, _ in batch.prefills}
        for seq, tok in batch.prefills:
            read[seq.index] += end_s - at
            beside[seq.index] += (end_s - at) * (1 - tok / batch.prefill_tok)
        lacks = seat if len(server.running) >= config.seats else prompts
        for seq in server.waiting:
            lacks[seq.index] += end_s - at
        for seq in server.running:
            if seq.prefilling and seq.index not in reads:
                prompts[seq.index] += end_s - at
        steps.append((at, end_s, {seq.index for seq in server.waiting} | {seq.index for seq in server.running}))

    drive(arrivals, [server], STEP, on_step=watch)
    began = [at for at, _, _ in steps]
    for seq in arrivals.issued:  # whoever comes within a step waits for its end
        at, end, there = steps[max(bisect_right(began, seq.due_s) - 1, 0)]
        if at < seq.due_s < end and seq.index not in there:
            prompts[seq.index] += end - seq.due_s
    run = run_of(rows_of(arrivals.issued, None), asked, workload, config, STEP)

    def named(part: Counter[int]) -> dict[str, float]:
        return {_id(seq): part[seq.index] for seq in arrivals.issued}

    ttft = {_id(seq): seq.chunk_s[0] - seq.due_s for seq in arrivals.issued}
    return Loop(run=shake(run), workload=workload, config=config, seat_s=named(seat), prompts_s=named(prompts), read_s=named(read),
                beside_s=named(beside), ttft_s=ttft)  # fmt: skip


def _id(seq: Sequence) -> str:
    return str(seq.request.id)


def loop(seed: int) -> Loop:
    """A closed or open loop of kind `seed` mod 7, everything else drawn: whole prompts or slices, equal lengths or not."""
    rng, kind = random.Random(seed), KINDS[seed % len(KINDS)]
    policy = rng.choice(("chunked", "chunked", "continuous"))
    isl, osl, seats = rng.randint(100, 800), rng.randint(24, 96), 16
    users: int | None = rng.choice((2, 3, 4, 6, 8, 12))
    budget = rng.choice((32, 48, 64, 128, 256)) if policy == "chunked" else 4096
    if "seats" in kind:
        isl, seats = rng.randint(16, 128), rng.randint(1, 6)
        users = seats * 2 + rng.randint(1, 6)
    elif kind == "closed, any":
        seats, isl = rng.randint(1, 8), rng.randint(16, 600)
    rate = None
    if "open" in kind:
        reading = isl * STEP.per_prefill_tok_s + STEP.const_s * isl / min(budget, isl)
        most = 1 / (reading + osl * (STEP.per_seq_s + STEP.const_s / 8))
        if "seats" in kind:
            seats = rng.randint(1, 3)
            most = min(most, seats / (reading * seats + osl * 1.2 * STEP.const_s))
        users, rate = None, most * (rng.uniform(0.03, 0.15) if "calm" in kind else rng.uniform(0.6, 0.95))
    alike = rng.random() < 0.5
    workload = Workload(
        n=40, concurrency=1 if kind == "one user" else users, rate_req_per_s=rate, seed=seed,
        isl=_lengths(isl, alike=alike), osl=_lengths(osl, alike=alike),
    )  # fmt: skip
    return play(workload, EngineConfig(policy=policy, seats=seats, budget_tok=max(budget, seats)))


def sliced(seed: int) -> Loop:
    """A closed loop with a seat for everybody, prompts in slices."""
    rng = random.Random(seed)
    isl = Lengths(mean=rng.randint(100, 800))
    users, osl = rng.choice((2, 3, 4, 6, 8)), Lengths(mean=rng.randint(24, 96))
    workload = Workload(n=40, concurrency=users, isl=isl, osl=osl, seed=seed)
    return play(workload, EngineConfig(policy="chunked", seats=8, budget_tok=rng.choice((32, 48, 64, 128, 256))))


def _lengths(mean: int, *, alike: bool) -> Lengths:
    if alike:
        return Lengths(mean=mean)
    return Lengths(kind="uniform", mean=mean, min=mean // 2, max=mean + mean // 2)

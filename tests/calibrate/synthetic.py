"""Runs of a server whose step time is known: a few lines of scheduler, written apart from the simulator on purpose."""

import random
from collections import deque

from servefit.physics.steptime import StepTime, step_s
from servefit.records import RequestRecord, Run, RunHeader

TRUTH = StepTime(
    const_s=0.0080,
    per_seq_s=0.0011,
    per_kv_tok_s=2.9e-6,
    per_prefill_tok_s=0.00055,
    per_prefill_pos_s=2.0e-7,
    front_end_s=0.004,
    front_end_per_tok_s=3e-6,
)


def serve(
    requests,
    *,
    policy="continuous",
    seats=16,
    budget_tok=256,
    step=TRUTH,
    noise=0.0,
    seed=0,
    cached=None,
    users=None,
    jitter_s=0.0,
):
    """A measured-looking run of `requests` [(due_s, isl, osl), ...]; with `users` a closed loop of that many.

    Policies: none, static, continuous (whole prompts, a step of their own), chunked (decodes first, then prompts up to
    the budget). Times carry relative `noise` per step and `jitter_s` per arrival.
    """
    rng = random.Random(seed)
    todo = deque(enumerate(requests))
    coming: list[tuple[float, int, float, int, int]] = []  # ready at the engine, id, sent, isl, osl
    waiting, running, rows = deque(), [], []
    now, last_size = 0.0, -1

    def send(at):
        number, (_due, isl, osl) = todo.popleft()
        coming.append((at + step.front_end_s + step.front_end_per_tok_s * isl, number, at, isl, osl))
        coming.sort()

    if users is None:
        while todo:
            send(todo[0][1][0])
    else:
        for _ in range(min(users, len(todo))):
            send(0.0)
    while coming or waiting or running:
        while coming and coming[0][0] <= now:
            _, number, sent, isl, osl = coming.pop(0)
            have = (cached or {}).get(number, 0)
            waiting.append({"id": number, "sent": sent, "isl": isl, "osl": osl, "done": have, "have": have, "t": []})
        limit = 1 if policy == "none" else seats
        if not (policy == "static" and any(r["t"] for r in running)):
            while waiting and len(running) < limit:
                running.append(waiting.popleft())
        if not running:
            now = coming[0][0]
            continue
        reading = [r for r in running if r["done"] < r["isl"]]
        decoding = [r for r in running if r["done"] >= r["isl"]]
        if policy == "chunked":
            room = budget_tok - len(decoding)
        else:
            room = 10**9
            if reading:
                decoding = []
        tokens = positions = 0
        finished = []
        for r in reading:
            k = min(room - tokens, r["isl"] - r["done"])
            if k <= 0:
                break
            positions += sum(range(r["done"] + 1, r["done"] + k + 1))
            tokens += k
            r["done"] += k
            if r["done"] >= r["isl"]:
                finished.append(r)
        kv = sum(r["isl"] + len(r["t"]) for r in decoding)
        size = len(decoding) + tokens
        took = step_s(
            step, seqs=len(decoding), kv_tok=kv, prefill_tok=tokens, prefill_pos=positions, changed=size != last_size
        )
        last_size = size
        now += took * max(0.2, 1.0 + rng.gauss(0.0, noise))
        for r in [*decoding, *finished]:
            r["t"].append(now + rng.random() * jitter_s)
            if len(r["t"]) >= r["osl"]:
                running.remove(r)
                rows.append(_row(r, users))
                if users is not None and todo:
                    send(r["t"][-1] + 1e-6)
    return Run(header=RunHeader(kind="measured", model="toy", engine={"name": "toy"}), rows=tuple(rows))


def _row(r, users):
    return RequestRecord(
        id=str(r["id"]), status="ok", due_s=r["sent"], sent_s=r["sent"], chunk_s=tuple(r["t"]), done_s=r["t"][-1],
        isl_asked=r["isl"], isl=r["isl"], isl_source="usage", osl_asked=r["osl"], osl=r["osl"], osl_source="usage",
        cached_tok=r["have"], finish_reason="length", http_status=200,
    )  # fmt: skip


def probe_like(step=TRUTH, *, policy="continuous", noise=0.03, seed=0, jitter_s=0.0002, seats=16, budget_tok=256):
    """Five runs as the probes make them: lone prompts, two batches, and prompts that join while others decode."""
    common = {
        "policy": policy,
        "step": step,
        "noise": noise,
        "jitter_s": jitter_s,
        "seats": seats,
        "budget_tok": budget_tok,
    }
    lone = [(0.0, isl, 24) for isl in (32, 128, 512, 1000, 1800) for _ in range(3)]
    join = [(0.0, 64, 150)] + [(0.3 + 0.6 * i, isl, 4) for i, isl in enumerate((256, 512, 1000))]
    return [
        serve(lone, users=1, seed=seed, **common),
        serve([(0.0, 64, 48)] * 8, users=8, seed=seed + 1, **common),
        serve([(0.0, 64, 32)] * 2 + [(0.0, 64, 32)] * 2, users=2, seed=seed + 2, **common),
        serve([(0.0, 512, 48)] * 4, users=4, seed=seed + 3, **common),
        serve(join, seed=seed + 4, **common),
    ]

"""One configuration under one load: `simulate` for figures, `simulate_run` for a run with every token's time."""

import math
from array import array
from collections.abc import Sequence as Many
from typing import Any

from servefit.engine.config import EngineConfig, Speculation, check_config
from servefit.engine.jump import can_jump, simulate_jumping
from servefit.engine.outcome import NOT_DUE, OK, REJECTED, UNFINISHED, Gaps, Outcome
from servefit.engine.policies import Server
from servefit.engine.sequence import Sequence
from servefit.engine.stepping import Arrivals, drive
from servefit.physics.steptime import StepTime
from servefit.records import Finding, RequestRecord, Run, RunHeader
from servefit.workload.arrivals import schedule
from servefit.workload.requests import Request, schedule_sha256
from servefit.workload.workload import Workload, workload_sha256

__all__ = ["EngineConfig", "Outcome", "Speculation", "simulate", "simulate_run"]


def simulate(
    requests: Many[Request],
    config: EngineConfig,
    step: StepTime,
    *,
    concurrency: int | None = None,
    think_s: float = 0.0,
    horizon_s: float | None = None,
) -> Outcome:
    """What `config` does with `requests`, in compact columns.

    Open loop: each request is due at its `due_s`. Closed loop (`concurrency`): the first so many at their `due_s`, each
    further one `think_s` after an answer. Requests not finished at `horizon_s` are "unfinished", those not due by then
    are left out. `step` is the only clock.

    >>> step = StepTime(const_s=0.010)
    >>> one = simulate([Request(id=0, due_s=0.0, isl=8, osl=3)], EngineConfig(), step)
    >>> one.ttft_s[0], round(one.e2e_s[0], 9), one.steps
    (0.01, 0.03, 3)
    """
    check_config(config)
    run = simulate_jumping if can_jump(requests, config) else simulate_stepping
    return run(requests, config, step, concurrency=concurrency, think_s=think_s, horizon_s=horizon_s)


def simulate_stepping(
    requests: Many[Request],
    config: EngineConfig,
    step: StepTime,
    *,
    concurrency: int | None = None,
    think_s: float = 0.0,
    horizon_s: float | None = None,
) -> Outcome:
    """The same as `simulate`, one step at a time: slow, readable, and what `simulate` is tested against."""
    arrivals = Arrivals(requests, step, concurrency=concurrency, think_s=think_s)
    server = Server(config)
    drive(arrivals, [server], step, horizon_s=math.inf if horizon_s is None else horizon_s)
    return outcome_of(arrivals.sequences, arrivals.issued, [server], horizon_s)


def outcome_of(
    sequences: Many[Sequence], issued: Many[Sequence], servers: Many[Server], horizon_s: float | None
) -> Outcome:
    """The columns of what was stepped through."""
    due = {seq.index for seq in issued if horizon_s is None or seq.due_s <= horizon_s}
    codes = {"ok": OK, "unfinished": UNFINISHED, "rejected": REJECTED}
    gaps = Gaps()
    for seq in sequences:
        before = seq.chunk_s[0] if seq.chunk_s else 0.0
        for at, tok in zip(seq.chunk_s[1:], seq.chunk_tok[1:], strict=True):
            gaps.add(tok, (at - before) / tok)
            before = at
    ends = [seq.done_s for seq in sequences if seq.done_s is not None]
    return Outcome(
        due_s=array("d", (seq.due_s if seq.index in due else seq.request.due_s for seq in sequences)),
        first_s=array("d", (seq.chunk_s[0] if seq.chunk_s else math.nan for seq in sequences)),
        last_s=array("d", (seq.chunk_s[-1] if seq.chunk_s else math.nan for seq in sequences)),
        produced_tok=array("q", (seq.produced_tok for seq in sequences)),
        osl=array("q", (seq.osl for seq in sequences)),
        isl=array("q", (seq.isl for seq in sequences)),
        status=array("b", (codes[seq.status] if seq.index in due else NOT_DUE for seq in sequences)),
        preempted=array("q", (seq.preempted for seq in sequences)),
        gaps=gaps,
        steps=sum(server.steps for server in servers),
        busy_s=math.fsum(server.busy_s for server in servers),
        kv_blocks=servers[0].config.kv_blocks,
        peak_kv_blocks=max(server.kv.peak for server in servers),
        end_s=horizon_s if horizon_s is not None and len(ends) < len(due) else max(ends, default=0.0),
        cached_tok=sum(seq.cached_tok for seq in sequences),
    )


def simulate_run(
    workload: Workload,
    config: EngineConfig,
    step: StepTime,
    *,
    target: str = "",
    model: str = "",
    engine: dict[str, Any] | None = None,
    inputs: dict[str, str] | None = None,
    tool_version: str = "",
    horizon_s: float | None = None,
    requests: Many[Request] | None = None,
) -> Run:
    """A run with every token's time, of the same type as a measured one; its bytes depend on the seed alone."""
    check_config(config)
    asked = schedule(workload) if requests is None else tuple(requests)
    arrivals = Arrivals(asked, step, concurrency=workload.concurrency, think_s=workload.think_s)
    server = Server(config)
    drive(arrivals, [server], step, horizon_s=math.inf if horizon_s is None else horizon_s)
    rows = rows_of(arrivals.issued, horizon_s)
    return run_of(
        rows, asked, workload, config, step, horizon_s=horizon_s, target=target, model=model, engine=engine,
        inputs=inputs, tool_version=tool_version,
    )  # fmt: skip


def run_of(
    rows: tuple[RequestRecord, ...],
    asked: tuple[Request, ...],
    workload: Workload,
    config: EngineConfig,
    step: StepTime,
    *,
    horizon_s: float | None = None,
    target: str = "",
    model: str = "",
    engine: dict[str, Any] | None = None,
    inputs: dict[str, str] | None = None,
    tool_version: str = "",
) -> Run:
    """The rows under the header of a simulated run."""
    header = RunHeader(
        kind="simulated",
        tool_version=tool_version,
        target=target,
        model=model,
        engine=engine_fields(config) | (engine or {}),
        load=load_fields(workload, len(rows)),
        workload_sha256=workload_sha256(workload),
        schedule_sha256=schedule_sha256(asked),
        seed=workload.seed,
        clock="simulated",
        inputs=inputs or {},
        duration_s=_duration_s(rows, horizon_s),
        finished=True,
        findings=findings_of(rows, step),
    )
    return Run(header=header, rows=rows)


def rows_of(issued: Many[Sequence], horizon_s: float | None, *, replicas: bool = False) -> tuple[RequestRecord, ...]:
    """One row a request that was due, in the order they ended; those that did not end come last."""
    due = [seq for seq in issued if horizon_s is None or seq.due_s <= horizon_s]
    due.sort(key=lambda seq: (math.inf if seq.done_s is None else seq.done_s, seq.index))
    return tuple(_row(seq, replicas=replicas) for seq in due)


def _row(seq: Sequence, *, replicas: bool) -> RequestRecord:
    request = seq.request
    plain = all(tok == 1 for tok in seq.chunk_tok)
    queue = {} if seq.queue_s is None else {"queue_s": round(seq.queue_s, 9)}
    return RequestRecord(
        id=str(request.id),
        status=seq.status,
        due_s=seq.due_s,
        sent_s=seq.due_s,
        chunk_s=tuple(seq.chunk_s),
        chunk_tok=None if plain else tuple(seq.chunk_tok),
        done_s=seq.done_s,
        isl_asked=request.isl,
        isl=request.isl,
        isl_source="simulated",
        osl_asked=request.osl,
        osl=seq.produced_tok,
        osl_source="simulated",
        cached_tok=seq.cached_tok or None,
        finish_reason="length" if seq.status == "ok" else None,
        error="larger than the whole KV cache" if seq.status == "rejected" else None,
        server=queue or None,
        user=seq.user,
        replica=seq.replica if replicas else None,
        preempted=seq.preempted or None,
    )


def engine_fields(config: EngineConfig) -> dict[str, Any]:
    """The settings as a run's header records them; None where a setting does not apply."""
    spec = config.speculation
    return {
        "name": "simulated",
        "policy": config.policy,
        "seats": config.seats,
        "budget_tok": config.budget_tok,
        "kv_blocks": config.kv_blocks,
        "block_tok": config.block_tok,
        "timeout_s": config.timeout_s if config.policy == "dynamic" else None,
        "padded": config.padded if config.policy in ("static", "dynamic") else None,
        "prefix_cache": config.prefix_cache,
        "order": config.order,
        "speculation": None
        if spec is None
        else {"draft_tok": spec.draft_tok, "accept_frac": spec.accept_frac, "draft_s": spec.draft_s},
    }


def load_fields(workload: Workload, n: int) -> dict[str, Any]:
    """What was asked, as a run's header records it."""
    lengths = {"isl": workload.isl.mean, "osl": workload.osl.mean}
    if workload.concurrency is not None:
        return {"kind": "closed", "concurrency": workload.concurrency, "n": n, **lengths}
    if workload.trace is not None:
        return {"kind": "trace", "n": n, "trace": workload.trace}
    rate = {
        "rate": workload.rate_req_per_s,
        "arrivals": workload.arrivals,
        "stages": [list(s) for s in workload.stages],
    }
    return {"kind": "open", "n": n, **rate, **lengths}


def findings_of(rows: Many[RequestRecord], step: StepTime) -> tuple[Finding, ...]:
    """What a reader of a simulated run must know."""
    unfinished, rejected = (sum(row.status == status for row in rows) for status in ("unfinished", "rejected"))
    return findings_for(len(rows), unfinished, rejected, step)


def findings_for(n: int, unfinished: int, rejected: int, step: StepTime) -> tuple[Finding, ...]:
    """The same from counts alone."""
    out: list[Finding] = []
    if step.lower_bound:
        out.append(
            Finding(
                code="lower_bound",
                level="note",
                message="Datasheet only: every time is a lower bound, because an engine's overhead is not in it.",
                hint="Calibrate on a measured run.",
            )
        )
    if unfinished:
        out.append(
            Finding(
                code="unfinished",
                level="suspect",
                message=f"{unfinished} of {n} requests were not finished at the horizon; they count as misses.",
                hint="Simulate longer, or lower the load.",
            )
        )
    if rejected:
        out.append(
            Finding(
                code="rejected",
                level="suspect",
                message=f"{rejected} of {n} requests are larger than the whole KV cache.",
                hint="Shorter prompts, a smaller model or more memory.",
            )
        )
    return tuple(out)


def _duration_s(rows: Many[RequestRecord], horizon_s: float | None) -> float | None:
    if not rows:
        return None
    ends = [row.done_s for row in rows if row.done_s is not None]
    end = horizon_s if horizon_s is not None and len(ends) < len(rows) else max(ends, default=0.0)
    return end - min(row.due_s for row in rows)

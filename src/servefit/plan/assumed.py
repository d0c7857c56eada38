"""The list of what a plan takes for granted, each with its alternative. `plan.assumptions` tries them.

An id, once published, keeps its meaning: decisions refer to it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from servefit.physics.steptime import StepTime, scaled, step_s
from servefit.plan.assumptions import Draft, Ground, tried
from servefit.plan.plan import Assumption, Breaking
from servefit.plan.scenario import Scenario, Schedule, at_rate, offered_req_per_s, with_users
from servefit.units import fmt, fmt_count, fmt_percent, fmt_s
from servefit.workload.requests import Request, stream

UNKNOWN_SLOWER = 1 / 0.6
"""Real decode runs at 60 to 85% of the bandwidth ceiling; a datasheet-only step may be this much longer."""
OVERHEAD_S = 0.002
OVERHEAD_PER_SEQ_S = 14e-6
"""Overhead of a step in vLLM 0.30 on an H100 with Qwen3-8B, from silybench's runs: 2.0 ms and 14 us a sequence."""
KV_EFFICIENCY = 0.7
"""Share of the bandwidth at which attention kernels read the cache on GDDR cards (0.70 to 0.78, LLMServingSim's profiles)."""
RATIO_SEATS = (1, 8, 16, 24, 32, 64)


def assume(ground: Ground, index: int) -> list[Assumption]:
    """The assumption of that place in MAKERS, tried on the ground; an empty list where it does not apply."""
    draft = MAKERS[index](ground)
    return [] if draft is None else [tried(draft, ground.scenario)]


def context_length(g: Ground) -> Draft | None:
    """Decode steps measured at shorter contexts than this workload reaches (or never measured at any)."""
    step, seats = g.scenario.step, g.scenario.config.seats
    reached = _contexts(g)
    span = g.basis.domain.get("ctx_tok")
    if span is not None and reached[1] <= span[1] * 1.05:
        return None
    at = span[1] if span else 0.0
    alone = step_s(step, seqs=1, kv_tok=round(at))
    by_bytes = g.kv_bytes_per_tok * alone / max(1.0, g.streamed_bytes + g.kv_bytes_per_tok * at)
    slope = max(by_bytes, step.per_kv_tok_s)
    if span is None:
        slope = step.per_kv_tok_s / KV_EFFICIENCY
    here = step_s(step, seqs=seats, kv_tok=round(seats * reached[1]))
    grown = seats * (reached[1] - at)

    def change(scenario: Scenario, ratio: float) -> Scenario:
        extra = (ratio - 1) * here / grown
        old = scenario.step
        return replace(
            scenario,
            step=replace(old, per_kv_tok_s=old.per_kv_tok_s + extra, per_seq_s=max(0.0, old.per_seq_s - extra * at)),
        )

    otherwise = 1 + (slope - step.per_kv_tok_s) * grown / here
    if span:
        text = (
            f"Decode steps were measured at contexts of {_span(span)} tokens, while this workload reaches "
            f"{fmt(reached[1])} tokens: with {seats} seats a step then reads "
            f"{fmt(_ratios(g, at, reached[1])[f'step_bytes_ratio_at_{seats}_seats'], 2)} times the bytes."
        )
        alternative = "each token of context beyond the measured range costs what reading its bytes costs"
    else:
        text = f"How a step grows with context was never measured; this workload reaches {fmt(reached[1])} tokens."
        alternative = f"the cache is read at {fmt_percent(KV_EFFICIENCY)} of the assumed speed"
    return Draft(
        id="context-length",
        text=text,
        source=g.basis.source,
        unit="x step time at the longest context",
        planned=1.0,
        alternative=alternative,
        change=change,
        otherwise=max(1.0, otherwise),
        limit=8.0,
        measured=span,
        reached=reached,
        range_unit="tok",
        details=_ratios(g, at, reached[1]) if span else {},
    )


def _ratios(g: Ground, at: float, reached: float) -> dict[str, float]:
    """Bytes of one decode step at the context that is reached over those at the measured one, for some seats.

    (weights + seats x KV x reached) / (weights + seats x KV x measured), all weights counted as read: a step reads a
    little less (the input embedding is a look-up), so the true ratio is a little larger.
    """
    seats = sorted({*RATIO_SEATS, g.scenario.config.seats})
    w, kv = g.weight_bytes, g.kv_bytes_per_tok
    return {f"step_bytes_ratio_at_{s}_seats": (w + s * kv * reached) / (w + s * kv * at) for s in seats}


def step_source(g: Ground) -> Draft:
    """The step time itself may be off."""
    error = g.basis.error_frac
    otherwise = UNKNOWN_SLOWER if g.basis.lower_bound else 1 + (error or 0.1)
    known = (
        "from the datasheet alone, so overhead is not in them"
        if g.basis.lower_bound
        else f"{g.basis.source} ({_short(g.basis.origin)}), right within {fmt_percent(error)}"
        if error
        else f"{g.basis.source} ({_short(g.basis.origin)}), with an error nobody has stated"
    )
    return Draft(
        id="step-source",
        text=f"Step times of {g.candidate.device} are {known}.",
        source=g.basis.source,
        unit="x step time",
        planned=1.0,
        alternative=f"every step takes {fmt(otherwise, 2)} times as long",
        change=lambda s, factor: replace(s, step=scaled(s.step, factor)),
        otherwise=otherwise,
        limit=8.0,
    )


def _short(origin: str) -> str:
    """Who it is from, without the sources behind it: those stand with the step time."""
    return (
        origin.rpartition(": ")[2]
        if origin.count(": ") == 1
        else origin.partition(": ")[2].partition(" (")[0] or origin
    )


def engine_overhead(g: Ground) -> Draft | None:
    """Overhead between steps, where nobody has measured it."""
    if not g.basis.lower_bound:
        return None
    s0 = g.scenario
    here = step_s(s0.step, seqs=s0.config.seats, kv_tok=round(s0.config.seats * g.max_context_tok))

    def change(s: Scenario, x: float) -> Scenario:
        old = s.step
        return replace(
            s,
            step=replace(old, const_s=old.const_s + x, per_seq_s=old.per_seq_s + x * OVERHEAD_PER_SEQ_S / OVERHEAD_S),
        )

    return Draft(
        id="engine-overhead",
        text="The engine's own overhead per step (launches, scheduling, sampling) is unknown and taken as 0.",
        source="assumed",
        unit="s",
        planned=0.0,
        alternative=f"{fmt_s(OVERHEAD_S)} a step and {fmt_s(OVERHEAD_PER_SEQ_S)} a sequence, as vLLM 0.30 on an H100",
        change=change,
        otherwise=OVERHEAD_S,
        limit=1.0,
        scale="difference",
        factor=lambda x: (here + x) / here,
    )


def batch_domain(g: Ground) -> Draft | None:
    """More requests decoding together than were ever measured."""
    span = g.basis.domain.get("seqs")
    seats = g.scenario.config.seats
    if span is None or seats <= span[1]:
        return None
    return Draft(
        id="batch-domain",
        text=f"Steps were measured with {_span(span)} requests decoding together; here {seats} may.",
        source=g.basis.source,
        unit="x cost of each sequence",
        planned=1.0,
        alternative="each sequence costs 1.5 times as much",
        change=lambda s, f: replace(s, step=replace(s.step, per_seq_s=s.step.per_seq_s * f)),
        otherwise=1.5,
        limit=16.0,
        measured=span,
        reached=(1.0, float(seats)),
        range_unit="requests",
    )


def prompt_domain(g: Ground) -> Draft | None:
    """Prompts longer (or shorter) than any that were measured."""
    span = g.basis.domain.get("prefill_tok")
    prompts = [r.isl for r in g.scenario.schedules[0]]
    low, high = min(prompts), max(prompts)
    if span is None or (span[0] * 0.95 <= low and high <= span[1] * 1.05):
        return None
    return Draft(
        id="prompt-domain",
        text=f"Prompts of {_span(span)} tokens were measured; here they have {_span((low, high))}.",
        source=g.basis.source,
        unit="x cost of a prompt token",
        planned=1.0,
        alternative="each prompt token costs 1.5 times as much",
        change=lambda s, f: replace(s, step=_prefill_scaled(s.step, f)),
        otherwise=1.5,
        limit=16.0,
        measured=span,
        reached=(float(low), float(high)),
        range_unit="tok",
    )


def _prefill_scaled(step: StepTime, f: float) -> StepTime:
    return replace(
        step, per_prefill_tok_s=step.per_prefill_tok_s * f, per_prefill_pos_s=step.per_prefill_pos_s * f,
        ragged_tok_s=step.ragged_tok_s * f,
        compute_per_tok_s=step.compute_per_tok_s * f,
    )  # fmt: skip


def arrival_rate(g: Ground) -> Draft | None:
    """The rate that was stated."""
    offered = g.scenario.offered_req_per_s or offered_req_per_s(g.scenario.schedules[0])
    if offered is None or g.scenario.concurrency is not None:
        return None
    return Draft(
        id="arrival-rate",
        text=f"Requests arrive at {fmt(offered, 2)} a second on average.",
        source="assumed",
        unit="req_per_s",
        planned=offered,
        alternative="20% more of them",
        change=lambda s, rate: at_rate(s, rate / offered),
        otherwise=1.2 * offered,
        limit=64 * offered,
    )


def concurrency(g: Ground) -> Draft | None:
    """The number of users of a closed loop."""
    users = g.scenario.concurrency
    if users is None:
        return None
    return Draft(
        id="concurrency",
        text=f"Each of {fmt_count(users, 'user')} asks again when answered.",
        source="assumed",
        unit="users",
        planned=float(users),
        alternative="20% more of them",
        change=lambda s, n: with_users(s, max(1, round(n))),
        otherwise=math.ceil(1.2 * users),
        limit=16.0 * users,
    )


def arrival_burstiness(g: Ground) -> Draft | None:
    """Arrivals that come in bursts."""
    w = g.spec.workload
    if w.rate_req_per_s is None or w.arrivals not in ("poisson", "gamma"):
        return None
    planned = w.burstiness if w.arrivals == "gamma" else 1.0
    if planned <= 0.1:
        return None
    return Draft(
        id="arrival-burstiness",
        text="Requests arrive independently of one another (Poisson)."
        if planned == 1
        else f"Gaps between requests are gamma distributed with shape {planned:g}.",
        source="assumed",
        unit="gamma shape (below 1: burstier)",
        planned=planned,
        alternative="bursts: gamma gaps of a quarter of that shape, at the same rate",
        change=lambda s, shape: replace(s, schedules=(bursty(s.schedules[0], shape, w.seed),)),
        otherwise=planned / 4,
        limit=planned / 64,
    )


def bursty(requests: Schedule, shape: float, seed: int) -> Schedule:
    """The same requests with gamma gaps of that shape, scaled to the same span."""
    rng = stream(seed, "burstiness")
    gaps = [rng.gammavariate(shape, 1 / shape) for _ in requests[1:]]
    span = requests[-1].due_s - requests[0].due_s
    scale = span / (math.fsum(gaps) or 1.0)
    now, out = requests[0].due_s, [requests[0]]
    for request, gap in zip(requests[1:], gaps, strict=True):
        now += gap * scale
        out.append(replace(request, due_s=round(now * 1e6) / 1e6))
    return tuple(out)


def output_length(g: Ground) -> Draft:
    """How long the answers are."""
    return _length(g, "output-length", "answers", lambda r: r.osl, lambda r, tok: replace(r, osl=tok))


def prompt_length(g: Ground) -> Draft:
    """How long the prompts are."""
    return _length(g, "prompt-length", "prompts", lambda r: r.isl, lambda r, tok: replace(r, isl=tok))


def _length(
    g: Ground, id_: str, what: str, of: Callable[[Request], int], to: Callable[[Request, int], Request]
) -> Draft:
    """All lengths of one kind, longer or shorter together."""
    lengths = [of(r) for r in g.scenario.schedules[0]]
    mean = _mean(lengths)
    return Draft(
        id=id_,
        text=f"{what.capitalize()} have {fmt(mean)} tokens on average.",
        source="assumed",
        unit="tok",
        planned=mean,
        alternative=f"{what} 1.5 times as long",
        change=lambda s, tok: _each(s, lambda r: to(r, max(1, round(of(r) * tok / mean)))),
        otherwise=1.5 * mean,
        limit=16 * mean,
        reached=_least_most(lengths),
        range_unit="tok",
    )


def length_spread(g: Ground) -> Draft | None:
    """Every request as long as the next."""
    rows = g.scenario.schedules[0]
    if len({r.isl for r in rows}) > 1 and len({r.osl for r in rows}) > 1:
        return None
    what = " and ".join(
        n for n, f in (("prompts", "isl"), ("answers", "osl")) if len({getattr(r, f) for r in rows}) == 1
    )
    seed = g.spec.workload.seed

    def change(s: Scenario, cv: float) -> Scenario:
        rng = stream(seed, "length spread")
        sigma = math.sqrt(math.log(1 + cv * cv))
        draws = [(rng.gauss(0, 1), rng.gauss(0, 1)) for _ in s.schedules[0]]

        def longer(tok: int, z: float) -> int:
            return max(1, round(tok * math.exp(sigma * z - sigma * sigma / 2)))

        return replace(
            s,
            schedules=(
                tuple(
                    replace(
                        r,
                        isl=longer(r.isl, a) if "prompts" in what else r.isl,
                        osl=longer(r.osl, b) if "answers" in what else r.osl,
                        prefix=() if "prompts" in what else r.prefix,
                    )
                    for r, (a, b) in zip(s.schedules[0], draws, strict=True)
                ),
            ),
        )

    return Draft(
        id="length-spread",
        text=f"All {what} have the same length.",
        source="assumed",
        unit="standard deviation over mean",
        planned=0.0,
        alternative="log-normal lengths of the same mean, with a standard deviation as large as it",
        change=change,
        otherwise=1.0,
        limit=2.0,
        scale="difference",
        factor=lambda cv: 1 + cv,
    )


def cache_hits(g: Ground) -> Draft | None:
    """What the prefix cache saves."""
    c = g.scenario.config
    if not c.prefix_cache or not any(r.prefix for r in g.scenario.schedules[0]):
        return None
    return Draft(
        id="cache-hits",
        text="Shared prompt prefixes are found in the cache whenever they were not evicted.",
        source="assumed",
        unit="share of shared prefixes that are kept",
        planned=1.0,
        alternative="no prefix is ever found",
        change=lambda s, share: _each(
            s, lambda r: replace(r, prefix=r.prefix[: round(len(r.prefix) * share)] if share > 0.005 else ())
        ),
        otherwise=0.0,
        limit=0.0,
        scale="difference",
        factor=lambda share: 1 + share,
    )


def kv_pool(g: Ground) -> Draft | None:
    """How much memory is left for the cache."""
    blocks = g.scenario.config.kv_blocks
    if blocks is None:
        return None
    logged = g.spec.kv_blocks is not None
    return Draft(
        id="kv-pool",
        text=f"The cache holds {fmt(blocks)} blocks of {g.scenario.config.block_tok} tokens"
        + (", as the engine logged." if logged else ", what weights, activations and fixed overhead leave."),
        source="measured" if logged else "published",
        unit="blocks",
        planned=float(blocks),
        alternative="10% fewer blocks",
        change=lambda s, n: replace(s, config=replace(s.config, kv_blocks=max(1, round(n)))),
        otherwise=0.9 * blocks,
        limit=max(1.0, blocks / 256),
    )


def network(g: Ground) -> Draft:
    """What lies between the user and the server."""
    check = next((c for c in g.candidate.checks if c.name == "ttft"), None)
    here = (check.value if check else None) or 0.1
    return Draft(
        id="network",
        text="Nothing lies between the user and the server: no network, no proxy, no TLS.",
        source="assumed",
        unit="s",
        planned=0.0,
        alternative="50 ms before the first token",
        change=lambda s, x: replace(s, extra_ttft_s=s.extra_ttft_s + x),
        otherwise=0.05,
        limit=60.0,
        scale="difference",
        factor=lambda x: (here + x) / here,
    )


def replicas_up(g: Ground) -> Draft | None:
    """Every replica is there all the time."""
    n = g.scenario.replicas
    if n < 2:
        return None
    return Draft(
        id="replicas-up",
        text=f"All {n} replicas serve all the time.",
        source="assumed",
        unit="replicas",
        planned=float(n),
        alternative="one of them is down",
        change=lambda s, k: replace(s, replicas=max(1, round(k))),
        otherwise=float(n - 1),
        limit=1.0,
    )


def price(g: Ground) -> Draft | None:
    """The price, where money is a target or other devices pass."""
    cost = g.candidate.cost
    if cost is None:
        return None
    other = g.next_usd_per_hour
    said = ", ".join(filter(None, (cost.source, cost.as_of)))
    beside = f"; the next device that passes costs ${fmt(other, 2)}" if other is not None else ""
    return Draft(
        id="price-date",
        text=f"{g.candidate.device} costs ${fmt(cost.usd_per_hour, 2)} an hour ({said}){beside}.",
        source="published" if cost.as_of else "assumed",
        unit="usd_per_hour",
        planned=cost.usd_per_hour,
        alternative="20% more",
        change=lambda s, usd: replace(s, usd_per_hour=usd),
        otherwise=1.2 * cost.usd_per_hour,
        limit=None if other is not None else 16 * cost.usd_per_hour,
        known=None
        if other is None or other <= cost.usd_per_hour
        else Breaking(value=other, factor=other / cost.usd_per_hour, check="cost"),
        details={} if other is None else {"next_device_usd_per_hour": other},
    )


MAKERS: tuple[Callable[[Ground], Draft | None], ...] = (
    context_length,
    step_source,
    engine_overhead,
    batch_domain,
    prompt_domain,
    arrival_rate,
    concurrency,
    arrival_burstiness,
    output_length,
    prompt_length,
    length_spread,
    cache_hits,
    kv_pool,
    network,
    replicas_up,
    price,
)
"""Every assumption a plan can have; one that does not apply returns None."""


def _contexts(g: Ground) -> tuple[float, float]:
    """Shortest and longest context of a decode step in this workload."""
    rows = g.scenario.schedules[0]
    return float(min(r.isl for r in rows)), float(g.max_context_tok)


def _each(s: Scenario, change: Callable[..., object]) -> Scenario:
    return replace(s, schedules=(tuple(change(r) for r in s.schedules[0]),))  # type: ignore[misc]


def _mean(values: Sequence[int]) -> float:
    return math.fsum(values) / len(values)


def _least_most(values: Sequence[int]) -> tuple[float, float]:
    return float(min(values)), float(max(values))


def _span(span: tuple[float, float]) -> str:
    """Two numbers for people: "128" or "32 to 128"."""
    low, high = span
    return fmt(low) if low == high else f"{fmt(low)} to {fmt(high)}"

"""How long one engine step takes, in seconds: memory, compute and overhead.

    t = const + per_seq*S + (per_prefill_tok + ragged)*P + per_prefill_pos*X + per_kv_tok*K + link
        + ( weights(T)^p + (compute_per_tok*T + compute_per_seq*S)^p )^(1/p) + bend(T) + change + per_prompt*N

with S decoding sequences, P prompt tokens computed in this step, X the sum of their positions (the quadratic part of
attention), K the KV tokens that the decodes read, and T = P + S tokens in all. weights(T) is the time to stream the
weights that T tokens touch: dense ones always, experts as far as they are distinct.

The linear coefficients are what calibration fits; the roofline term is what a catalogue gives before anything was
measured. Both forms live in one type, so the engine and the planner need not know which it is.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Literal

Source = Literal["measured", "published", "spec", "assumed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Coefficients of one engine on one device with one model. Times in seconds."""

    const_s: float = 0.0
    """Overhead of a step: launches, scheduling, sampling."""
    per_seq_s: float = 0.0
    """Each decoding sequence."""
    per_prefill_tok_s: float = 0.0
    """Each prompt token computed."""
    per_prefill_pos_s: float = 0.0
    """Each prompt token times its position."""
    ragged_tok_s: float = 0.0
    """Each prompt token more in a step whose tokens do not fill whole tiles of the matrix kernels (TILE_TOK)."""
    per_kv_tok_s: float = 0.0
    """Each KV token read by a decoding sequence."""
    weight_read_s: float = 0.0
    """Streaming the dense weights once."""
    expert_read_s: float = 0.0
    """Streaming all routed experts once; a step pays for the distinct ones it touches."""
    expert_active_frac: float = 0.0
    """Experts per token over experts, k/N."""
    compute_per_tok_s: float = 0.0
    """Linear-layer arithmetic of one token at the achievable peak."""
    compute_per_seq_s: float = 0.0
    """Arithmetic of the output head for one decoding sequence, overlapped like the rest; 0 in a fitted form."""
    p_norm: float = 2.0
    """How memory and compute overlap: infinity is a hard maximum, 1 is a sum; GEMMs measure at 1.5 to 2."""
    link_s: float = 0.0
    """Latency of the all-reduces of one step."""
    link_per_tok_s: float = 0.0
    """All-reduce transfer of one token."""
    bend: tuple[tuple[int, float], ...] = ()
    """(tokens, extra seconds) in rising order: what a straight line misses, as matrix kernels switch with the size of the
    step. Straight between the points, flat outside."""
    change_s: float = 0.0
    """A step of another number of tokens than the step before: some engines prepare for every new shape."""
    per_prompt_s: float = 0.0
    """A request that begins: its prompt is read by the tokenizer and its memory set up between two steps, while all wait."""
    front_end_s: float = 0.0
    """Fixed cost of a request outside the steps (HTTP, tokenizer, first scheduling): part of TTFT."""
    front_end_per_tok_s: float = 0.0
    """The same per prompt token."""
    front_serial_s: float = 0.0
    """Requests of the same moment pass the front end one after the other, so far apart: an idle engine starts with the
    first of them alone."""
    source: Source = "assumed"
    origin: str = ""
    """Which run, paper or datasheet; said wherever a figure made from it is printed."""
    lower_bound: bool = False
    """True where overhead is unknown (datasheet only): every time made from it is a lower bound."""


TILE_TOK = 128
"""Matrix kernels work in tiles of so many tokens, and a step that fills them all is cheaper a token. Seen on OpenVINO on an AVX-512
CPU: 273 to 283 us a prompt token at 128, 256, 384 ... 1024, and 340 to 440 at any length between but multiples of 64 (330)."""


def scaled(step: StepTime, factor: float) -> StepTime:
    """A step that takes `factor` times as long, whatever is in it: the same engine on a machine that is so much slower.

    >>> scaled(StepTime(const_s=0.010, bend=((1, 0.0), (4, 0.02))), 1.5).bend
    ((1, 0.0), (4, 0.03))
    """
    times = {f.name: getattr(step, f.name) * factor for f in fields(step) if f.name.endswith("_s")}
    return replace(step, bend=tuple((at, extra * factor) for at, extra in step.bend), **times)


def step_s(
    step: StepTime,
    *,
    seqs: int,
    kv_tok: int,
    prefill_tok: int = 0,
    prefill_pos: int = 0,
    changed: bool = False,
    prompts: int = 0,
) -> float:
    """Seconds of one step with `seqs` decoding sequences that read `kv_tok` KV tokens, and `prefill_tok` prompt tokens.

    `prefill_pos` is the sum of the prompt tokens' positions; `changed` says that the step before had another number of
    tokens; `prompts` requests begin with it. A step with nothing to do takes no time.

    >>> step = StepTime(const_s=0.010, per_seq_s=0.0005, per_kv_tok_s=3e-6)
    >>> round(step_s(step, seqs=8, kv_tok=8 * 128), 6)
    0.017072
    >>> step = StepTime(per_prefill_tok_s=0.0003, ragged_tok_s=0.0001)
    >>> round(step_s(step, seqs=0, kv_tok=0, prefill_tok=256), 4), round(step_s(step, seqs=0, kv_tok=0, prefill_tok=250), 4)
    (0.0768, 0.1)
    """
    tokens = seqs + prefill_tok
    if tokens == 0:
        return 0.0
    distinct = 1.0 - (1.0 - step.expert_active_frac) ** tokens
    weights = step.weight_read_s + step.expert_read_s * distinct
    compute = step.compute_per_tok_s * tokens + step.compute_per_seq_s * seqs
    overlap = p_sum(weights, compute, step.p_norm)
    return (
        step.const_s
        + step.per_seq_s * seqs
        + step.per_prefill_tok_s * prefill_tok
        + (step.ragged_tok_s * prefill_tok if tokens % TILE_TOK else 0.0)
        + step.per_prefill_pos_s * prefill_pos
        + step.per_kv_tok_s * kv_tok
        + step.link_s
        + step.link_per_tok_s * tokens
        + overlap
        + (bend_s(step, tokens) if step.bend else 0.0)
        + (step.change_s if changed else 0.0)
        + step.per_prompt_s * prompts
    )


def bend_s(step: StepTime, tokens: int) -> float:
    """Seconds that the bend adds to a step of `tokens` tokens: straight between its points, flat outside.

    >>> bend_s(StepTime(bend=((4, 0.0), (8, 0.010))), 5), bend_s(StepTime(bend=((4, 0.0), (8, 0.010))), 100)
    (0.0025, 0.01)
    """
    before = step.bend[0] if step.bend else (0, 0.0)
    for at, extra in step.bend:
        if at >= tokens:
            span = at - before[0]
            return before[1] + (extra - before[1]) * (tokens - before[0]) / span if span > 0 else extra
        before = (at, extra)
    return before[1]


def p_sum(a: float, b: float, p: float) -> float:
    """(a^p + b^p)^(1/p), the larger of the two as p grows: their maximum where p is infinite.

    >>> p_sum(3.0, 4.0, 2.0), p_sum(3.0, 4.0, float("inf"))
    (5.0, 4.0)
    """
    larger, smaller = (a, b) if a > b else (b, a)
    if smaller <= 0.0 or p == math.inf:
        return larger
    return float(larger * (1.0 + (smaller / larger) ** p) ** (1.0 / p))

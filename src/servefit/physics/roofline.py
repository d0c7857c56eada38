"""Step time from a datasheet: bytes over bandwidth, arithmetic over peak, links; ceilings, floors, what cannot be true."""

import math
from dataclasses import dataclass
from typing import Literal

from servefit.errors import ServefitError
from servefit.facts.cited import Cited
from servefit.facts.devices import Device
from servefit.facts.models import Layers, ModelShape
from servefit.facts.precisions import Precision, arithmetic_of, find_precision
from servefit.physics.constants import EngineConstants, constants_for, engine_constants, find_constants
from servefit.physics.memory import kv_read_bytes, state_bytes, streamed_weight_bytes, weight_parts
from servefit.physics.steptime import StepTime
from servefit.units import fmt, fmt_s

__all__ = [
    "EngineConstants",
    "Finding",
    "constants_for",
    "engine_constants",
    "find_constants",
    "implausible",
    "roofline_step",
]


# --- arithmetic -------------------------------------------------------------------------------------------------------


def linear_flop_per_tok(model: ModelShape) -> int:
    """Floating-point operations of one token in the layers' matrices, the output head apart: two per weight it passes."""
    return 2 * (model.params_active - model.head_params - model.small_params)


def head_flop(model: ModelShape) -> int:
    """Floating-point operations of the output head for one sequence that emits a token."""
    return 2 * model.head_params


def attention_flop(model: ModelShape, past_tok: float) -> float:
    """Floating-point operations of one token that attends to `past_tok` tokens, over all layers.

    4 * heads * head_dim * past a layer (scores and weighted sum). Llama-3.1-8B, 1,000 tokens back: 0.524 GFLOP.

    >>> from servefit.facts.models import find_model
    >>> attention_flop(find_model("llama-3.1-8b"), 1_000)
    524288000.0
    """
    return sum(g.count * _layer_attention_flop(g) * _seen(g, past_tok) for g in model.groups)


def _layer_attention_flop(layer: Layers) -> float:
    if layer.attention == "mla":
        return 2.0 * layer.heads * (layer.nope_head_dim + layer.rope_head_dim + layer.v_head_dim)
    if layer.attention in {"full", "sliding"}:
        return 2.0 * layer.heads * (layer.head_dim + (layer.v_head_dim or layer.head_dim))
    return 0.0


def _seen(layer: Layers, past_tok: float) -> float:
    if layer.attention == "sliding":
        return min(past_tok, layer.window_tok)
    return min(past_tok, layer.index_top_tok) if layer.index_top_tok else past_tok


def prefill_flop(model: ModelShape, prompt_tok: int) -> float:
    """Floating-point operations of a whole prompt: linear layers, the head once, attention to all that came before.

    Llama-3.1-8B, 8,192 tokens: 114 TFLOP in the layers and 18 in attention, 0.42 s at an A100's 312 TFLOP/s:

    >>> from servefit.facts.models import find_model
    >>> round(prefill_flop(find_model("llama-3.1-8b"), 8_192) / 312e12, 3)
    0.423
    """
    quadratic = 0.0
    for group in model.groups:
        top = group.window_tok if group.attention == "sliding" else group.index_top_tok
        quadratic += group.count * _layer_attention_flop(group) * _pairs(prompt_tok, top)
    return linear_flop_per_tok(model) * prompt_tok + head_flop(model) + quadratic


def peak_flop_per_s(device: Device, precision: Precision | str | None = None) -> Cited | None:
    """The dense peak that weights of this precision may use on the device; 16-bit arithmetic where there is no faster.

    None where nobody has the figure: what needs it says so. AWQ and MXFP4 are unpacked to 16 bit; llama.cpp's kinds may
    use 8-bit arithmetic.
    """
    p = find_precision(precision or "bf16")
    fields = {"fp8": ("flop_fp8_per_s",), "int8": ("flop_int8_per_s", "flop_fp8_per_s"),
              "fp4": ("flop_fp4_per_s", "flop_fp8_per_s")}.get(p.peak, ())  # fmt: skip
    best = [name for name in (*fields, "flop_per_s") if getattr(device, name)]
    return device.cite(max(best, key=lambda name: float(getattr(device, name)))) if best else None


def model_peak(model: ModelShape, device: Device, precision: Precision | str | None = None) -> Cited | None:
    """The dense peak for the model's weights: of `precision`, or of the number format of its file."""
    return peak_flop_per_s(device, precision or (arithmetic_of(model.file.quant) if model.file else None))


# --- step time --------------------------------------------------------------------------------------------------------


def roofline_step(  # noqa: PLR0917 - the order of the contract
    model: ModelShape,
    device: Device,
    precision: Precision | str | None = None,
    kv_bits: float = 16,
    tp: int = 1,
    constants: EngineConstants | str | None = None,
    *,
    ctx_tok: int | None = None,
) -> StepTime:
    """Step-time coefficients of the model on `tp` such devices.

    `constants` None: the datasheet alone. Every time is then a lower bound (`lower_bound=True`), because overhead is a
    property of an engine, not of a device; memory and arithmetic of linear layers overlap perfectly (p infinite).
    With published constants: efficiencies, overhead and p as they say, source and error in `origin`.

    `ctx_tok` matters for sliding windows and sparse attention only: cache reads are linear in the KV tokens, with the
    slope that is exact at this context, and windowed attention of a prompt costs what it does at this length; None takes
    the layers that never stop growing (a lower bound).

    Tensor parallel: bytes and arithmetic divided by `tp` (an MLA latent is read by each), two all-reduces a layer over
    the link, 2(n-1)/n of the activations each. Raises ServefitError where a link is needed and its figure is missing.
    """
    c = find_constants(constants) if isinstance(constants, str) else constants
    band, peak = device.bandwidth_bytes_per_s, model_peak(model, device, precision)
    parts = weight_parts(model, precision)
    w_rate, kv_rate = band * (c.weights_eff if c else 1.0), band * (c.kv_eff if c else 1.0)
    expert_rate = band * (c.experts_eff or c.weights_eff) if c else band
    flop_rate = peak.value * _matmul_eff(c, device, peak) * tp if peak else math.inf
    attention_rate = peak.value * (c.attention_eff if c else 1.0) * tp if peak else math.inf
    kv_tok_bytes = _kv_slope_bytes(model, kv_bits, ctx_tok, tp)
    kv_flop = _attention_slope(model, ctx_tok)
    link_s, link_per_tok_s = _link(model, device, tp)
    read_s, flop_s = kv_tok_bytes / kv_rate, kv_flop / attention_rate
    return StepTime(
        const_s=c.const_s + c.per_layer_s * model.layers if c else 0.0,
        per_seq_s=(c.per_seq_s if c else 0.0) + 2 * state_bytes(model) / tp / kv_rate,
        per_prefill_tok_s=(c.per_tok_s if c else 0.0) + _windowed_flop_per_tok(model, ctx_tok) / attention_rate,
        per_prefill_pos_s=_attention_slope(model, None) / attention_rate,
        per_kv_tok_s=read_s + flop_s if c else max(read_s, flop_s),
        weight_read_s=(parts.dense_bytes + parts.head_bytes) / tp / w_rate,
        expert_read_s=parts.expert_bytes / tp / expert_rate,
        expert_active_frac=model.experts_per_tok / model.experts if model.experts else 0.0,
        compute_per_tok_s=linear_flop_per_tok(model) / flop_rate,
        compute_per_seq_s=head_flop(model) / flop_rate,
        p_norm=c.p_norm if c else math.inf,
        link_s=link_s, link_per_tok_s=link_per_tok_s,
        front_end_s=c.front_end_s if c else 0.0,
        source="published" if c else "spec",
        origin=_origin(model, device, precision, c, peak, tp), lower_bound=c is None,
    )  # fmt: skip


def _matmul_eff(c: EngineConstants | None, device: Device, peak: Cited) -> float:
    """Of the dense peak: everything by the datasheet, an engine's own in 16 bit, less where a faster peak is used."""
    if c is None:
        return 1.0
    faster = peak.value > (device.flop_per_s or peak.value)
    return c.matmul_fp8_eff or c.matmul_eff if faster else c.matmul_eff


def _kv_slope_bytes(model: ModelShape, kv_bits: float, ctx_tok: int | None, tp: int) -> float:
    """Bytes that one device reads for each KV token of a decoding sequence."""
    if ctx_tok:
        shared = [g for g in model.groups if g.attention == "mla"]
        split = 1 if shared else min(tp, max(model.kv_heads, 1))
        return (kv_read_bytes(model, ctx_tok, kv_bits) - 2 * state_bytes(model)) / ctx_tok / split
    total = 0.0
    for g in model.groups:
        if g.attention == "full":
            values = g.kv_heads * (g.head_dim + (g.v_head_dim or g.head_dim))
            total += g.count * values * kv_bits / 8 / min(tp, max(g.kv_heads, 1))
        elif g.attention == "mla":
            latent = 0 if g.index_top_tok else (g.kv_lora_rank + g.rope_head_dim) * kv_bits / 8
            total += g.count * (latent + (132 if g.index_dim else 0))
    return total


def _attention_slope(model: ModelShape, ctx_tok: int | None) -> float:
    """Attention arithmetic per token and KV token: at `ctx_tok`, or of the layers that never stop growing."""
    if ctx_tok:
        return attention_flop(model, ctx_tok) / ctx_tok
    return sum(
        g.count * _layer_attention_flop(g) for g in model.groups if g.attention != "sliding" and not g.index_top_tok
    )


def _windowed_flop_per_tok(model: ModelShape, ctx_tok: int | None) -> float:
    """Attention arithmetic of one prompt token in layers that stop growing, averaged over a prompt of `ctx_tok` tokens."""
    total = 0.0
    for g in model.groups:
        top = g.window_tok if g.attention == "sliding" else g.index_top_tok
        if top and ctx_tok:
            total += g.count * _layer_attention_flop(g) * _pairs(ctx_tok, top) / ctx_tok
    return total


def _pairs(prompt_tok: int, top_tok: int) -> float:
    """Pairs of tokens that attend to each other in a prompt, each to `top_tok` at most (0: to all before it)."""
    if top_tok and prompt_tok > top_tok:
        return top_tok * (top_tok + 1) / 2 + (prompt_tok - top_tok) * top_tok
    return prompt_tok * (prompt_tok + 1) / 2


def _link(model: ModelShape, device: Device, tp: int) -> tuple[float, float]:
    """Seconds of the all-reduces of one step: latency, and transfer per token (16-bit activations, ring)."""
    if tp == 1:
        return 0.0, 0.0
    if tp < 1 or (model.heads and model.heads % tp):
        shares = [n for n in (2, 4, 8, 16) if model.heads % n == 0]
        raise ServefitError(
            f"{model.title}'s {model.heads} attention heads cannot be shared by {tp} devices.",
            hint=f"Engines split by heads: {', '.join(map(str, shares)) or 'only 1'}.",
        )
    if not device.link_bytes_per_s:
        raise ServefitError(
            f"{device.title} has no figure for a link, which tensor parallel over {tp} needs.",
            hint="Use one device, or a device file with link_gb_per_s.",
        )
    reduces = 2 * model.layers
    per_tok = reduces * 2 * (tp - 1) / tp * model.hidden * 2 / device.link_bytes_per_s
    return reduces * (device.link_latency_s or 0.0), per_tok


def _origin(  # noqa: PLR0917
    model: ModelShape, device: Device, precision: Precision | str | None, c: EngineConstants | None, peak: Cited | None,
    tp: int,
) -> str:  # fmt: skip
    band = device.cite("bandwidth_bytes_per_s")
    name = find_precision(precision).name if precision else (model.file.quant if model.file else "bf16")
    head = f"{model.name} {name} on {device.name}" + (f" x{tp}" if tp > 1 else "")
    doubts = [f"bandwidth{band.mark()}"] * band.doubtful + [f"peak{peak.mark() if peak else ''}"] * bool(
        peak and peak.doubtful
    )
    doubt = f"; doubtful: {', '.join(doubts)}" if doubts else ""
    missing = "" if peak else "; no peak arithmetic figure, so prefill counts memory only"
    if c:
        tried = "" if not c.devices or device.name in c.devices else f"; not tried on {device.name}"
        return f"{head}: {c.title} ({c.source}, {c.date}; {c.error}{tried}){doubt}{missing}"
    return f"{head}: datasheet only, a lower bound{doubt}{missing}"


# --- ceilings and floors ----------------------------------------------------------------------------------------------


def ceiling_tok_per_s(bandwidth_bytes_per_s: float, bytes_per_tok: float) -> float:
    """Tokens per second that one stream cannot pass: every token reads every byte once.

    273 GB/s over 4.9 GB: 55.7 tok/s, 17.9 ms a token.

    >>> round(ceiling_tok_per_s(273e9, 4.9e9), 1)
    55.7
    """
    return bandwidth_bytes_per_s / bytes_per_tok


def decode_ceiling_tok_per_s(
    model: ModelShape,
    device: Device,
    precision: Precision | str | None = None,
    *,
    ctx_tok: int = 0,
    seqs: int = 1,
    kv_bits: float = 16,
    tp: int = 1,
) -> float:
    """Tokens per second of each stream that no engine can pass: bandwidth over the bytes of one step.

    bandwidth * tp / (weights that `seqs` tokens stream + seqs * cache read at `ctx_tok`). Left out: overhead, so real
    runs reach 55 to 85 % of it (llama.cpp on Apple chips), less for small models on fast memory.
    """
    read = streamed_weight_bytes(model, precision, step_tok=seqs) + seqs * kv_read_bytes(model, ctx_tok, kv_bits)
    return device.bandwidth_bytes_per_s * tp / read


def floor_s(
    model: ModelShape,
    device: Device,
    precision: Precision | str | None = None,
    *,
    prefill_tok: int = 0,
    past_tok: int = 0,
    seqs: int = 0,
    ctx_tok: int = 0,
    kv_bits: float = 16,
    tp: int = 1,
) -> float:
    """Seconds below which no step can be: the larger of its bytes over bandwidth and its arithmetic over dense peak.

    A step with `seqs` decoding sequences of `ctx_tok` tokens and one prompt's `prefill_tok` tokens after `past_tok`.
    Nothing is left out that would make it longer than the truth: no overhead, no link, perfect overlap. An 8,192-token
    prefill of Llama-3.1-8B on an A100 takes at least 423 ms.
    """
    tokens = seqs + prefill_tok
    if tokens == 0:
        return 0.0
    bytes_ = streamed_weight_bytes(model, precision, step_tok=tokens) + seqs * kv_read_bytes(model, ctx_tok, kv_bits)
    peak = model_peak(model, device, precision)
    flop = linear_flop_per_tok(model) * tokens + head_flop(model) * seqs + seqs * attention_flop(model, ctx_tok)
    if prefill_tok:
        whole, before = prefill_flop(model, past_tok + prefill_tok), prefill_flop(model, past_tok)
        flop += whole - before - linear_flop_per_tok(model) * prefill_tok
    return max(bytes_ / (device.bandwidth_bytes_per_s * tp), flop / (peak.value * tp) if peak else 0.0)


def steps_ratio(
    model: ModelShape, weights_bytes: float, *, seqs: int, ctx_tok: int, than_tok: int, kv_bits: float = 16
) -> float:
    """How many times more bytes a decode step reads at `ctx_tok` a seat than at `than_tok`: a calibration's bias.

    An 8B of 4.9 GB, 24 seats, measured at 128 tokens and used at 768:

    >>> from servefit.facts.models import find_model
    >>> round(steps_ratio(find_model("llama-3.1-8b"), 4.9e9, seqs=24, ctx_tok=768, than_tok=128), 2)
    1.38
    """
    here, there = (weights_bytes + seqs * kv_read_bytes(model, tok, kv_bits) for tok in (ctx_tok, than_tok))
    return here / there


# --- what cannot be true ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A measured time that physics does not allow: never a record, always a question about the measurement."""

    code: Literal["tpot_below_floor", "ttft_below_floor"]
    message: str
    measured_s: float
    floor_s: float
    explains: tuple[str, ...]
    """What usually lies behind it, likeliest first."""
    implied_tok: int | None = None
    """Prompt tokens that can have been computed in the measured time, where that is the question."""


def implausible(
    model: ModelShape,
    device: Device,
    precision: Precision | str | None = None,
    *,
    isl: int,
    osl: int | None = None,
    ttft_s: float | None = None,
    tpot_s: float | None = None,
    together: int = 1,
    kv_bits: float = 16,
    tp: int = 1,
    slack_frac: float = 0.01,
) -> tuple[Finding, ...]:
    """What of a measured TTFT and TPOT cannot be, physically; empty where all of it can.

    A token takes at least the bytes that it alone needs, (weights + its cache) / bandwidth: other sequences in the batch
    only add. A first token takes at least the prompt's arithmetic at the dense peak. `together`: for the slowest of this
    many prompts that started at once, the arithmetic of all of them. `slack_frac` forgives rounding.

    A client that prints 3.47 ms a token for Llama-3.1-8B in 16 bit on an H100, where the weights alone take 4.48:

    >>> from servefit.facts.devices import find_device
    >>> from servefit.facts.models import find_model
    >>> llama, h100 = find_model("llama-3.1-8b"), find_device("h100-sxm")
    >>> [f.code for f in implausible(llama, h100, "bf16", isl=204, osl=63, tpot_s=0.00347)]
    ['tpot_below_floor']

    Left out: a device may run a few per cent above its datasheet clock; `slack_frac` can be raised for that.
    """
    found = []
    doubt = "".join({device.cite("bandwidth_bytes_per_s").mark()})
    if tpot_s is not None and tpot_s > 0:
        floor = floor_s(model, device, precision, seqs=1, ctx_tok=isl + (osl or 2) // 2, kv_bits=kv_bits, tp=tp)
        if tpot_s < floor * (1 - slack_frac):
            rate = fmt(device.bandwidth_bytes_per_s * tp / 1e9)
            found.append(Finding(
                code="tpot_below_floor", measured_s=tpot_s, floor_s=floor,
                message=f"{fmt_s(tpot_s)} a token is below the {fmt_s(floor)} that reading the weights once takes at {rate} GB/s{doubt}.",
                explains=("several tokens came in one chunk and were counted as one gap, or tokens were counted twice",
                          "speculative decoding", "a smaller or more quantised model is served than was named"),
            ))  # fmt: skip
    if ttft_s is not None and ttft_s > 0 and isl > 0:
        floor = floor_s(model, device, precision, prefill_tok=isl, kv_bits=kv_bits, tp=tp) * together
        if ttft_s < floor * (1 - slack_frac):
            most = _most_prompt_tok(model, device, precision, ttft_s / together, isl, tp)
            prompts = "the prompt" if together == 1 else f"{together} prompts at once"
            found.append(Finding(
                code="ttft_below_floor", measured_s=ttft_s, floor_s=floor, implied_tok=most,
                message=f"{fmt_s(ttft_s)} to the first token is below the {fmt_s(floor)} that {prompts} of {fmt(isl)} tokens take "
                f"at the dense peak: at most {fmt(most)} tokens a prompt were computed.",
                explains=("a cached prefix", "the prompt was cut to the server's context setting",
                          "the tokens were counted with another tokenizer", "the prompts did not all start at once"),
            ))  # fmt: skip
    return tuple(found)


def _most_prompt_tok(  # noqa: PLR0917
    model: ModelShape, device: Device, precision: Precision | str | None, time_s: float, most: int, tp: int
) -> int:  # fmt: skip
    """The longest prompt whose floor fits in `time_s`, at most `most`; by bisection, as the floor grows with the prompt."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        fits = floor_s(model, device, precision, prefill_tok=middle, tp=tp) <= time_s
        low, high = (middle, high) if fits else (low, middle)
    return low

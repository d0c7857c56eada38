"""Memory: how many bytes the weights take, how many each token of context adds, how many seats are left."""

import math
from dataclasses import dataclass

from servefit.errors import ServefitError
from servefit.facts.devices import Device
from servefit.facts.models import Layers, ModelShape
from servefit.facts.precisions import PRECISIONS, Precision, find_precision
from servefit.units import GIB, fmt_bytes

__all__ = ["PRECISIONS", "KvPool", "Precision", "WeightParts", "find_precision"]

_INDEX_BYTES_PER_TOK = 132
"""One index key of DeepSeek sparse attention: 128 values in FP8 and a 4-byte scale (vLLM's indexer cache)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightParts:
    """Bytes of a model's weights by how a step reads them."""

    dense_bytes: int
    """Layers that every token passes, norms with them: streamed in every step."""
    head_bytes: int
    """Output head: streamed in every step; also the embedding where the two are tied."""
    embed_bytes: int
    """Input embedding, 0 where tied: a look-up of one row per token, not streamed."""
    expert_bytes: int
    """All routed experts; a step streams the distinct ones that its tokens touch."""

    @property
    def total_bytes(self) -> int:
        """All of it: what has to fit."""
        return self.dense_bytes + self.head_bytes + self.embed_bytes + self.expert_bytes


def weight_parts(model: ModelShape, precision: Precision | str | None = None) -> WeightParts:
    """The model's weights in bytes, by part. `precision` None: as the model's file holds them, else 16 bit.

    parameters x bits / 8, the head and the embedding at their own bits, norms at theirs; exact from a file's header.
    """
    if precision is None and model.file is not None:
        file = model.file
        dense = file.total_bytes - file.embed_bytes - file.head_bytes - file.expert_bytes
        return WeightParts(
            dense_bytes=dense,
            head_bytes=file.head_bytes,
            embed_bytes=file.embed_bytes,
            expert_bytes=file.expert_bytes,
        )
    p = find_precision(precision or "bf16")
    only_experts = p.name == "mxfp4" and model.experts > 0
    dense_bits = 16.0 if only_experts else p.weight_bits
    head_bits = 16.0 if only_experts else p.head_bits
    return WeightParts(
        dense_bytes=round((model.dense_params * dense_bits + model.small_params * p.small_bits) / 8),
        head_bytes=round(model.head_params * head_bits / 8),
        embed_bytes=0 if model.tied else round(model.head_params * p.embed_bits / 8),
        expert_bytes=round(model.expert_params * p.weight_bits / 8),
    )


def weight_bytes(model: ModelShape, precision: Precision | str | None = None) -> int:
    """Bytes of all weights: what has to fit in memory.

    parameters x bits / 8. Llama-3.1-8B has 8,030,261,248 parameters; two bytes each:

    >>> from servefit.facts.models import find_model
    >>> weight_bytes(find_model("llama-3.1-8b"), "bf16")
    16060522496

    Left out: what an engine pads or keeps twice (under 1 % on vLLM). Source: parameter counts of config.json.
    """
    return weight_parts(model, precision).total_bytes


def streamed_weight_bytes(model: ModelShape, precision: Precision | str | None = None, *, step_tok: int = 1) -> float:
    """Bytes of weights that one step with `step_tok` tokens reads: layers and output head, not the input embedding.

    Of N experts, k per token, a step of T tokens reads N*(1-((N-k)/N)^T) under uniform routing; skewed routing reads
    fewer. Qwen3-8B in 16 bit reads 15.14 of its 16.38 GB:

    >>> from servefit.facts.models import find_model
    >>> round(streamed_weight_bytes(find_model("qwen3-8b"), "bf16") / 1e9, 2)
    15.14
    """
    parts = weight_parts(model, precision)
    return parts.dense_bytes + parts.head_bytes + parts.expert_bytes * distinct_expert_frac(model, step_tok)


def distinct_expert_frac(model: ModelShape, step_tok: int) -> float:
    """Of all routed experts, the fraction that a step of `step_tok` tokens touches under uniform routing (0 if dense).

    >>> from servefit.facts.models import find_model
    >>> round(distinct_expert_frac(find_model("mixtral-8x7b"), 4), 3)
    0.684
    """
    n, k = model.experts, model.experts_per_tok
    return 1.0 - ((n - k) / n) ** step_tok if n else 0.0


def kv_bytes_per_tok(model: ModelShape, kv_bits: float = 16) -> int:
    """Bytes of KV cache that one token of one request adds, over all layers, as long as no window is full.

        grouped query: 2 * kv_heads * head_dim values a layer (K and V)
        MLA: kv_lora_rank + rope_head_dim values a layer (and an index key of 132 bytes in sparse attention)

    Llama-3.1-8B in 16 bit, 2 x 32 x 8 x 128 x 2 bytes:

    >>> from servefit.facts.models import find_model
    >>> kv_bytes_per_tok(find_model("llama-3.1-8b"))
    131072

    Recurrent layers add nothing (see `state_bytes`). Source: arXiv:2305.13245 (GQA), arXiv:2405.04434 (MLA).
    """
    return math.ceil(sum(g.count * _layer_kv_bytes(g, kv_bits) for g in model.groups))


def _layer_kv_bytes(layer: Layers, kv_bits: float) -> float:
    if layer.attention == "mla":
        index = _INDEX_BYTES_PER_TOK if layer.index_dim else 0
        return (layer.kv_lora_rank + layer.rope_head_dim) * kv_bits / 8 + index
    if layer.attention in {"full", "sliding"}:
        return layer.kv_heads * (layer.head_dim + (layer.v_head_dim or layer.head_dim)) * kv_bits / 8
    return 0.0


def kv_bytes(model: ModelShape, ctx_tok: int, kv_bits: float = 16) -> int:
    """Bytes of cache that one request of `ctx_tok` tokens keeps: sliding layers stop at their window, states are constant.

    Llama-3.1-8B, 8,000 tokens: 1.049 GB.

    >>> from servefit.facts.models import find_model
    >>> kv_bytes(find_model("llama-3.1-8b"), 8_000)
    1048576000

    Left out: engines that reserve whole pages for sliding layers (vLLM's hybrid allocator) keep more; see `kv_pool`.
    """
    grown = 0.0
    for group in model.groups:
        tokens = min(ctx_tok, group.window_tok) if group.attention == "sliding" else ctx_tok
        grown += group.count * _layer_kv_bytes(group, kv_bits) * tokens
    return math.ceil(grown) + (state_bytes(model) if ctx_tok else 0)


def kv_read_bytes(model: ModelShape, ctx_tok: int, kv_bits: float = 16) -> float:
    """Bytes of cache that one decode step of a request with `ctx_tok` tokens reads, and of states that it rewrites.

    As `kv_bytes`, except that sparse attention reads the tokens its index picks, and a state is read and written.
    """
    total = 0.0
    for group in model.groups:
        tokens = min(ctx_tok, group.window_tok) if group.attention == "sliding" else ctx_tok
        per_tok = _layer_kv_bytes(group, kv_bits)
        if group.index_top_tok and ctx_tok > group.index_top_tok:
            latent = per_tok - _INDEX_BYTES_PER_TOK
            total += group.count * (latent * group.index_top_tok + _INDEX_BYTES_PER_TOK * ctx_tok)
        else:
            total += group.count * per_tok * tokens
    return total + 2 * state_bytes(model)


def state_bytes(model: ModelShape) -> int:
    """Bytes of constant state that one request keeps in recurrent layers; 0 where there are none."""
    return sum(g.count * g.state_bytes for g in model.groups)


def crossover_tok(model: ModelShape, weights_bytes: float, kv_bits: float = 16) -> int | None:
    """The longest context whose cache is not yet larger than the weights; None where the cache stops growing.

    An 8B at 4 bit (4.9 GB) and 131,072 bytes a token: 4.9e9 / 131,072, whole tokens.

    >>> from servefit.facts.models import find_model
    >>> crossover_tok(find_model("llama-3.1-8b"), 4.9e9)
    37384
    """
    low, high = 0, 2**40
    if kv_bytes(model, high, kv_bits) <= weights_bytes:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if kv_bytes(model, middle, kv_bits) <= weights_bytes else (low, middle)
    return low


# --- the KV pool of an engine -----------------------------------------------------------------------------------------

LOGIT_BYTES = 14.2
"""Working bytes of one logit while a step samples: fitted to vLLM 0.19.0's logged peaks (see docs/physics.md)."""
NON_TORCH_BYTES = int(0.25 * GIB)
NON_TORCH_TP_BYTES = int(2.1 * GIB)
GRAPH_BYTES = int(0.44 * GIB)
"""Captured graphs and what else a run keeps: from one RTX 4090 log; an H100 log shows none, 0.7 % of its pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPool:
    """What is left for KV cache on one device (one of `tp`), and what took the rest."""

    blocks: int
    block_tok: int
    bytes: int
    usable_bytes: int
    weight_bytes: int
    activation_bytes: int
    overhead_bytes: int
    logged: bool = False
    """True where the engine's own logged block count was given: it wins over the formula."""

    @property
    def tokens(self) -> int:
        """Tokens that fit, whole blocks."""
        return self.blocks * self.block_tok


def activation_bytes(model: ModelShape, budget_tok: int, seats: int = 256) -> int:
    """Working memory of the largest step: `budget_tok` tokens through an MLP, or the logits of `seats` sequences.

        2 * 2 * hidden * T  +  max( (3 * ffn + 2 * hidden) * 2 * T,  14.2 * vocab * min(seats, T) )

    Llama-3.1-8B on an H100 (8,192 tokens, 1,024 seats): 1.86 GiB; vLLM 0.19.0 logs 1.89.

    >>> from servefit.facts.models import find_model
    >>> round(activation_bytes(find_model("llama-3.1-8b"), 8_192, 1_024) / 2**30, 2)
    1.86

    Left out: mixture-of-experts workspaces (0.5 GiB more at the same setting). Older versions of vLLM kept 2.5 x.
    Source: the llm-d-planner accuracy report for vLLM 0.19.0 (49 runs); within 4 % on Llama, Qwen, Granite, Phi-4.
    """
    rows = min(seats, budget_tok)
    residual = 2 * 2 * model.hidden * budget_tok
    mlp = (3 * model.ffn + 2 * model.hidden) * 2 * budget_tok
    return int(residual + max(mlp, LOGIT_BYTES * model.vocab * rows))


def kv_pool(
    model: ModelShape,
    device: Device,
    precision: Precision | str | None,
    budget_tok: int = 2_048,
    *,
    seats: int = 256,
    kv_bits: float = 16,
    block_tok: int = 16,
    tp: int = 1,
    utilisation: float | None = None,
    logged_blocks: int | None = None,
) -> KvPool:
    """The KV pool of an engine on `tp` such devices: usable memory less weights, working memory and fixed overhead.

        pool = utilisation * memory - weights / tp - activations(budget, seats) - overhead,   blocks = pool / block

    `utilisation` None means the device's own (0.9 of a GPU, 0.7 of unified memory). An engine's own `logged_blocks`
    wins over all of it. RTX 4090 at 0.9, Llama-3.1-8B, budget 2,048: within 3 % of the 2,588 blocks that vLLM logs.

    Raises ServefitError where the weights alone do not fit, with what would.
    """
    usable = int((device.usable_memory_frac if utilisation is None else utilisation) * device.memory_bytes)
    weights = math.ceil(weight_bytes(model, precision) / tp)
    activations = (
        activation_bytes(model, budget_tok, seats) if device.kind == "gpu" else _small_activation(model, budget_tok)
    )
    overhead = (NON_TORCH_BYTES if tp == 1 else NON_TORCH_TP_BYTES) + GRAPH_BYTES if device.kind == "gpu" else 0
    block = block_bytes(model, kv_bits, block_tok, tp)
    left = usable - weights - activations - overhead
    if logged_blocks is not None:
        left = logged_blocks * block
    elif left < block:
        raise ServefitError(
            f"{model.title} does not fit on {tp} x {device.title}: weights {fmt_bytes(weights)}, working memory "
            f"{fmt_bytes(activations + overhead)}, usable {fmt_bytes(usable)}.",
            hint="Fewer bits per weight, more devices (tensor parallel), or a smaller token budget.",
        )
    return KvPool(
        blocks=left // block if block else 2**40, block_tok=block_tok, bytes=left, usable_bytes=usable,
        weight_bytes=weights, activation_bytes=activations, overhead_bytes=overhead, logged=logged_blocks is not None,
    )  # fmt: skip


def _small_activation(model: ModelShape, budget_tok: int) -> int:
    """Working memory of an engine that keeps logits only for the tokens it samples (llama.cpp, MLX, OpenVINO)."""
    return (3 * model.ffn + 4 * model.hidden) * 2 * budget_tok + 4 * model.vocab


def block_bytes(model: ModelShape, kv_bits: float = 16, block_tok: int = 16, tp: int = 1) -> int:
    """Bytes of one block of KV cache on one of `tp` devices: KV heads are split, an MLA latent is kept by each.

    Where there are fewer KV heads than devices, heads are kept twice.
    """
    total = 0.0
    for group in model.groups:
        share = 1 if group.attention == "mla" else min(tp, max(group.kv_heads, 1))
        total += group.count * _layer_kv_bytes(group, kv_bits) / share
    return math.ceil(total * block_tok)


def request_blocks(model: ModelShape, ctx_tok: int, *, kv_bits: float = 16, block_tok: int = 16, tp: int = 1) -> int:
    """Whole blocks that one request of `ctx_tok` tokens holds; states and full windows counted in blocks too."""
    block = block_bytes(model, kv_bits, block_tok, tp)
    padded = math.ceil(ctx_tok / block_tok) * block_tok
    if all(g.attention in {"full", "mla", "none"} for g in model.groups):
        return padded // block_tok
    return math.ceil(kv_bytes(model, padded, kv_bits) / block_bytes(model, kv_bits, 1, 1) / block_tok) if block else 0


def seats_that_fit(pool: KvPool, model: ModelShape, ctx_tok: int, *, kv_bits: float = 16, tp: int = 1) -> int:
    """How many requests of `ctx_tok` tokens the pool holds at once; more seats than this only preempt.

    floor(blocks / ceil(ctx / block_tok)): 2,588 blocks of 16 and 768 tokens are 53 seats.
    """
    return pool.blocks // max(request_blocks(model, ctx_tok, kv_bits=kv_bits, block_tok=pool.block_tok, tp=tp), 1)

"""config.json -> ModelShape, by model type. A kind of attention or cache that is not known is refused, never guessed."""

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from servefit.errors import ServefitError
from servefit.facts.models import Layers, ModelShape, group_layers
from servefit.files import read_json, read_toml, structure

Config = dict[str, Any]

_MAX_LAYERS, _MAX_SIZE = 2_000, 10**8


def load_model(path: Path) -> ModelShape:
    """The model in a config.json, .gguf or .safetensors file, or in a folder that holds a config.json.

    Raises ServefitError where the file is not a model, or a kind of model that servefit does not know.
    """
    from servefit.facts.weights import load_gguf, safetensors_weights

    if path.is_dir():
        shape = _named(load_config(path / "config.json"), path.resolve().name)
        parts = sorted(path.glob("*.safetensors"))
        return replace(shape, file=safetensors_weights(parts, shape)) if parts else shape
    if path.suffix == ".gguf":
        return load_gguf(path)
    if path.suffix == ".toml":
        return load_shape(path)
    if path.suffix == ".safetensors":
        shape = _named(load_config(path.parent / "config.json"), path.stem)
        return replace(shape, file=safetensors_weights([path], shape))
    return load_config(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeFile:
    """A model described by hand, as in models.toml: its sizes, and one table for each kind of layer."""

    hidden: int
    vocab: int
    layers: tuple[Layers, ...]
    title: str = ""
    tied: bool = False
    max_tok: int = 0
    repo: str = ""
    source: str = "given"
    note: str = ""


def load_shape(path: Path) -> ModelShape:
    """The model that a TOML file describes, layer kinds and all (see docs/physics.md). Raises ServefitError."""
    found = structure(read_toml(path), ShapeFile, where=str(path))
    whole = all(g.count > 0 and min(v for v in astuple(g) if isinstance(v, int)) >= 0 for g in found.layers)
    if not (0 < found.hidden <= _MAX_SIZE and 0 < found.vocab <= _MAX_SIZE and found.layers and whole):
        raise ServefitError(f"{path}: a size is zero or below, or there are no layers.", hint="See docs/physics.md.")
    return ModelShape(
        name=path.stem, title=found.title or path.stem, hidden=found.hidden, vocab=found.vocab, tied=found.tied,
        groups=found.layers, max_tok=found.max_tok, repo=found.repo, source=found.source, status="given", note=found.note,
    )  # fmt: skip


def load_config(path: Path) -> ModelShape:
    """The model that a config.json describes. Raises ServefitError."""
    config = read_json(path)
    if not isinstance(config, dict):
        raise ServefitError(f"{path} holds no JSON object.", hint="Name a model's config.json.")
    folder = path.resolve().parent.name
    return read_config(config, name=folder if folder and path.name == "config.json" else path.stem, where=str(path))


def read_config(config: Config, *, name: str, where: str = "config.json") -> ModelShape:
    """The model that a config (a parsed config.json) describes; a vision model's language part.

    Raises ServefitError for an unknown model type, for a key that is missing and for a size that cannot be.
    """
    inner: Config | None = config.get("text_config")
    text = (
        {**(inner or {}), **{k: config[k] for k in ("tie_word_embeddings",) if k in config}} if _is(inner) else config
    )
    kind = str(text.get("model_type") or config.get("model_type") or "").removesuffix("_text")
    family = FAMILIES.get(kind)
    if family is None:
        raise ServefitError(
            f"{where}: model type '{kind or 'none'}' may keep a kind of cache that servefit does not know, so it is not guessed.",
            hint=f"Known: {', '.join(sorted(FAMILIES))}. See docs/physics.md for how a model is described by hand.",
        )
    checked = _Checked(text, where)
    tied = bool(text.get("tie_word_embeddings", kind in _TIED))
    try:
        return ModelShape(
            name=name, title=name, hidden=checked["hidden_size"], vocab=checked["vocab_size"], tied=tied,
            groups=group_layers(family(checked)), max_tok=int(text.get("max_position_embeddings") or 0),
            source=where, status="given", note="the language part only" if inner else "",
        )  # fmt: skip
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        raise ServefitError(
            f"{where}: a value in it is of no kind that a config holds ({str(error)[:100]}).",
            hint="Is it the right file?",
        ) from None


_TIED = {"gemma2", "gemma3", "gemma4", "smollm3", "cohere", "cohere2", "granite"}


class _Checked(dict[str, Any]):
    """A config whose missing and impossible sizes are said in a sentence."""

    def __init__(self, config: Config, where: str) -> None:
        super().__init__({k: v for k, v in config.items() if v is not None})
        self.where = where

    def __missing__(self, name: str) -> Any:
        raise ServefitError(
            f"{self.where}: '{name}' is missing, and servefit does not guess it.", hint="Is the config complete?"
        )

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if name.startswith(("num_", "hidden_size", "intermediate_size", "vocab", "head_dim", "moe_intermediate", "n_")):
            limit = _MAX_LAYERS if name == "num_hidden_layers" else _MAX_SIZE
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= limit:
                raise ServefitError(f"{self.where}: {name} = {value!r} is no size.", hint="Is it the right file?")
        return value


def _is(value: object) -> bool:
    return isinstance(value, dict) and "num_hidden_layers" in value


def _attention(c: Config, **extra: Any) -> Layers:
    """Grouped-query attention with its biases and norms; `extra` overrides."""
    heads = c["num_attention_heads"]
    kv_heads = int(c.get("num_key_value_heads") or heads)
    head_dim = c["head_dim"] if "head_dim" in c else c["hidden_size"] // heads
    layer = Layers(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    return replace(layer, **extra)


def _small(c: Config, layer: Layers, *, norms: int = 2, qk_norm: bool = False, bias: str = "") -> int:
    """Values of `norms` norms, the q and k norms, and biases of the projections named in `bias` ("qkv", "o")."""
    q, kv = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
    total = norms * c["hidden_size"] + (2 * layer.head_dim if qk_norm else 0)
    return int(total + (q + 2 * kv if "qkv" in bias else 0) + (c["hidden_size"] if "o" in bias else 0))


def _kinds(c: Config) -> list[str]:
    """Each layer's kind as `layer_types` says; all full where it does not."""
    kinds = c.get("layer_types") or ["full_attention"] * c["num_hidden_layers"]
    unknown = {str(k) for k in kinds} - {"full_attention", "sliding_attention", "linear_attention", "chunked_attention"}
    if unknown or len(kinds) != c["num_hidden_layers"]:
        what = f"attention '{min(unknown)}'" if unknown else f"{len(kinds)} layer types"
        where = c.where if isinstance(c, _Checked) else "config.json"
        raise ServefitError(
            f"{where}: {what} for {c['num_hidden_layers']} layers is not known here, so its cache is not guessed.",
            hint="Known: full_attention, sliding_attention, linear_attention.",
        )
    return [str(k) for k in kinds]


def _dense(*, qk_norm: bool = False, bias: str = "", norms: int = 2, window: str = "layer_types") -> Any:
    """A family of dense decoders; `window` says how a sliding window is spread over the layers."""

    def family(c: Config) -> list[Layers]:
        biased = bias or ("qkv o" if c.get("attention_bias") else "")
        base = _attention(c, ffn=c["intermediate_size"])
        base = replace(base, small_params=_small(c, base, norms=norms, qk_norm=qk_norm, bias=biased))
        kinds = _kinds(c)
        every = int(c.get("sliding_window_pattern") or (2 if window == "alternate" else 6))
        if window in {"alternate", "every"} and "layer_types" not in c:
            kinds = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(len(kinds))]
        if window == "all" and c.get("sliding_window") and c["sliding_window"] < c.get("max_position_embeddings", 0):
            kinds = ["sliding_attention"] * len(kinds)
        return [_windowed(base, c) if kind == "sliding_attention" else base for kind in kinds]

    return family


def _windowed(layer: Layers, c: Config) -> Layers:
    return replace(layer, attention="sliding", window_tok=int(c["sliding_window"]))


def _routed(c: Config, *, qk_norm: bool = True, bias: str = "") -> list[Layers]:
    """Qwen3-MoE, Mixtral, GLM-4.5, MiniMax: grouped-query attention, some layers dense, the others with experts."""
    experts = next(c[k] for k in ("num_experts", "num_local_experts", "n_routed_experts", "num_experts") if k in c)
    biased = bias or ("qkv" if c.get("attention_bias") else "")
    base = _attention(c)
    small = _small(c, base, qk_norm=qk_norm and c.get("use_qk_norm", True), bias=biased)
    width = c["moe_intermediate_size"] if "moe_intermediate_size" in c else c["intermediate_size"]
    shared = int(c.get("shared_expert_intermediate_size") or c.get("n_shared_experts", 0) * width)
    gate = c["hidden_size"] if c.get("shared_expert_intermediate_size") else 0
    moe = replace(
        base, experts=experts, experts_per_tok=c["num_experts_per_tok"], expert_ffn=width, shared_ffn=shared,
        small_params=small + experts * c["hidden_size"] + gate,
    )  # fmt: skip
    dense = replace(base, ffn=c["intermediate_size"], small_params=small)
    first, step = int(c.get("first_k_dense_replace", 0)), int(c.get("decoder_sparse_step", 1))
    only = set(c.get("mlp_only_layers", ()))
    return [dense if i < first or i in only or (i + 1) % step else moe for i in range(c["num_hidden_layers"])]


def _gpt_oss(c: Config) -> list[Layers]:
    base = _attention(c)
    experts, width = c["num_local_experts"], c["intermediate_size"]
    small = _small(c, base, bias="qkv o") + base.heads + experts * (c["hidden_size"] + 1)
    small += experts * (2 * width + c["hidden_size"])  # the experts' biases
    moe = replace(base, experts=experts, experts_per_tok=c["num_experts_per_tok"], expert_ffn=width, small_params=small)
    return [_windowed(moe, c) if kind == "sliding_attention" else moe for kind in _kinds(c)]


def _mla(c: Config) -> list[Layers]:
    """DeepSeek-V2, V3, V3.2, Kimi-K2, GLM-5: one latent per token; V3.2 and GLM-5 add an index that picks tokens."""
    base = Layers(
        attention="mla", heads=c["num_attention_heads"], kv_heads=1, head_dim=c["kv_lora_rank"] + c["qk_rope_head_dim"],
        v_head_dim=c["v_head_dim"], q_lora_rank=c.get("q_lora_rank", 0), kv_lora_rank=c["kv_lora_rank"],
        nope_head_dim=c["qk_nope_head_dim"], rope_head_dim=c["qk_rope_head_dim"],
        index_heads=c.get("index_n_heads", 0), index_dim=c.get("index_head_dim", 0), index_top_tok=c.get("index_topk", 0),
    )  # fmt: skip
    small = 2 * c["hidden_size"] + c.get("q_lora_rank", 0) + c["kv_lora_rank"] + 2 * c.get("index_head_dim", 0)
    width, experts = c["moe_intermediate_size"], c["n_routed_experts"]
    moe = replace(
        base, experts=experts, experts_per_tok=c["num_experts_per_tok"], expert_ffn=width,
        shared_ffn=int(c.get("n_shared_experts", 0)) * width,
        small_params=small + experts * (c["hidden_size"] + (c.get("topk_method") == "noaux_tc")),
    )  # fmt: skip
    dense = replace(base, ffn=c["intermediate_size"], small_params=small)
    first = int(c.get("first_k_dense_replace", 0))
    return [dense if i < first else moe for i in range(c["num_hidden_layers"])]


def _llama4(c: Config) -> list[Layers]:
    base = _attention(c)
    base = replace(base, small_params=_small(c, base))
    step, experts = int(c.get("interleave_moe_layer_step", 1)), c["num_local_experts"]
    moe = replace(
        base, experts=experts, experts_per_tok=c["num_experts_per_tok"], expert_ffn=c["intermediate_size"],
        shared_ffn=c["intermediate_size"], small_params=base.small_params + experts * c["hidden_size"],
    )  # fmt: skip
    dense = replace(base, ffn=int(c.get("intermediate_size_mlp") or c["intermediate_size"]))
    layers = [dense if (i + 1) % step else moe for i in range(c["num_hidden_layers"])]
    chunk = int(c["attention_chunk_size"])  # three layers in four attend within a chunk
    return [
        replace(layer, attention="sliding", window_tok=chunk) if (i + 1) % 4 else layer
        for i, layer in enumerate(layers)
    ]


def _gemma4(c: Config) -> list[Layers]:
    if c.get("hidden_size_per_layer_input") or c.get("num_kv_shared_layers"):
        where = c.where if isinstance(c, _Checked) else "config.json"
        raise ServefitError(
            f"{where}: layers that share another layer's KV cache are not known here, so the cache is not guessed.",
            hint="Gemma 4 without per-layer inputs (26B-A4B, 31B) is known.",
        )
    experts = int(c.get("num_experts", 0)) if c.get("enable_moe_block") else 0
    local = _attention(c, ffn=c["intermediate_size"])
    if experts:
        local = replace(
            local, experts=experts, experts_per_tok=c["top_k_experts"], expert_ffn=c["moe_intermediate_size"]
        )
    small = _small(c, local, norms=6 if experts else 4, qk_norm=True) + experts * (c["hidden_size"] + 1)
    local = replace(local, small_params=small)
    whole = replace(
        local, head_dim=int(c.get("global_head_dim") or local.head_dim), fused_kv=bool(c.get("attention_k_eq_v")),
        kv_heads=int(c.get("num_global_key_value_heads") or local.kv_heads),
    )  # fmt: skip
    return [_windowed(local, c) if kind == "sliding_attention" else whole for kind in _kinds(c)]


def _mimo_v2(c: Config) -> list[Layers]:
    whole = _attention(c, v_head_dim=c["v_head_dim"])
    local = replace(
        whole, attention="sliding", window_tok=int(c["sliding_window"]), heads=c["swa_num_attention_heads"],
        kv_heads=c["swa_num_key_value_heads"], head_dim=c["swa_head_dim"], v_head_dim=c["swa_v_head_dim"],
    )  # fmt: skip
    experts = c["n_routed_experts"]
    layers = []
    for sliding, routed in zip(c["hybrid_layer_pattern"], c["moe_layer_freq"], strict=True):
        layer = local if sliding else whole
        small = 2 * c["hidden_size"] + (experts * (c["hidden_size"] + 1) if routed else 0)
        mlp: dict[str, Any] = {"ffn": c["intermediate_size"]}
        if routed:
            mlp = {
                "experts": experts, "experts_per_tok": c["num_experts_per_tok"], "expert_ffn": c["moe_intermediate_size"]
            }  # fmt: skip
        layers.append(replace(layer, small_params=small, **mlp))
    return layers


def _delta_net(c: Config) -> list[Layers]:
    """Qwen3-Next, Qwen3.5: three gated-delta-net layers (constant state) to one of gated full attention."""
    whole = _attention(c, output_gate=bool(c.get("attn_output_gate", True)))
    k_dim = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    v_heads, v_dim = c["linear_num_value_heads"], c["linear_num_value_heads"] * c["linear_value_head_dim"]
    kernel = c["linear_conv_kernel_dim"]
    recurrent = Layers(
        attention="recurrent",
        mixer_params=c["hidden_size"] * (2 * k_dim + 3 * v_dim + 2 * v_heads),
        state_bytes=4 * v_heads * c["linear_key_head_dim"] * c["linear_value_head_dim"]
        + 2 * (kernel - 1) * (2 * k_dim + v_dim),
    )
    experts = int(c.get("num_experts", 0))
    mlp: dict[str, Any] = {"ffn": c["intermediate_size"]} if not experts else {}
    small = 2 * c["hidden_size"]
    if experts:
        shared = int(c.get("shared_expert_intermediate_size", 0))
        mlp = {
            "experts": experts, "experts_per_tok": c["num_experts_per_tok"], "expert_ffn": c["moe_intermediate_size"],
            "shared_ffn": shared,
        }  # fmt: skip
        small += experts * c["hidden_size"] + (c["hidden_size"] if shared else 0)
    conv = kernel * (2 * k_dim + v_dim) + 2 * v_heads + c["linear_value_head_dim"]
    whole = replace(whole, small_params=small + 2 * whole.head_dim, **mlp)
    recurrent = replace(recurrent, small_params=small + conv, **mlp)
    return [recurrent if kind == "linear_attention" else whole for kind in _kinds(c)]


def _nemotron_h(c: Config) -> list[Layers]:
    """Nemotron-H and Nemotron 3: Mamba-2 (M), attention (*), MLP (-) and expert (E) layers, one block each."""
    inner = c["mamba_num_heads"] * c["mamba_head_dim"]
    conv = inner + 2 * c["n_groups"] * c["ssm_state_size"]
    norm = c["hidden_size"]
    none = Layers(attention="none", gated=False, small_params=norm)
    kinds = {
        "M": Layers(
            attention="recurrent",
            mixer_params=c["hidden_size"] * (inner + conv + c["mamba_num_heads"]) + inner * c["hidden_size"],
            state_bytes=4 * inner * c["ssm_state_size"] + 2 * (c["conv_kernel"] - 1) * conv,
            small_params=norm + conv * (c["conv_kernel"] + 1) + 3 * c["mamba_num_heads"] + inner,
        ),
        "*": replace(_attention(c), small_params=norm),
        "-": replace(none, ffn=c["intermediate_size"]),
    }
    if "n_routed_experts" in c:
        kinds["E"] = replace(
            none, experts=c["n_routed_experts"], experts_per_tok=c["num_experts_per_tok"],
            expert_ffn=c["moe_intermediate_size"], expert_hidden=int(c.get("moe_latent_size", 0)),
            shared_ffn=int(c.get("moe_shared_expert_intermediate_size", 0)) * int(c.get("n_shared_experts", 1)),
            small_params=norm + c["n_routed_experts"] * (c["hidden_size"] + 1),
        )  # fmt: skip
    pattern = str(c["hybrid_override_pattern"])
    if set(pattern) - set(kinds):
        where = c.where if isinstance(c, _Checked) else "config.json"
        raise ServefitError(
            f"{where}: layer kind '{min(set(pattern) - set(kinds))}' is not known here, so it is not guessed.",
            hint="Known: M (Mamba-2), * (attention), - (MLP), E (experts).",
        )
    return [kinds[letter] for letter in pattern]


def _minimax(c: Config) -> list[Layers]:
    layers = _routed(c, qk_norm=False)
    q_k = (layers[0].heads + layers[0].kv_heads) * layers[0].head_dim
    return [replace(layer, small_params=layer.small_params + q_k + layer.experts) for layer in layers]


def _no_qk_norm(c: Config) -> list[Layers]:
    return _routed(c, qk_norm=False)


FAMILIES: dict[str, Callable[[Config], list[Layers]]] = {
    "llama": _dense(), "mistral": _dense(window="all"), "ministral3": _dense(), "mistral3": _dense(),
    "granite": _dense(), "phi3": _dense(window="all"), "smollm3": _dense(), "mimo": _dense(bias="qkv"),
    "olmo2": _dense(norms=2), "internlm3": _dense(), "exaone": _dense(), "cohere": _dense(norms=1),
    "qwen2": _dense(bias="qkv"), "qwen2_5_vl": _dense(bias="qkv"), "qwen3": _dense(qk_norm=True),
    "qwen3_vl": _dense(qk_norm=True), "seed_oss": _dense(bias="qkv"), "glm4": _dense(norms=4),
    "gemma2": _dense(norms=4, window="alternate"), "gemma3": _dense(norms=4, qk_norm=True, window="every"),
    "gemma4": _gemma4, "mixtral": _no_qk_norm, "qwen2_moe": lambda c: _routed(c, qk_norm=False, bias="qkv"),
    "qwen3_moe": _routed, "qwen3_vl_moe": _routed, "glm4_moe": _routed, "minimax_m2": _minimax, "gpt_oss": _gpt_oss,
    "deepseek_v2": _mla, "deepseek_v3": _mla, "deepseek_v32": _mla, "kimi_k2": _mla, "glm_moe_dsa": _mla,
    "llama4": _llama4, "mimo_v2_flash": _mimo_v2, "qwen3_next": _delta_net, "qwen3_5": _delta_net,
    "qwen3_5_moe": _delta_net, "nemotron_h": _nemotron_h,
}  # fmt: skip
"""Which reader knows which `model_type` (its `_text` ending dropped)."""


def _named(shape: ModelShape, name: str) -> ModelShape:
    return replace(shape, name=name, title=name)

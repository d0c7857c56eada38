"""What a weight file holds: exact bytes by part, and from a GGUF file the model's shape as well."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from servefit.errors import ServefitError
from servefit.facts.configs import read_config
from servefit.facts.headers import Header, Tensor, read_gguf, read_safetensors
from servefit.facts.models import FileWeights, ModelShape

# GGUF architecture -> model_type of a config.json
_ARCHITECTURES = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "qwen2moe": "qwen2_moe",
    "gemma2": "gemma2", "gemma3": "gemma3", "gpt-oss": "gpt_oss", "deepseek2": "deepseek_v2", "glm4moe": "glm4_moe",
    "phi3": "phi3", "granite": "granite", "smollm3": "smollm3", "olmo2": "olmo2", "mistral3": "mistral", "llama4": "llama4",
    "minimax-m2": "minimax_m2", "seed_oss": "seed_oss", "qwen3vl": "qwen3", "qwen3vlmoe": "qwen3_moe", "exaone": "exaone",
}  # fmt: skip

# key of a config.json <- key of GGUF metadata, after the architecture
_KEYS = {
    "num_hidden_layers": "block_count", "hidden_size": "embedding_length", "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv", "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length", "sliding_window": "attention.sliding_window",
    "num_experts_per_tok": "expert_used_count", "moe_intermediate_size": "expert_feed_forward_length",
    "first_k_dense_replace": "leading_dense_block_count", "n_shared_experts": "expert_shared_count",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length", "kv_lora_rank": "attention.kv_lora_rank",
    "q_lora_rank": "attention.q_lora_rank", "qk_rope_head_dim": "rope.dimension_count",
    "interleave_moe_layer_step": "interleave_moe_layer_step", "attention_chunk_size": "attention.chunk_size",
}  # fmt: skip


def load_gguf(path: Path) -> ModelShape:
    """The model in a GGUF file: shape from its metadata, bytes from its tensors.

    Raises ServefitError for a file that is damaged or of an architecture that servefit does not know.
    """
    header = read_gguf(path)
    arch = str(header.metadata.get("general.architecture", ""))
    model_type = _ARCHITECTURES.get(arch)
    if model_type is None:
        raise ServefitError(
            f"{path}: architecture '{arch or 'none'}' may keep a kind of cache that servefit does not know, so it is not guessed.",
            hint=f"Known: {', '.join(sorted(_ARCHITECTURES))}.",
        )
    names = {t.name: t for t in header.tensors}
    if "token_embd.weight" not in names:
        raise ServefitError(
            f"{path} holds no token embedding.", hint="Name the first part of a split file, or a whole one."
        )
    if int(header.metadata.get("split.count", 1) or 1) > 1:
        raise ServefitError(
            f"{path} is one of {header.metadata['split.count']} parts; its tensors are not the whole model.",
            hint="Merge the parts (llama-gguf-split --merge), or use the model's config.json.",
        )
    config = _config(header, arch, model_type, names["token_embd.weight"])
    shape = read_config(config, name=path.stem, where=str(path))
    title = str(header.metadata.get("general.name") or path.stem)
    return replace(shape, title=title, source=f"GGUF header of {path.name}", file=_gguf_weights(header, shape))


def _config(header: Header, arch: str, model_type: str, embedding: Tensor) -> dict[str, Any]:
    """A config.json made of the metadata, so that one reader serves both."""
    found = {ours: header.metadata.get(f"{arch}.{theirs}") for ours, theirs in _KEYS.items()}
    config: dict[str, Any] = {k: v for k, v in found.items() if isinstance(v, int) and not isinstance(v, bool)}
    heads = found["num_key_value_heads"]
    if isinstance(heads, list) and heads and all(h == heads[0] for h in heads):
        config["num_key_value_heads"] = heads[0]
    elif isinstance(heads, list):
        raise ServefitError(
            f"{header.path}: its layers differ in KV heads, which is not known here, so the cache is not guessed.",
            hint="Use the model's config.json.",
        )
    config |= {"model_type": model_type, "vocab_size": embedding.shape[-1]}
    config["tie_word_embeddings"] = not any(t.name == "output.weight" for t in header.tensors)
    key_dim, value_dim = (header.metadata.get(f"{arch}.attention.{part}_length") for part in ("key", "value"))
    if config.get("kv_lora_rank"):
        key_dim = header.metadata.get(f"{arch}.attention.key_length_mla", key_dim)
        config["v_head_dim"] = header.metadata.get(f"{arch}.attention.value_length_mla", value_dim)
        config["qk_nope_head_dim"] = int(key_dim or 0) - config.get("qk_rope_head_dim", 0)
    elif key_dim:
        config["head_dim"] = key_dim
    if experts := header.metadata.get(f"{arch}.expert_count"):
        config |= {"num_experts": experts, "num_local_experts": experts, "n_routed_experts": experts}
        config["model_type"] = "mixtral" if model_type == "llama" else model_type
        if model_type == "gpt_oss" and "moe_intermediate_size" in config:
            config["intermediate_size"] = config["moe_intermediate_size"]
    if model_type == "gpt_oss":
        layers = range(int(config.get("num_hidden_layers", 0)))
        config["layer_types"] = ["full_attention" if i % 2 else "sliding_attention" for i in layers]
    return config


def _gguf_weights(header: Header, shape: ModelShape) -> FileWeights:
    def part(tensor: Tensor) -> str:
        layer = re.match(r"blk\.(\d+)\.", tensor.name)
        if tensor.name.startswith(("v.", "mm.", "a.")) or (layer and int(layer.group(1)) >= shape.layers):
            return "others"
        if "_exps." in tensor.name:
            return "experts"
        return {"token_embd.weight": "embed", "output.weight": "head"}.get(tensor.name, "dense")

    return _weights(header.path, header.tensors, part)


def safetensors_weights(paths: Sequence[Path], shape: ModelShape) -> FileWeights:
    """Exact bytes of a model's safetensors files, by part. Raises ServefitError where a file is damaged."""

    def part(tensor: Tensor) -> str:
        layer = re.search(r"\blayers\.(\d+)\.", tensor.name)
        if re.search(r"visual|vision|audio|\bmtp\b|multi_modal", tensor.name) or (
            layer and int(layer[1]) >= shape.layers
        ):
            return "others"
        if ".experts." in tensor.name:
            return "experts"
        if "embed_tokens" in tensor.name or tensor.name.endswith("wte.weight"):
            return "embed"
        return "head" if "lm_head" in tensor.name else "dense"

    tensors = [tensor for path in paths for tensor in read_safetensors(path).tensors]
    return _weights(str(paths[0].parent if len(paths) > 1 else paths[0]), tensors, part)


def _weights(path: str, tensors: Sequence[Tensor], part: Callable[[Tensor], str]) -> FileWeights:
    sizes: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    values = 0
    for tensor in tensors:
        where = part(tensor)
        sizes[where] += tensor.bytes
        if where in {"dense", "experts"}:
            kinds[tensor.kind] += tensor.bytes
        values += tensor.values if where != "others" else 0
    if not kinds:
        raise ServefitError(f"{path} holds no layers.", hint="Is it a language model?")
    tied = not sizes["head"]
    return FileWeights(
        path=path, quant=kinds.most_common(1)[0][0], total_bytes=sum(sizes.values()) - sizes["others"], params=values,
        embed_bytes=0 if tied else sizes["embed"], head_bytes=sizes["embed"] if tied else sizes["head"],
        expert_bytes=sizes["experts"], others_bytes=sizes["others"],
    )  # fmt: skip

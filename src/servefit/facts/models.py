"""Models: shapes from which parameters, KV cache and arithmetic follow. `find_model("llama-3.1-8b")`, a config, a file."""

import tomllib
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from servefit.facts.cited import Status
from servefit.facts.names import key, pick

AttentionKind = Literal["full", "sliding", "mla", "recurrent", "none"]
"""full: grows with every token; sliding: stops at its window; mla: one latent per token; recurrent: a state of constant
size; none: no attention in this layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """`count` equal layers: what they attend with and what they compute with. Sizes are numbers of values."""

    count: int = 1
    attention: AttentionKind = "full"
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    """0 means as head_dim."""
    window_tok: int = 0
    """Sliding: a token sees this many at most."""
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    nope_head_dim: int = 0
    rope_head_dim: int = 0
    index_heads: int = 0
    index_dim: int = 0
    index_top_tok: int = 0
    """Sparse attention: an index picks this many tokens; the cache keeps all."""
    fused_kv: bool = False
    """K and V come from one projection (the cache still keeps both)."""
    output_gate: bool = False
    mixer_params: int = 0
    """Recurrent: parameters of the mixer."""
    state_bytes: int = 0
    """Recurrent: bytes of one sequence's state in one layer (its own precision, usually 32 bit)."""
    ffn: int = 0
    """Width of the dense MLP, 0 where there is none."""
    gated: bool = True
    """Three MLP matrices (SwiGLU) rather than two."""
    experts: int = 0
    experts_per_tok: int = 0
    expert_ffn: int = 0
    expert_hidden: int = 0
    """Latent experts work at this width; 0 means the model's."""
    shared_ffn: int = 0
    """Width of all shared experts together: every token passes them."""
    small_params: int = 0
    """Norms, biases, routers: what quantisation leaves in 16 bit or more."""

    def attention_params(self, hidden: int) -> int:
        """Parameters of the attention matrices of one layer."""
        v_dim = self.v_head_dim or self.head_dim
        if self.attention == "recurrent":
            return self.mixer_params
        if self.attention == "mla":
            q_dim = self.nope_head_dim + self.rope_head_dim
            q = (hidden + self.heads * q_dim) * self.q_lora_rank if self.q_lora_rank else hidden * self.heads * q_dim
            kv = hidden * (self.kv_lora_rank + self.rope_head_dim)
            up = self.kv_lora_rank * self.heads * (self.nope_head_dim + v_dim)
            index = self.index_dim * (self.q_lora_rank * self.index_heads + hidden) + hidden * self.index_heads
            return q + kv + up + self.heads * v_dim * hidden + (index if self.index_dim else 0)
        q = hidden * self.heads * self.head_dim * (2 if self.output_gate else 1)
        kv = hidden * self.kv_heads * (self.head_dim + (0 if self.fused_kv else v_dim))
        return q + kv + self.heads * v_dim * hidden

    def expert_params(self, hidden: int) -> int:
        """Parameters of one routed expert of one layer."""
        return (3 if self.gated else 2) * (self.expert_hidden or hidden) * self.expert_ffn if self.experts else 0

    def dense_params(self, hidden: int) -> int:
        """Parameters of one layer that every token passes: attention, dense MLP, shared experts; the small ones apart."""
        latent = 2 * hidden * self.expert_hidden if self.experts else 0
        return self.attention_params(hidden) + (3 if self.gated else 2) * hidden * (self.ffn + self.shared_ffn) + latent


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWeights:
    """Weights as a file holds them, from its header: exact bytes, no bits-per-weight guess."""

    path: str
    quant: str
    total_bytes: int
    """The language model's tensors, without what stands in `others_bytes`."""
    embed_bytes: int
    """Input embedding: a look-up, not streamed; 0 where the output head is the same tensor."""
    head_bytes: int
    """Output head."""
    expert_bytes: int
    """All routed experts."""
    params: int
    """Values in them; packed 4-bit formats count their packed integers."""
    others_bytes: int = 0
    """In the file beside the language model: vision towers, draft heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """One model. Flat fields are those of its first attention layer; `groups` is the truth for hybrids."""

    name: str
    title: str
    hidden: int
    vocab: int
    tied: bool
    """Input embedding and output head are one matrix."""
    groups: tuple[Layers, ...]
    max_tok: int = 0
    """Longest context that the makers allow; 0 where not stated."""
    repo: str = ""
    source: str = "given"
    date: str = ""
    status: Status = "given"
    note: str = ""
    file: FileWeights | None = None

    @property
    def layers(self) -> int:
        """Number of layers."""
        return sum(g.count for g in self.groups)

    @property
    def main(self) -> Layers:
        """The layers whose cache grows longest: full or MLA before sliding before recurrent."""
        order = ("full", "mla", "sliding", "recurrent", "none")
        return min(self.groups, key=lambda g: order.index(g.attention))

    @property
    def heads(self) -> int:
        """Query heads of the main attention layers."""
        return self.main.heads

    @property
    def kv_heads(self) -> int:
        """KV heads of the main attention layers."""
        return self.main.kv_heads

    @property
    def head_dim(self) -> int:
        """Values per head of the main attention layers."""
        return self.main.head_dim

    @property
    def ffn(self) -> int:
        """Width of the MLP of one token: dense, or the experts that it passes."""
        return max((g.ffn or g.experts_per_tok * g.expert_ffn + g.shared_ffn) for g in self.groups)

    @property
    def experts(self) -> int:
        """Routed experts per layer; 0 for a dense model."""
        return max(g.experts for g in self.groups)

    @property
    def experts_per_tok(self) -> int:
        """Routed experts that one token passes; 0 for a dense model."""
        return max(g.experts_per_tok for g in self.groups)

    @property
    def attention(self) -> tuple[AttentionKind, ...]:
        """The attention kind of each layer (grouped, not in the model's order)."""
        return tuple(g.attention for g in self.groups for _ in range(g.count))

    @property
    def dense_params(self) -> int:
        """Matrix parameters that every token passes, head and embedding apart."""
        return sum(g.count * g.dense_params(self.hidden) for g in self.groups)

    @property
    def expert_params(self) -> int:
        """Parameters of all routed experts."""
        return sum(g.count * g.experts * g.expert_params(self.hidden) for g in self.groups)

    @property
    def small_params(self) -> int:
        """Norms, biases and routers."""
        return sum(g.count * g.small_params for g in self.groups) + self.hidden

    @property
    def head_params(self) -> int:
        """Parameters of the output head: read in every step, also where the embedding shares them."""
        return self.vocab * self.hidden

    @property
    def params_total(self) -> int:
        """All parameters: what has to fit."""
        ends = self.head_params * (1 if self.tied else 2)
        return self.dense_params + self.expert_params + self.small_params + ends

    @property
    def params_active(self) -> int:
        """Parameters that one token passes (the input embedding is a look-up and left out)."""
        routed = sum(g.count * g.experts_per_tok * g.expert_params(self.hidden) for g in self.groups)
        return self.dense_params + routed + self.small_params + self.head_params


def find_model(name: str) -> ModelShape:
    """The model that `name` means: a catalogue name in any spelling, or a path to config.json, .gguf, .safetensors or
    a TOML file that describes one.

    Raises ServefitError for an unknown name (the nearest are suggested) and for a file that cannot be a model.
    """
    if name.endswith((".json", ".gguf", ".safetensors", ".toml")) or Path(name).is_dir():
        from servefit.facts.configs import load_model

        return load_model(Path(name))
    models = _catalogue()
    return models[pick(name, models, _aliases(), what="model", listing="servefit models")]


def all_models() -> tuple[ModelShape, ...]:
    """The catalogue, in the order of its file."""
    return tuple(_catalogue().values())


def group_layers(layers: list[Layers]) -> tuple[Layers, ...]:
    """Equal layers put together, in the order of their first appearance."""
    return tuple(replace(layer, count=count) for layer, count in Counter(layers).items())


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(files("servefit.facts").joinpath("models.toml").read_text("utf-8"))


@cache
def _catalogue() -> dict[str, ModelShape]:
    table = _table()
    return {
        slug: _model(slug, entry, sources=table["sources"], date=table["date"])
        for slug, entry in table["models"].items()
    }


@cache
def _aliases() -> dict[str, tuple[str, ...]]:
    spelt: dict[str, tuple[str, ...]] = {}
    for slug, entry in _table()["models"].items():
        repo = str(entry.get("repo", ""))
        for alias in (entry["title"], repo, repo.partition("/")[2], *entry.get("aliases", ())):
            spelt.setdefault(key(alias), (slug,))
    return spelt


def _model(slug: str, entry: dict[str, Any], *, sources: dict[str, str], date: str) -> ModelShape:
    file = entry.get("file")
    return ModelShape(
        name=slug,
        title=entry["title"],
        hidden=entry["hidden"],
        vocab=entry["vocab"],
        tied=entry.get("tied", False),
        groups=tuple(Layers(**group) for group in entry["layers"]),
        max_tok=entry.get("max_tok", 0),
        repo=entry.get("repo", ""),
        source=sources[entry["source"]],
        date=date,
        status=entry.get("status", "seen"),
        note=entry.get("note", ""),
        file=FileWeights(**file) if file else None,
    )

"""config.json: known families become shapes, what is not known is refused in a sentence."""

import json
from pathlib import Path

import pytest

from servefit.errors import ServefitError
from servefit.facts.configs import FAMILIES, read_config
from servefit.facts.models import find_model
from servefit.physics.memory import kv_bytes, kv_bytes_per_tok

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip


def test_a_config_is_the_catalogues_model(tmp_path: Path):
    """Llama-3.1-8B's own config gives the catalogue's shape."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    assert find_model(str(path)).groups == find_model("llama-3.1-8b").groups


@pytest.mark.parametrize("kind", ["rwkv7", "mamba", "deepseek_v4", "kimi_linear", "falcon", "", "gpt2"])
def test_an_unknown_cache_is_refused_not_guessed(kind):
    """A model type whose cache is not known: one sentence, and which are known."""
    with pytest.raises(ServefitError) as caught:
        read_config({**LLAMA, "model_type": kind}, name="x")
    assert "not guessed" in caught.value.message and "llama" in caught.value.hint


def test_an_unknown_layer_kind_is_refused():
    """A layer type that a known family does not have is refused too."""
    kinds = ["full_attention"] * 31 + ["quantum_attention"]
    with pytest.raises(ServefitError, match="quantum_attention"):
        read_config({**LLAMA, "model_type": "qwen3", "layer_types": kinds}, name="x")
    with pytest.raises(ServefitError, match="3 layer types"):
        read_config({**LLAMA, "layer_types": ["full_attention"] * 3}, name="x")
    with pytest.raises(ServefitError, match="layer kind 'X'"):
        read_config(
            {**LLAMA, "model_type": "nemotron_h", "hybrid_override_pattern": "M*X", "mamba_num_heads": 8, "mamba_head_dim": 64,
             "n_groups": 1, "ssm_state_size": 16, "conv_kernel": 4}, name="x")  # fmt: skip
    with pytest.raises(ServefitError, match="share another layer's KV"):
        read_config({**LLAMA, "model_type": "gemma4", "num_kv_shared_layers": 10}, name="x")


@pytest.mark.parametrize(
    "missing", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"]
)
def test_a_missing_size_is_named(missing):
    """A config without a size is not filled in."""
    with pytest.raises(ServefitError, match=missing):
        read_config({k: v for k, v in LLAMA.items() if k != missing}, name="x")


@pytest.mark.parametrize("value", [0, -1, "32", True, 10**12, 3.5])
def test_an_impossible_size_is_named(value):
    """A size that is no size is refused, whatever its type."""
    with pytest.raises(ServefitError, match="is no size"):
        read_config({**LLAMA, "num_hidden_layers": value}, name="x")


def test_a_vision_models_language_part():
    """The text part is read, and the note says so."""
    model = read_config(
        {"model_type": "qwen2_5_vl", "text_config": {**LLAMA, "model_type": "qwen2_5_vl_text"}}, name="x"
    )
    assert model.layers == 32 and "language part" in model.note


def test_a_sliding_window_that_is_switched_on():
    """Mistral's window bounds the cache; a null one does not; Qwen2's unused one does not."""
    config = {**LLAMA, "model_type": "mistral"}
    windowed = read_config({**config, "sliding_window": 4096}, name="x")
    assert kv_bytes(windowed, 100_000) == 4_096 * kv_bytes_per_tok(windowed)
    assert kv_bytes(read_config({**config, "sliding_window": None}, name="x"), 100_000) == 100_000 * 131_072
    qwen = read_config({**LLAMA, "model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, name="x")
    assert kv_bytes(qwen, 100_000) == 100_000 * 131_072


def test_head_dim_is_read_not_divided():
    """Where the config states head_dim, hidden / heads is not used (Qwen3, Gemma, Mistral Nemo)."""
    assert find_model("qwen3-0.6b").head_dim == 128
    assert read_config({**LLAMA, "head_dim": 64}, name="x").head_dim == 64


def test_every_family_is_callable():
    """The registry is a plain dict of functions."""
    assert len(FAMILIES) >= 30 and all(callable(f) for f in FAMILIES.values())


def test_a_config_is_called_as_its_folder_another_file_as_itself(tmp_path: Path):
    """config.json says nothing by its own name; mine.json does."""
    fields = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 32,
              "num_key_value_heads": 8, "vocab_size": 1000, "intermediate_size": 14336}  # fmt: skip
    folder = tmp_path / "some-model"
    folder.mkdir()
    for name in ("config.json", "mine.json"):
        (folder / name).write_text(json.dumps(fields))
    assert [find_model(str(folder / name)).name for name in ("config.json", "mine.json")] == ["some-model", "mine"]


def test_a_file_that_is_no_config(tmp_path: Path):
    """A list, or broken JSON, is said in a sentence."""
    path = tmp_path / "config.json"
    for text in ("[1]", "{", ""):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ServefitError):
            find_model(str(path))


def test_a_model_described_by_hand(tmp_path: Path):
    """A TOML file in the catalogue's own form: two kinds of layers, sizes follow; faults are named."""
    path = tmp_path / "mine.toml"
    text = (
        'hidden = 1024\nvocab = 1000\n[[layers]]\ncount = 3\nattention = "sliding"\nheads = 8\nkv_heads = 2\nhead_dim = 128\n'
        'window_tok = 100\nffn = 4096\n[[layers]]\nattention = "full"\nheads = 8\nkv_heads = 2\nhead_dim = 128\nffn = 4096\n'
    )
    path.write_text(text, encoding="utf-8")
    model = find_model(str(path))
    assert model.layers == 4 and kv_bytes(model, 1_000) == 1_024 * (3 * 100 + 1_000)
    for bad, said in (("heads = 8", "head = 8"), ("hidden = 1024", "hidden = 0"), ('"sliding"', '"guessed"')):
        path.write_text(text.replace(bad, said), encoding="utf-8")
        with pytest.raises(ServefitError):
            find_model(str(path))

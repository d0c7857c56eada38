"""Roofline: ceilings of the acceptance table, and never a step below bytes/bandwidth or flop/peak."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from servefit.errors import ServefitError
from servefit.facts.devices import Device, all_devices, find_device
from servefit.facts.models import Layers, ModelShape, all_models, find_model
from servefit.physics import roofline
from servefit.physics.roofline import (
    ceiling_tok_per_s,
    decode_ceiling_tok_per_s,
    engine_constants,
    floor_s,
    prefill_flop,
    roofline_step,
    steps_ratio,
)
from servefit.physics.steptime import step_s

LLAMA = find_model("llama-3.1-8b")


@pytest.mark.parametrize(
    ("bandwidth", "tok_per_s"), [(273e9, 55.7), (546e9, 111.4), (410e9, 83.7), (300e9, 61.2), (400e9, 81.6)]
)
def test_c9_to_c12_ceilings(bandwidth, tok_per_s):
    """An 8B at 4 bit (4.9 GB) on 273, 546, 410, 300 and 400 GB/s."""
    assert ceiling_tok_per_s(bandwidth, 4.9e9) == pytest.approx(tok_per_s, abs=0.05)


@pytest.mark.parametrize(
    ("seats", "ratio"), [(1, 1.017), (8, 1.133), (16, 1.260), (24, 1.380), (32, 1.494), (64, 1.899)]
)
def test_d10_a_short_calibration_is_optimistic(seats, ratio):
    """D10: a step read at 768 tokens a seat against one measured at 128."""
    assert steps_ratio(LLAMA, 4.9e9, seqs=seats, ctx_tok=768, than_tok=128) == pytest.approx(ratio, abs=6e-4)


def test_an_8192_token_prefill_takes_423_ms_on_an_a100():
    """The floor that three public simulators fall below: they say 108 ms."""
    a100 = find_device("a100-80gb")
    assert floor_s(LLAMA, a100, "bf16", prefill_tok=8_192) == pytest.approx(0.423, abs=5e-4)
    step = roofline_step(LLAMA, a100, "bf16")
    assert step_s(step, seqs=0, kv_tok=0, prefill_tok=8_192, prefill_pos=8_192 * 8_193 // 2) >= 0.4225


def test_datasheet_alone_says_lower_bound():
    """Without constants every time is a lower bound; with published ones it is not, and the origin holds the error."""
    h100 = find_device("h100-sxm")
    bare, known = roofline_step(LLAMA, h100, "bf16"), roofline_step(LLAMA, h100, "bf16", constants="vllm")
    assert bare.lower_bound and bare.source == "spec" and "lower bound" in bare.origin
    assert not known.lower_bound and known.source == "published" and "%" in known.origin
    for seqs in (1, 32, 256):
        assert step_s(bare, seqs=seqs, kv_tok=seqs * 500) < step_s(known, seqs=seqs, kv_tok=seqs * 500)


def test_a_doubtful_figure_is_said():
    """Where the catalogue's figure is unverified, the step made from it says so."""
    assert "unverified" in roofline_step(LLAMA, find_device("rtx-5090"), "bf16").origin


shapes = st.builds(
    lambda hidden, layers, heads, group, dim, ffn, vocab, moe, tied, kind: ModelShape(
        name="m", title="m", hidden=hidden, vocab=vocab, tied=tied,
        groups=(
            Layers(
                count=layers, attention=kind, window_tok=100 if kind == "sliding" else 0, heads=heads * group, kv_heads=heads,
                head_dim=dim, kv_lora_rank=4 * dim, rope_head_dim=dim, nope_head_dim=dim, ffn=0 if moe else ffn,
                experts=moe[0] if moe else 0, experts_per_tok=moe[1] if moe else 0, expert_ffn=ffn if moe else 0,
                state_bytes=4_096 if kind == "recurrent" else 0, mixer_params=hidden * hidden if kind == "recurrent" else 0,
            ),
        ),
    ),
    hidden=st.integers(64, 16_384), layers=st.integers(1, 126), heads=st.integers(1, 64), group=st.integers(1, 8),
    dim=st.sampled_from([32, 64, 128, 256]), ffn=st.integers(64, 60_000), vocab=st.integers(256, 300_000),
    moe=st.none() | st.tuples(st.integers(8, 512), st.integers(1, 8)), tied=st.booleans(),
    kind=st.sampled_from(["full", "sliding", "mla", "recurrent"]),
)  # fmt: skip
devices = st.builds(
    lambda band, peak: Device(
        name="d", title="d", kind="gpu", memory_bytes=2**40, bandwidth_bytes_per_s=band, flop_per_s=peak,
        link_bytes_per_s=32e9, link_latency_s=1e-5,
    ),
    band=st.floats(1e10, 1e13), peak=st.floats(1e11, 1e16),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    model=st.one_of(st.sampled_from(all_models()), shapes), device=st.one_of(st.sampled_from(all_devices()), devices),
    precision=st.sampled_from(["bf16", "fp8", "int8", "awq", "nvfp4", "q8_0"]), constants=st.sampled_from([None, *engine_constants()]),
    seqs=st.integers(0, 512), ctx=st.integers(1, 50_000), prefill=st.integers(0, 16_384), past=st.integers(0, 4_096), tp=st.sampled_from([1, 2, 8]),
)  # fmt: skip
def test_no_step_is_below_bytes_over_bandwidth_or_flop_over_peak(
    model, device, precision, constants, seqs, ctx, prefill, past, tp
):
    """Over random and catalogue models and devices, with and without constants: never below the floor."""
    assume(not model.heads or model.heads % tp == 0)
    device = device if device.link_bytes_per_s else replace(device, link_bytes_per_s=1e11)
    step = roofline_step(model, device, precision, 16, tp, constants, ctx_tok=ctx)
    positions = sum(range(past, past + prefill))
    took = step_s(step, seqs=seqs, kv_tok=seqs * ctx, prefill_tok=prefill, prefill_pos=positions)
    if prefill and any(g.attention == "sliding" or g.index_top_tok for g in model.groups):
        return  # windowed prefill is averaged over a prompt of `ctx` tokens: see the next test
    floor = floor_s(model, device, precision, prefill_tok=prefill, past_tok=past, seqs=seqs, ctx_tok=ctx, tp=tp)
    assert took >= floor * (1 - 1e-3)


@settings(max_examples=100, deadline=None)
@given(model=shapes, device=devices, constants=st.sampled_from([None, "vllm"]), prompt=st.integers(1, 20_000))
def test_a_whole_prompt_is_not_below_its_arithmetic_whatever_the_attention(model, device, constants, prompt):
    """Windows too: a prompt of the length that the step was made for takes at least its arithmetic and its bytes."""
    step = roofline_step(model, device, "bf16", constants=constants, ctx_tok=prompt)
    took = step_s(step, seqs=0, kv_tok=0, prefill_tok=prompt, prefill_pos=prompt * (prompt + 1) // 2)
    head = roofline.head_flop(model) / device.flop_per_s  # a prefill's one row of logits is left out of the step
    assert took + head >= floor_s(model, device, "bf16", prefill_tok=prompt) * (1 - 1e-9)


@settings(max_examples=100, deadline=None)
@given(model=shapes, device=devices, seqs=st.integers(1, 512), ctx=st.integers(1, 50_000))
def test_ceiling_and_floor_agree(model, device, seqs, ctx):
    """A stream at the ceiling never types faster than the floor of its step allows."""
    ceiling = decode_ceiling_tok_per_s(model, device, "bf16", ctx_tok=ctx, seqs=seqs)
    assert 1 / ceiling <= floor_s(model, device, "bf16", seqs=seqs, ctx_tok=ctx) * (1 + 1e-12)


def test_more_work_takes_longer():
    """More sequences, more context, more prompt: never shorter."""
    step = roofline_step(LLAMA, find_device("h100-sxm"), "bf16", constants="vllm")
    base = step_s(step, seqs=8, kv_tok=8_000, prefill_tok=100, prefill_pos=5_000)
    assert step_s(step, seqs=9, kv_tok=8_000, prefill_tok=100, prefill_pos=5_000) > base
    assert step_s(step, seqs=8, kv_tok=9_000, prefill_tok=100, prefill_pos=5_000) > base
    assert step_s(step, seqs=8, kv_tok=8_000, prefill_tok=101, prefill_pos=5_100) > base


def test_tensor_parallel_pays_for_its_link():
    """Two devices halve the bytes and add all-reduces; without NVLink the link is a large part of the step."""
    one = roofline_step(LLAMA, find_device("rtx-4090"), "bf16")
    two = roofline_step(LLAMA, find_device("rtx-4090"), "bf16", tp=2)
    assert two.weight_read_s == pytest.approx(one.weight_read_s / 2)
    assert two.link_s == pytest.approx(2 * 32 * 1e-5) and two.link_per_tok_s > 0
    prefill = {"seqs": 0, "kv_tok": 0, "prefill_tok": 2_048, "prefill_pos": 2_048 * 2_047 // 2}
    assert step_s(two, **prefill) > step_s(one, **prefill) / 2


def test_a_missing_link_figure_is_refused():
    """Tensor parallel on a device without a link figure is not guessed."""
    with pytest.raises(ServefitError, match="no figure for a link"):
        roofline_step(LLAMA, find_device("m4-max-36gb"), "bf16", tp=2)


def test_faster_arithmetic_only_where_the_device_has_it():
    """FP8 weights use the FP8 peak on an H100 and the 16-bit one on an A100."""
    h100, a100 = find_device("h100-sxm"), find_device("a100-80gb")
    assert roofline.peak_flop_per_s(h100, "fp8").value == 1978e12
    assert roofline.peak_flop_per_s(a100, "fp8").value == 312e12
    assert roofline.peak_flop_per_s(h100, "awq").value == 989e12


def test_no_peak_is_no_guess():
    """A device without an arithmetic figure counts memory only, and says so."""
    step = roofline_step(LLAMA, find_device("m5-16gb"), "q4")
    assert step.compute_per_tok_s == 0 and "no peak arithmetic figure" in step.origin
    assert math.isfinite(step_s(step, seqs=4, kv_tok=100, prefill_tok=10, prefill_pos=45))


def test_prefill_flop_is_linear_plus_quadratic():
    """Doubling a long prompt more than doubles its arithmetic; the quadratic part is 13 % at 8,192 tokens."""
    long, half = prefill_flop(LLAMA, 8_192), prefill_flop(LLAMA, 4_096)
    assert 2 < long / half < 2.2
    quadratic = long - roofline.linear_flop_per_tok(LLAMA) * 8_192 - roofline.head_flop(LLAMA)
    assert quadratic / long == pytest.approx(0.13, abs=0.01)


def test_constants_that_were_tried_on_the_device_come_first():
    """The RTX 4090 has its own; another GPU takes the first of its kind and its origin says that it was not tried."""
    from servefit.physics.constants import constants_for

    assert constants_for(find_device("rtx-4090")).name == "vllm-4090"
    assert constants_for(find_device("h100-sxm")).name == constants_for(find_device("mi300x")).name == "vllm"
    assert constants_for(find_device("m4-max-36gb")).name == "llamacpp-metal"
    assert constants_for(find_device("cpu-small")) is None
    assert "not tried" in roofline_step(LLAMA, find_device("mi300x"), "bf16", constants="vllm").origin
    assert "not tried" not in roofline_step(LLAMA, find_device("h100-sxm"), "bf16", constants="vllm").origin


def test_h100_decode_steps_as_published():
    """silybench, Qwen3-8B, vLLM 0.30 on an H100, alone: ITL p50 6.889 ms at 1,024 to 1,152 tokens; ours within 2 %."""
    step = roofline_step(find_model("qwen3-8b"), find_device("h100-sxm"), "bf16", constants="vllm")
    assert step_s(step, seqs=1, kv_tok=1_088) == pytest.approx(0.006889, rel=0.02)


def test_overhead_grows_with_layers():
    """An engine launches its kernels layer by layer: 80 layers cost more than 32, whatever the bytes."""
    h100 = find_device("h100-sxm")
    small, large = (
        roofline_step(find_model(n), h100, "fp8", constants="vllm") for n in ("llama-3.1-8b", "llama-3.1-70b")
    )
    assert large.const_s - small.const_s == pytest.approx(48 * 42e-6)


def test_a_floor_is_below_what_llama_cpp_reaches():
    """llama.cpp quantises activations to 8 bit: its prompts may run faster than 16-bit peaks allow, so floors use 8-bit ones.

    RTX 4090, LLaMA-7B Q4_0, discussion 15013: 14,771 tok/s at 512 tokens, 195 TFLOP/s of a 16-bit peak of 165. Two vCPUs, SmolLM2-135M Q4_1 under
    OpenVINO: 1,900 tok/s at 128 tokens.
    """
    gpu, cpu = find_device("rtx-4090"), find_device("cpu-small")
    assert floor_s(find_model("llama-2-7b"), gpu, "q4_0", prefill_tok=512) < 512 / 14_771
    assert floor_s(find_model("llama-2-7b"), gpu, "awq", prefill_tok=512) > 512 / 14_771
    assert floor_s(find_model("smollm2-135m"), cpu, prefill_tok=128) < 128 / 1_900
    assert roofline.model_peak(find_model("smollm2-135m"), cpu).value == 1.5e12


@pytest.mark.parametrize(("tp", "fits"), [(2, True), (8, True), (3, False), (64, False), (1_000_000, False)])
def test_heads_are_shared_whole(tp, fits):
    """Tensor parallel splits by attention heads: 32 of them go over 2 or 8 devices, not over 3, nor over more than there are."""
    device = find_device("h100-sxm")
    if fits:
        assert roofline_step(LLAMA, device, tp=tp).weight_read_s < roofline_step(LLAMA, device).weight_read_s
    else:
        with pytest.raises(ServefitError, match=f"32 attention heads cannot be shared by {tp} devices"):
            roofline_step(LLAMA, device, tp=tp)

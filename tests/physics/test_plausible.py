"""What cannot be true is found: published rows that lie below the floor, and none that lie above it."""

import pytest

from servefit.facts.devices import find_device
from servefit.facts.models import find_model
from servefit.physics.roofline import floor_s, implausible

H100 = find_device("h100-sxm")
LLAMA, QWEN = find_model("llama-3.1-8b"), find_model("qwen3-8b")


def test_a_tpot_below_the_weights():
    """inference-perf, KubeCon 2025: its client says 3.473 ms a token for Llama-3.1-8B on an H100; from E2E it is 7.236 ms."""
    (finding,) = implausible(LLAMA, H100, "bf16", isl=204, osl=63, tpot_s=0.003473)
    assert finding.code == "tpot_below_floor" and finding.floor_s == pytest.approx(0.00449, abs=2e-5)
    assert "GB/s" in finding.message and finding.explains
    assert implausible(LLAMA, H100, "bf16", isl=204, osl=63, tpot_s=0.007236) == ()


@pytest.mark.parametrize(("users", "ttft_ms"), [(4, 32.99), (32, 268.06)])
def test_prompts_at_once_faster_than_the_peak(users, ttft_ms):
    """silybench, Qwen3-8B on an H100: the slowest of so many prompts of 1,024 tokens came before they can have been read."""
    (finding,) = implausible(QWEN, H100, "bf16", isl=1_024, ttft_s=ttft_ms / 1e3, together=users)
    assert finding.code == "ttft_below_floor" and 0 < finding.implied_tok < 1_024
    assert floor_s(QWEN, H100, "bf16", prefill_tok=finding.implied_tok) * users <= ttft_ms / 1e3
    assert "cached prefix" in finding.explains[0]


@pytest.mark.parametrize(
    ("users", "ttft_ms", "tpot_ms"), [(1, 35.10, 6.905), (64, 1553.62, 22.003), (80, 1952.56, 26.023)]
)
def test_rows_that_can_be_true_are_left_alone(users, ttft_ms, tpot_ms):
    """The same set's rows above the floor give no finding."""
    assert (
        implausible(QWEN, H100, "bf16", isl=1_024, osl=128, ttft_s=ttft_ms / 1e3, tpot_s=tpot_ms / 1e3, together=users)
        == ()
    )


def test_m9_a_slow_prefill_is_no_impossible_one():
    """M9: 8,000 tokens in 4.21 s are 30.5 TFLOP/s: impossible on an M4 Max (14.7), possible on an RTX 4090."""
    mac, gpu = find_device("m4-max-36gb"), find_device("rtx-4090")
    (finding,) = implausible(LLAMA, mac, "q4", isl=8_000, ttft_s=4.21)
    assert 2_000 < finding.implied_tok < 4_500
    assert implausible(LLAMA, gpu, "q4", isl=8_000, ttft_s=4.21) == ()


def test_nothing_measured_is_nothing_found():
    """Absent times are no findings, and zero is not a time."""
    assert implausible(LLAMA, H100, "bf16", isl=100) == ()
    assert implausible(LLAMA, H100, "bf16", isl=100, ttft_s=0.0, tpot_s=0.0) == ()


def test_rounding_is_forgiven():
    """A time printed with two digits may lie a hair below the floor."""
    floor = floor_s(LLAMA, H100, "bf16", seqs=1, ctx_tok=101)
    assert implausible(LLAMA, H100, "bf16", isl=100, osl=2, tpot_s=floor * 0.995) == ()
    assert implausible(LLAMA, H100, "bf16", isl=100, osl=2, tpot_s=floor * 0.98)

"""The arithmetic of `check`: what fits, how fast at most. Each test names the rule that it keeps."""

import pytest

from servefit.check import fit
from servefit.facts.devices import all_devices, find_device, find_devices
from servefit.facts.models import all_models, find_model
from servefit.physics.memory import kv_bytes_per_tok, weight_bytes
from servefit.physics.roofline import ceiling_tok_per_s

PER_PARAM = 4.9e9 / 8.0e9


def test_budget_is_seventy_percent_of_unified_memory():
    """C1: 0.7 x 36 GB is 25.2 GB, the share is named and assumed, and can be changed."""
    frac, source = fit.usable_frac("unified")
    assert fit.budget_bytes(36e9, frac) == 25.2e9
    assert source.startswith("assumed")
    assert fit.budget_bytes(36e9, 0.5) == 18e9


def test_gb_per_billion_comes_from_a_model():
    """C2: 4.9 GB over 8 billion is 0.6125, and the catalogue's own 8B at 4 bits rounds to the same 0.61."""
    assert fit.bytes_per_param(4.9e9, 8.0e9) == 0.6125
    llama = find_model("llama-3.1-8b")
    assert round(fit.bytes_per_param(weight_bytes(llama, "q4_k_m"), llama.params_total), 2) == 0.61


def test_biggest_dense_model():
    """C3: 25.2 GB hold 41.14 billion parameters, which is said as about a 40B."""
    exact = fit.biggest_params(25.2e9, PER_PARAM)
    assert round(exact / 1e9, 2) == 41.14
    assert fit.rounded_down(exact) == 40 * 10**9


def test_room_left():
    """C4: beside a 40B, 0.7 GB are left: 5,340 tokens of 128 KiB."""
    room = 25.2e9 - 40 * 0.6125e9
    assert round(room / 1e9, 1) == 0.7
    assert int(room // kv_bytes_per_tok(find_model("llama-3.1-8b"))) == 5340
    assert kv_bytes_per_tok(find_model("llama-3.1-8b")) == 128 * 1024


def test_real_size_is_not_the_naive_one():
    """C5, C6: an 8B at 4 bits is 4.9 GB and 4.9 bits a weight, not 4.0 and 4."""
    row = fit.fit(find_model("llama-3.1-8b"), "q4_k_m", budget=25.2e9, bandwidth_bytes_per_s=273e9)
    assert (round(row.weight_bytes / 1e9, 1), round(row.naive_bytes / 1e9, 1)) == (4.9, 4.0)
    assert round(row.bits_per_weight, 1) == 4.9
    assert round(4.9e9 * 8 / 8.03e9, 2) == 4.88


def test_both_readings_of_the_box():
    """C7, C8: 36 GiB are 38.65 GB; seventy percent is 25.2 GB or 27.06 GB, which is 44.2 billion parameters."""
    as_gb, as_gib = fit.both_readings_bytes(36, 0.7)
    assert as_gb == 25.2e9
    assert round(as_gib / 1e9, 2) == 27.06
    assert round(fit.biggest_params(as_gib, PER_PARAM) / 1e9, 1) == 44.2


@pytest.mark.parametrize(
    ("bandwidth", "tok_per_s"), [(273e9, 55.71), (546e9, 111.43), (410e9, 83.67), (300e9, 61.22), (400e9, 81.63)]
)
def test_ceiling(bandwidth, tok_per_s):
    """C9, C10, C12: bandwidth over 4.9 GB."""
    assert round(ceiling_tok_per_s(bandwidth, 4.9e9), 2) == tok_per_s


def test_ceiling_in_milliseconds_and_band():
    """C9, C11: 17.95 ms a token at 273 GB/s; the prior band is 33.4 to 47.4 tok/s, and none is claimed for tiny models."""
    assert round(1000 / ceiling_tok_per_s(273e9, 4.9e9), 2) == 17.95
    assert [round(ceiling_tok_per_s(273e9, 4.9e9) * f, 1) for f in fit.BAND_FRAC] == [33.4, 47.4]
    assert "85%" in fit.BAND_SOURCE and "57%" in fit.BAND_SOURCE and "4167" in fit.BAND_SOURCE
    small = fit.fit(find_model("smollm2-135m"), "q4_1", budget=1e9, bandwidth_bytes_per_s=273e9)
    large = fit.fit(find_model("llama-3.1-8b"), "q4_k_m", budget=1e9, bandwidth_bytes_per_s=273e9)
    assert small.band_tok_per_s is None
    assert [round(x) for x in large.band_tok_per_s] == [33, 47]
    assert not large.fits and large.room_tok is None


def test_chips_that_ship_in_two():
    """C12: an M4 Max or M3 Max is told apart by its memory; an unlisted size gives every variant."""
    gib = 2**30
    assert [d.bandwidth_bytes_per_s for d in fit.variants("Apple M4 Max", 36 * gib)] == [410e9]
    assert [d.bandwidth_bytes_per_s for d in fit.variants("Apple M4 Max", 128 * gib)] == [546e9]
    assert [d.bandwidth_bytes_per_s for d in fit.variants("Apple M3 Max", 36 * gib)] == [300e9]
    assert [d.bandwidth_bytes_per_s for d in fit.variants("Apple M3 Max", 64 * gib)] == [400e9]
    assert {d.bandwidth_bytes_per_s for d in fit.variants("Apple M4 Max", 20 * gib)} == {410e9, 546e9}
    assert {d.bandwidth_bytes_per_s for d in find_devices("m3 max")} == {300e9, 400e9}
    assert [d.name for d in fit.variants("Apple M4 Pro", 24 * gib)] == ["m4-pro-24gb"]


def test_chip_names_as_systems_write_them():
    """The names of drivers and of /proc/cpuinfo find their row, unknown ones none."""
    assert [d.name for d in fit.variants("NVIDIA GeForce RTX 4090", 24564 * 2**20)] == ["rtx-4090"]
    assert [d.name for d in fit.variants("AMD EPYC 9654 96-Core Processor", 2**38)] == ["epyc-9654"]
    assert fit.variants("Intel(R) Xeon(R) Processor", 2**34) == ()


def test_arithmetic_intensity():
    """C14: two operations a weight: 3.27 a byte at 0.6125 bytes, times the batch."""
    assert round(fit.flop_per_byte(0.6125), 2) == 3.27
    assert fit.flop_per_byte(2.0) == 1.0 and fit.flop_per_byte(2.0, seqs=8) == 8.0


def test_how_big_and_how_fast_together():
    """C15: a 40B at 4 bits is 24.5 GB and types at most 11.1 tok/s at 273 GB/s."""
    weights = 40e9 * PER_PARAM
    assert weights == 24.5e9
    assert round(ceiling_tok_per_s(273e9, weights), 1) == 11.1


def test_a_cpu_is_in_the_list():
    """C16: the catalogue has CPUs beside GPUs and unified memory."""
    assert {d.kind for d in all_devices()} == {"gpu", "unified", "cpu"}
    assert find_device("cpu").kind == "cpu"


def test_seventy_percent_is_for_shared_memory():
    """C17: a GPU's own memory is not shared with a desktop: its share is the engine's setting, and is cited."""
    gpu, source = fit.usable_frac("gpu")
    assert gpu == 0.9 and "vLLM" in source
    assert fit.usable_frac("unified")[0] == 0.7


def test_biggest_of_the_catalogue():
    """The biggest that fits has the most parameters among those whose weights fit."""
    dense = [m for m in all_models() if not m.experts]
    found = fit.biggest_that_fits(dense, "q4_k_m", budget=6e9)
    assert weight_bytes(found, "q4_k_m") <= 6e9
    larger = [m for m in dense if m.params_total > found.params_total]
    assert larger and all(weight_bytes(m, "q4_k_m") > 6e9 for m in larger)
    assert fit.biggest_that_fits(dense, "q4_k_m", budget=1) is None

"""How big and how fast: the acceptance table's check rows, and what a seat costs and buys."""

from itertools import pairwise

import pytest

from servefit.facts.devices import find_device
from servefit.facts.models import find_model
from servefit.physics.fit import band_tok_per_s, intensity_flop_per_byte, largest_dense
from servefit.physics.memory import kv_bytes, kv_pool, request_blocks
from servefit.physics.roofline import ceiling_tok_per_s, roofline_step
from servefit.physics.steptime import step_s

LLAMA = find_model("llama-3.1-8b")


def test_c1_to_c5_36_gb():
    """C1: 25.2 GB. C2: 0.6125 GB per billion. C3: 41.14, about a 40B. C4: 0.7 GB, 5,340 tokens."""
    fit = largest_dense(36_000_000_000)
    assert fit.budget_bytes == 25_200_000_000
    assert fit.bytes_per_param == pytest.approx(0.6125)
    assert fit.biggest_params / 1e9 == pytest.approx(41.14, abs=0.005)
    assert fit.say_params == 40e9
    assert (fit.room_bytes / 1e9, fit.room_tok) == (pytest.approx(0.7), 5_340)
    assert fit.ceiling_tok_per_s is None


def test_c7_and_c8_both_readings_of_36():
    """C7: 36 GiB are 38.65 GB. C8: 70 % of that is 27.06 GB, 44.2 B."""
    memory = find_device("m4-max-36gb").memory_bytes
    fit = largest_dense(memory)
    assert memory / 1e9 == pytest.approx(38.65, abs=0.006)
    assert fit.budget_bytes / 1e9 == pytest.approx(27.06, abs=0.005)
    assert fit.biggest_params / 1e9 == pytest.approx(44.2, abs=0.05)


def test_c11_band():
    """C11: 60 to 85 % of 55.7 tok/s is 33.4 to 47.4, 29.9 to 21.1 ms."""
    low, high = band_tok_per_s(ceiling_tok_per_s(273e9, 4.9e9))
    assert (low, high) == (pytest.approx(33.4, abs=0.05), pytest.approx(47.4, abs=0.05))
    assert (1e3 / low, 1e3 / high) == (pytest.approx(29.9, abs=0.05), pytest.approx(21.1, abs=0.05))


def test_c14_intensity():
    """C14: two operations a weight: 3.27 FLOP a byte at 4 bit, times the batch."""
    assert intensity_flop_per_byte(0.6125) == pytest.approx(3.27, abs=0.005)
    assert intensity_flop_per_byte(0.6125, 8) == pytest.approx(8 * 3.265, abs=0.01)


def test_c15_size_and_pace_in_one_sentence():
    """C15: a 40B at 4 bit (24.5 GB) on 273 GB/s types at most 11.1 tok/s."""
    sentence = largest_dense(36_000_000_000, 273e9).sentence()
    assert "40B" in sentence and "24.50 GB" in sentence and "11.1 tok/s" in sentence


def test_a_small_memory_is_said_in_half_billions():
    """8 GB hold 9.1 billion parameters: "9.0B", not "5B"."""
    assert largest_dense(8_000_000_000).say_params == 9e9


def test_w_rows_of_the_whiteboard():
    """W1: 6,200 tokens at 8,000 a second are 775 ms. W2 and W3: 299 gaps of 22 ms, 7.353 s in all, 89 % of it writing."""
    reading, writing = 6_200 / 8_000, 299 * 0.022
    assert (reading, writing) == (0.775, pytest.approx(6.578))
    assert reading + writing == pytest.approx(7.353)
    assert writing / (reading + writing) == pytest.approx(0.8946, abs=5e-5)


def test_e8_seats_buy_throughput_and_cost_pace_and_memory():
    """E8: every seat adds tokens a second for all, and never shortens anybody's gap; memory is per seat."""
    device = find_device("rtx-4090")
    pool = kv_pool(LLAMA, device, "bf16", 2_048)
    step = roofline_step(LLAMA, device, "bf16", constants="vllm-4090")
    seats, ctx_tok = [1, 8, 16, 32, 53, 54, 64], 768
    blocks = request_blocks(LLAMA, ctx_tok, kv_bits=16, block_tok=pool.block_tok)
    assert [n for n in seats if n * blocks > pool.blocks] == [54, 64]
    gaps = [step_s(step, seqs=n, kv_tok=n * ctx_tok) for n in seats]
    assert gaps == sorted(gaps), "nobody's gap is shorter for one seat more"
    rates = [n / gap for n, gap in zip(seats, gaps, strict=True)]
    extra = [(b - a) / (m - n) for (n, a), (m, b) in pairwise(zip(seats, rates, strict=True))]
    assert min(extra) > 0 and extra == sorted(extra, reverse=True), "each further seat buys less"
    assert kv_bytes(LLAMA, ctx_tok) == 768 * 131_072

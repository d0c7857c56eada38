"""The formulas of a wait against the acceptance rows E1 to E5, W1 to W9, M9 to M13, by exact value."""

import pytest

from servefit.explain import formulas as f
from servefit.units import fmt

KV = 2 * 32 * 8 * 128 * 2
W = 4.9e9


def test_growth_by_bytes():
    """E4 and M11: 8,000 tokens add 21.4% to what one step of a 4.9 GB model reads."""
    assert fmt(8000 * KV / W, 3) == "0.214"
    assert fmt(f.itl_ratio(W, KV, 0, 8000), 3) == "1.214"
    assert fmt(f.itl_ratio(W, KV, 12, 8000), 3) == "1.214"


@pytest.mark.parametrize(("isl", "expected"), [(6200, 0.775), (200, 0.025)])
def test_reading(isl: int, expected: float):
    """W1 and W8: 6,200 tokens at 8,000 a second are 775 ms, 200 are 25 ms."""
    assert f.reading_s(isl, 8000) == expected


def test_reading_ratio():
    """W9: the long prompt takes 31 times the short one's reading."""
    assert f.reading_s(6200, 8000) / f.reading_s(200, 8000) == pytest.approx(31.0, abs=1e-12)


@pytest.mark.parametrize(("osl", "expected"), [(300, "6.578"), (30, "0.638"), (1, "0.000"), (0, "0.000")])
def test_writing_counts_gaps_not_tokens(osl: int, expected: str):
    """W2: 300 tokens have 299 gaps, 6.578 s at 22 ms, not 6.600; one token has none."""
    assert fmt(f.writing_s(osl, 0.022), 3) == expected


def test_totals_and_shares():
    """W3, W4 and W8: 7.353 s of which 89%, and 663 ms of which 96%, are writing."""
    long = f.reading_s(6200, 8000) + f.writing_s(300, 0.022)
    short = f.reading_s(200, 8000) + f.writing_s(30, 0.022)
    assert (fmt(long, 3), fmt(long, 1)) == ("7.353", "7.4")
    assert fmt(f.writing_s(300, 0.022) / long, 4) == "0.8946"
    assert fmt(short, 3) == "0.663"
    assert fmt(f.writing_s(30, 0.022) / short * 100, 1) == "96.2"


def test_the_courses_rounding_is_near():
    """W2 to W4: 300 gaps would give 6.600 s and 7.375 s, which round to the same 7.4 s and 89%."""
    assert fmt(300 * 0.022, 3) == "6.600"
    assert fmt(0.775 + 6.6, 3) == "7.375"
    assert fmt(6.6 / 7.375, 4) == "0.8949"


def test_implied_prefill():
    """M9: 29.0 times the short prompt's start, 1,900 tokens a second, 30.5 TFLOP/s."""
    assert fmt(4.210 / 0.145, 1) == "29.0"
    assert fmt(f.prefill_tok_per_s(8000, 4.21)) == "1,900"
    assert fmt(f.prefill_flop_per_s(8000, 4.21, 8.03e9) / 1e12, 1) == "30.5"


def test_gap_growth():
    """M10: 22.4 to 24.1 ms is 7.6%."""
    assert fmt((24.1 / 22.4 - 1) * 100, 1) == "7.6"


def test_context_from_the_gap():
    """M13: the growth speaks of 2,850 tokens; predicted gaps for 2,050, 4,096 and 8,000 are 23.62, 24.85 and 27.18 ms."""
    assert f.context_tok(0.0224, 0.0241, W, KV, 12) == 2850
    for tokens, gap_ms in ((2050, "23.62"), (4096, "24.85"), (8000, "27.18")):
        gap = 22.4 * f.itl_ratio(W, KV, 12, tokens)
        assert fmt(gap, 2) == gap_ms
        assert f.context_tok(0.0224, gap / 1000, W, KV, 12) == tokens


def test_tail_ratio():
    """M4: 190 / 145 = 1.31."""
    assert fmt(f.tail_ratio(0.145, 0.190), 2) == "1.31"


def test_a_line_shows_the_readers_numbers():
    """--show-work: each line carries the numbers that were given, not letters."""
    assert f.show_writing(300, 0.022).line == "writing = (answer tokens - 1) x gap = 299 x 22.0 ms = 6.578 s"
    assert (
        f.show_reading(6200, 8000).line == "reading = prompt tokens / prefill rate = 6,200 tok / 8,000 tok/s = 775 ms"
    )
    assert f.show_context(0.0224, 0.0241, W, KV, 12).line.endswith("= 2,850 tok")

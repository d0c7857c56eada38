"""Ceiling plus a fixed cost on Apple chips: the decode rows of llama.cpp discussion 4167, M1 to M3, nothing fitted per row."""

import statistics

import pytest

from servefit.physics.constants import find_constants
from servefit.physics.steptime import StepTime, step_s

SIZES_GB = (13.475, 7.162, 3.823)
"""The LLaMA-7B files in F16, Q8_0 and Q4_0."""

# chip and GPU cores, GB/s of the datasheet, decoded tok/s in F16, Q8_0, Q4_0: every decode row of the discussion's table
ROWS: list[tuple[str, float, float | None, float | None, float | None]] = [
    ("M1 7", 68, None, 7.92, 14.19),
    ("M1 8", 68, None, 7.91, 14.15),
    ("M1 Pro 14", 200, 12.75, 21.95, 35.52),
    ("M1 Pro 16", 200, 12.75, 22.34, 36.41),
    ("M1 Max 24", 400, 22.55, 37.81, 54.61),
    ("M1 Max 32", 400, 23.03, 40.2, 61.19),
    ("M1 Ultra 48", 800, 33.92, 55.69, 74.93),
    ("M1 Ultra 64", 800, 37.01, 59.87, 83.73),
    ("M2 8", 100, None, 12.18, 21.7),
    ("M2 10", 100, 6.72, 12.21, 21.91),
    ("M2 Pro 16", 200, 12.47, 22.7, 37.87),
    ("M2 Pro 19", 200, 13.06, 23.01, 38.86),
    ("M2 Max 30", 400, 24.16, 39.97, 60.99),
    ("M2 Max 38", 400, 24.65, 41.83, 65.95),
    ("M2 Ultra 60", 800, 39.86, 62.14, 88.64),
    ("M2 Ultra 76", 800, 41.02, 66.64, 94.27),
    ("M3 10", 100, None, 12.27, 21.34),
    ("M3 Pro 14", 150, None, 17.44, 30.65),
    ("M3 Pro 18", 150, 9.89, 17.53, 30.74),
    ("M3 Max 30", 300, 19.54, 34.3, 56.58),
    ("M3 Max 40", 400, 25.09, 42.75, 66.31),
    ("M3 Ultra 60", 800, 42.24, 63.55, 88.4),
    ("M3 Ultra 80", 800, 39.78, 63.93, 92.14),
]


def test_apple_decode_within_5_percent_in_the_median():
    """Bytes / (0.93 x bandwidth) + 6.2 ms: median error at most 5 %, where the bare ceiling is off by far more."""
    c = find_constants("llamacpp-metal")
    errors, bare = [], []
    points = [
        (band, size, rate) for _, band, *rates in ROWS for size, rate in zip(SIZES_GB, rates, strict=True) if rate
    ]
    assert len(points) >= 60
    for band, size, tok_per_s in points:
        step = StepTime(const_s=c.const_s, weight_read_s=size / (band * c.weights_eff))
        errors.append(abs(step_s(step, seqs=1, kv_tok=0) * tok_per_s - 1))
        bare.append(abs(size / band * tok_per_s - 1))
    assert statistics.median(errors) <= 0.05
    assert statistics.median(bare) > 3 * statistics.median(errors)
    assert max(errors) < 0.25


def test_the_error_is_stated():
    """Published constants say how far off they were."""
    c = find_constants("llamacpp-metal")
    assert "%" in c.error and c.source and c.date == "2026-11-30"
    assert c.weights_eff == pytest.approx(0.93) and c.const_s == pytest.approx(0.0062)

"""Gaps kept as series give the percentiles that every single gap would give, with and without numpy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servefit.engine.outcome import Gaps
from servefit.stats import spread

series = st.tuples(
    st.integers(1, 5), st.floats(1e-3, 1.0), st.integers(1, 60), st.sampled_from([0.0, 1e-4, 3e-3, -1e-6])
)


@settings(deadline=None)
@given(st.lists(series, min_size=1, max_size=40))
def test_series_are_their_gaps(rows):
    """Every percentile and the maximum are equal, the mean to rounding; the numpy way gives the same bits."""
    pytest.importorskip("numpy")
    gaps = Gaps()
    for row in rows:
        gaps.add(*row)
    every = spread(a + d * i for w, a, k, d in rows for i in range(k) for _ in range(w))
    mine = gaps.spread()
    assert (mine.n, mine.p50, mine.p90, mine.p95, mine.p99, mine.max) == (
        every.n, every.p50, every.p90, every.p95, every.p99, every.max
    )  # fmt: skip
    assert abs(mine.mean - every.mean) < 1e-12
    ranks = [1, every.n // 2 + 1, every.n]
    assert gaps._at_ranks_numpy(ranks) == gaps.at_ranks(ranks)


def test_nothing_observed_is_none():
    """No gaps: no percentile, no mean, n = 0."""
    assert Gaps().percentile(50) is None
    assert Gaps().spread().mean is None

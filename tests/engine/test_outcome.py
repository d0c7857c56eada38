"""Gaps kept as series give the percentiles that every single gap would give, with and without numpy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servefit.engine import outcome
from servefit.engine.config import EngineConfig
from servefit.engine.outcome import Gaps
from servefit.engine.simulate import simulate
from servefit.physics.steptime import StepTime
from servefit.stats import spread
from servefit.workload.requests import Request

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


def test_with_numpy_and_without_the_figures_are_the_same(monkeypatch):
    """Waits, times per token, the good ones and the most at once: the same to the bit, misses and one-token answers in it."""
    pytest.importorskip("numpy")
    step = StepTime(const_s=0.01, per_seq_s=0.003)
    asked = [Request(id=i, due_s=i * 0.011, isl=8 if i % 7 else 900, osl=1 + i % 9) for i in range(600)]
    seen = simulate(asked, EngineConfig(seats=4, kv_blocks=40), step, horizon_s=4.0)
    assert seen.unfinished and seen.rejected

    def figures():
        limits = ({}, {"ttft_s": 0.3}, {"tpot_s": 0.02}, {"e2e_s": 0.4, "ttft_s": 0.2})
        return seen.ttft_s, seen.tpot_s, seen.e2e_s, seen.in_flight_peak, *(seen.good(**limit) for limit in limits)

    fast = figures()
    monkeypatch.setattr(outcome, "_numpy", lambda _: None)
    assert fast == figures()
    assert 0 < fast[-1] < fast[-4]

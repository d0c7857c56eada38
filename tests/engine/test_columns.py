"""A schedule in columns runs as its requests do, alone and in a fleet; very many gaps fold into bins."""

import random

import pytest
from hypothesis import Phase, given, settings

from engine.strategies import configs, schedules, steps
from servefit.engine import fleet, jump
from servefit.engine.config import EngineConfig
from servefit.engine.fleet import simulate_fleet
from servefit.engine.jump import folded, kernel_compiled, simulate_jumping
from servefit.engine.outcome import Gaps
from servefit.physics.steptime import StepTime
from servefit.workload.columns import columns
from servefit.workload.workload import Lengths, Workload

STEP = StepTime(const_s=2e-3, per_seq_s=14e-6, weight_read_s=7.8e-3, per_kv_tok_s=7e-8, front_end_s=3e-3, front_end_per_tok_s=1.7e-5)  # fmt: skip
BUSY = Workload(n=300, rate_req_per_s=25.0, isl=Lengths(kind="lognormal", mean=300, sd=300.0), osl=Lengths(kind="normal", mean=60, sd=30.0))  # fmt: skip


@pytest.mark.parametrize("policy", ["none", "continuous", "chunked"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_columns_run_as_requests_do(policy, replicas):
    """Uncompiled, every column and every gap has the same bits."""
    config = EngineConfig(policy=policy, seats=8, kv_blocks=300)
    asked = columns(BUSY)
    assert simulate_fleet(asked, config, STEP, replicas=replicas) == simulate_fleet(
        list(asked), config, STEP, replicas=replicas
    )


@pytest.mark.slow
@pytest.mark.parametrize("horizon_s", [None, 5.0])
def test_compiled_columns_run_as_requests_do(monkeypatch, horizon_s):
    """Compiled, laid out by numpy and dealt out by it: the same bits again."""
    if kernel_compiled() is None:
        pytest.skip("numba is not installed")
    config = EngineConfig(seats=8, kv_blocks=300)
    asked = columns(BUSY)
    slow = simulate_fleet(list(asked), config, STEP, replicas=3, horizon_s=horizon_s)
    monkeypatch.setattr(jump, "_simulated", 10**9)
    fast = simulate_fleet(asked, config, STEP, replicas=3, horizon_s=horizon_s)
    assert repr(fast) == repr(slow)  # NaN is what never was


@given(schedules(), configs(("continuous", "chunked")), steps)
@settings(max_examples=25, deadline=None, phases=[Phase.generate])
def test_folded_gaps_are_near(requests, config, step):
    """As many gaps in all, each percentile within 0.004%, their sum too."""
    exact = simulate_jumping(requests, config, step, compiled=False).gaps
    near = folded(
        Gaps(weight=exact.weight[:], count=exact.count[:], first_s=exact.first_s[:], delta_s=exact.delta_s[:])
    )
    assert near.n == exact.n
    assert near.total_s == pytest.approx(exact.total_s, rel=4e-5)
    for p in (1, 50, 90, 99) if exact.n else ():
        assert near.percentile(p) == pytest.approx(exact.percentile(p), rel=4e-5)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_memory_of_gaps_is_bounded(monkeypatch, compiled):
    """Past a number of series they fold while the engine runs, and what the requests saw stays the same."""
    if compiled and kernel_compiled() is None:
        pytest.skip("numba is not installed")
    config = EngineConfig(seats=8, kv_blocks=300)
    asked = columns(BUSY)
    even = StepTime(const_s=0.01, per_seq_s=1e-4)
    exact = simulate_jumping(asked, config, even, compiled=compiled)
    monkeypatch.setattr(jump, "EXACT_SERIES", 400)
    near = simulate_jumping(asked, config, even, compiled=compiled)
    assert len(near.gaps.weight) < len(exact.gaps.weight) // 2
    assert (near.first_s, near.last_s, near.gaps.n) == (exact.first_s, exact.last_s, exact.gaps.n)
    assert near.gaps.percentile(99) == pytest.approx(exact.gaps.percentile(99), rel=4e-5)


def test_a_fleet_folds_between_replicas(monkeypatch):
    """The same bound holds for the gaps of all replicas together."""
    config, even = EngineConfig(seats=8), StepTime(const_s=0.01, per_seq_s=1e-4)
    exact = simulate_fleet(columns(BUSY), config, even, replicas=4)
    monkeypatch.setattr(fleet, "EXACT_SERIES", 200)
    near = simulate_fleet(columns(BUSY), config, even, replicas=4)
    assert len(near.gaps.weight) < len(exact.gaps.weight) // 2
    assert near.gaps.n == exact.gaps.n


def test_folding_falling_and_still_series():
    """Series that fall, stand still or hold one gap count in the right bins."""
    rng = random.Random(3)
    gaps = Gaps()
    for _ in range(50):
        gaps.add(rng.randrange(1, 4), rng.uniform(0.01, 0.02), rng.randrange(1, 40), rng.choice([0.0, -1e-4, 3e-4]))
    every = sorted(a + d * i for w, a, k, d in gaps.series() for i in range(k) for _ in range(w))
    near = folded(gaps)
    found = sorted(a for w, a, _, _ in near.series() for _ in range(w))
    assert found == pytest.approx(every, rel=4e-5)

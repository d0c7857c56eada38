"""Jumping between events gives what stepping gives; compiled gives what uncompiled gives, to the bit."""

import math

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from engine.strategies import configs, schedules, steps
from servefit.engine.jump import kernel_compiled, simulate_jumping
from servefit.engine.outcome import NOT_DUE
from servefit.engine.simulate import EngineConfig, simulate_stepping
from servefit.physics.steptime import StepTime
from servefit.workload.arrivals import schedule
from servefit.workload.workload import Lengths, Workload

loads = st.fixed_dictionaries(
    {
        "concurrency": st.none() | st.integers(1, 5),
        "think_s": st.sampled_from([0.0, 0.013]),
        "horizon_s": st.none() | st.floats(0.01, 3.0),
    }
)


def assert_same(jumped, stepped, tolerance=1e-9):
    """Every column and every gap is the same."""
    assert jumped.status == stepped.status
    for i, status in enumerate(stepped.status):
        if status == NOT_DUE:
            continue
        for name in ("due_s", "first_s", "last_s"):
            a, b = getattr(jumped, name)[i], getattr(stepped, name)[i]
            assert (math.isnan(a) and math.isnan(b)) or a == pytest.approx(b, abs=tolerance), (i, name, a, b)
        assert jumped.produced_tok[i] == stepped.produced_tok[i], i
        assert jumped.preempted[i] == stepped.preempted[i], i
    assert jumped.steps == stepped.steps
    assert jumped.busy_s == pytest.approx(stepped.busy_s, abs=tolerance)
    assert jumped.end_s == pytest.approx(stepped.end_s, abs=tolerance)
    assert jumped.peak_kv_blocks == stepped.peak_kv_blocks
    one, two = (
        sorted(a + d * j for w, a, k, d in out.gaps.series() for j in range(k) for _ in range(w))
        for out in (jumped, stepped)
    )
    assert one == pytest.approx(two, abs=tolerance)
    for p in (1, 50, 90, 99):
        a, b = jumped.gaps.percentile(p), stepped.gaps.percentile(p)
        assert a == pytest.approx(b, abs=tolerance)


@given(schedules(max_size=25), configs(), steps, loads)
@settings(max_examples=150, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_jumping_is_stepping(requests, config, step, load):
    """Any engine, any schedule, open and closed, with and without a horizon: equal to 1e-9."""
    jumped = simulate_jumping(requests, config, step, **load, compiled=False)
    assert_same(jumped, simulate_stepping(requests, config, step, **load))


BIG = Workload(
    n=400, rate_req_per_s=8.0, isl=Lengths(kind="lognormal", mean=700, sd=900.0), osl=Lengths(kind="normal", mean=120, sd=60.0)
)  # fmt: skip
STEP = StepTime(const_s=2e-3, per_seq_s=14e-6, weight_read_s=7.8e-3, compute_per_tok_s=6e-5, per_kv_tok_s=7e-8, per_prefill_pos_s=1e-9)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["none", "static", "dynamic", "continuous", "chunked"])
@pytest.mark.parametrize("kv_blocks", [None, 1500])
def test_jumping_is_stepping_on_a_real_size(policy, kv_blocks):
    """The same at the size of a real engine, with memory that is enough and that is not."""
    config = EngineConfig(policy=policy, seats=48, budget_tok=512, kv_blocks=kv_blocks)
    requests = schedule(BIG)
    stepped = simulate_stepping(requests, config, STEP)
    assert_same(simulate_jumping(requests, config, STEP, compiled=False), stepped, tolerance=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["dynamic", "continuous", "chunked"])
def test_compiled_is_uncompiled(policy):
    """Compiled by numba, the same source gives the same bits."""
    if kernel_compiled() is None:
        pytest.skip("numba is not installed")
    config = EngineConfig(policy=policy, seats=48, budget_tok=512, kv_blocks=1500)
    requests = schedule(BIG)
    a = simulate_jumping(requests, config, STEP, compiled=False)
    b = simulate_jumping(requests, config, STEP, compiled=True)
    assert a.first_s.tobytes() == b.first_s.tobytes()
    assert a.last_s.tobytes() == b.last_s.tobytes()
    assert a.gaps.first_s.tobytes() == b.gaps.first_s.tobytes()
    assert a == b

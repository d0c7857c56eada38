"""Random engines, step times and schedules for the property tests of the engine."""

from hypothesis import strategies as st

from servefit.engine.simulate import EngineConfig
from servefit.physics.steptime import StepTime
from servefit.workload.requests import Request

steps = st.builds(
    StepTime,
    const_s=st.floats(1e-4, 2e-2),
    per_seq_s=st.floats(0, 1e-3),
    per_prefill_tok_s=st.floats(0, 1e-4),
    per_prefill_pos_s=st.floats(0, 1e-7),
    ragged_tok_s=st.sampled_from([0.0, 5e-5]),
    per_kv_tok_s=st.floats(0, 1e-5),
    weight_read_s=st.floats(0, 2e-2),
    compute_per_tok_s=st.floats(0, 1e-4),
    compute_per_seq_s=st.sampled_from([0.0, 1e-4]),
    expert_read_s=st.sampled_from([0.0, 1e-2]),
    expert_active_frac=st.just(0.25),
    change_s=st.sampled_from([0.0, 2e-3]),
    per_prompt_s=st.sampled_from([0.0, 3e-3]),
    front_serial_s=st.sampled_from([0.0, 1e-3]),
    bend=st.sampled_from([(), ((2, 0.001), (5, 0.004), (40, 0.002))]),
    p_norm=st.sampled_from([1.0, 1.5, 2.0, float("inf")]),
    front_end_s=st.sampled_from([0.0, 3e-3]),
    front_end_per_tok_s=st.sampled_from([0.0, 1.7e-6]),
)
POLICIES = ("none", "static", "dynamic", "continuous", "chunked")


@st.composite
def configs(draw, policies=POLICIES):
    """Small engines, so that seats, budget and memory all get short."""
    seats = draw(st.integers(1, 6))
    return EngineConfig(
        policy=draw(st.sampled_from(policies)),
        seats=seats,
        budget_tok=draw(st.integers(seats, 64)),
        kv_blocks=draw(st.none() | st.integers(4, 24)),
        block_tok=draw(st.sampled_from([1, 4, 16])),
        timeout_s=draw(st.sampled_from([0.0, 0.05, 0.3])),
        reserve_prompt=draw(st.booleans()),
    )


@st.composite
def schedules(draw, max_size=14):
    """Open-loop requests in due order."""
    gaps = draw(st.lists(st.floats(0, 0.4), min_size=1, max_size=max_size))
    due, out = 0.0, []
    for i, gap in enumerate(gaps):
        due = round((due + gap) * 1e6) / 1e6
        isl, osl = draw(st.integers(1, 90)), draw(st.integers(1, 40))
        out.append(Request(id=i, due_s=due, isl=isl, osl=osl))
    return tuple(out)

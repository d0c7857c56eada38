"""Several replicas: routers do what they say, parts add up, and prefill elsewhere costs its transfer."""

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from engine.strategies import configs, schedules, steps
from engine.test_jump import assert_same
from servefit.engine.config import EngineConfig
from servefit.engine.fewest import fleet_compiled, simulate_fewest
from servefit.engine.fleet import Disaggregation, _drive, simulate_fleet, simulate_fleet_run
from servefit.engine.simulate import outcome_of, simulate_stepping
from servefit.errors import ServefitError
from servefit.physics.steptime import StepTime
from servefit.workload.requests import Request
from servefit.workload.workload import Workload

STEP = StepTime(const_s=0.01, per_kv_tok_s=1e-6, per_prefill_tok_s=1e-5)


def asked(n, gap_s=0.0, osl=10, isl=100, **fields):
    """`n` equal requests."""
    return [Request(id=i, due_s=i * gap_s, isl=isl, osl=osl, **fields) for i in range(n)]


@given(schedules(), configs(), steps, st.none() | st.floats(0.05, 3.0))
@settings(max_examples=40, deadline=None, phases=[Phase.generate])
def test_in_turn_is_the_same_apart_and_together(requests, config, step, horizon_s):
    """Round robin: replicas that jump by themselves give what stepping them together gives, but for idle replicas' end.

    Each replica has a front end of its own; stepped together they share one, so it is not serial here.
    """
    step = replace(step, front_serial_s=0.0)
    apart = simulate_fleet(requests, config, step, replicas=3, horizon_s=horizon_s)
    arrivals, servers = _drive(
        requests, config, step, replicas=3, router="round-robin", concurrency=None, think_s=0.0, horizon_s=horizon_s, disaggregation=None
    )  # fmt: skip
    if config.policy == "static":
        return  # together, a part batch waits until nobody comes to any replica; apart, until nobody comes to this one
    assert_same(apart, outcome_of(arrivals.sequences, arrivals.issued, servers, horizon_s))


@given(schedules(max_size=25), configs(("continuous", "chunked")), steps, st.integers(1, 4))
@settings(max_examples=120, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_the_fewest_jumping_is_stepping(requests, config, step, replicas):
    """A router that counts: replicas that jump together give what stepping them gives, to 1e-9."""
    arrivals, servers = _drive(
        requests, config, step, replicas=replicas, router="least-outstanding", concurrency=None, think_s=0.0, horizon_s=None, disaggregation=None
    )  # fmt: skip
    stepped = outcome_of(arrivals.sequences, arrivals.issued, servers, None)
    assert_same(simulate_fewest(requests, config, step, replicas=replicas, compiled=False), stepped)


@pytest.mark.slow
def test_the_fewest_compiled_is_uncompiled():
    """The same bits, past the first room of every queue and of the gaps."""
    if fleet_compiled() is None:
        pytest.skip("numba is not installed")
    requests = asked(600, gap_s=0.002, osl=30)
    config = EngineConfig(seats=6, kv_blocks=90)
    fast = simulate_fewest(requests, config, STEP, replicas=3, compiled=True)
    assert fast == simulate_fewest(requests, config, STEP, replicas=3, compiled=False)


@given(schedules(), configs(), steps, st.sampled_from(["round-robin", "least-outstanding", "prefix-aware"]))
@settings(max_examples=40, deadline=None, phases=[Phase.generate])
def test_one_replica_is_no_fleet(requests, config, step, router):
    """A fleet of one is the engine, whatever the router."""
    one = simulate_fleet(requests, config, step, replicas=1, router=router, concurrency=3)
    assert_same(one, simulate_stepping(requests, config, step, concurrency=3))


def test_least_outstanding_avoids_the_busy_one():
    """One long request keeps a replica busy: the next four go to the other three and, done there, again."""
    requests = [Request(id=0, due_s=0.0, isl=10, osl=500), *asked(5, osl=2)[1:]]
    run = simulate_fleet_run(Workload(concurrency=None, n=5), EngineConfig(), STEP, replicas=4, router="least-outstanding", requests=requests)  # fmt: skip
    by_id = {row.id: row.replica for row in run.rows}
    assert [by_id[str(i)] for i in range(4)] == [0, 1, 2, 3]
    late = [*requests, Request(id=9, due_s=3.0, isl=10, osl=2)]
    run = simulate_fleet_run(Workload(n=6), EngineConfig(), STEP, replicas=2, router="least-outstanding", requests=late)
    assert {row.id: row.replica for row in run.rows}["9"] == 1


def test_prefix_aware_goes_where_the_prefix_is():
    """Four conversations that come back: prefix-aware routing finds every prefix again, round robin not."""
    prefixes = [tuple(range(100 * g, 100 * g + 6)) for g in (0, 1, 2)]
    requests = [Request(id=i, due_s=float(i), isl=100, osl=2, prefix=prefixes[i % 3]) for i in range(12)]
    config = EngineConfig(prefix_cache=True)
    cached = {
        router: simulate_fleet(requests, config, STEP, replicas=2, router=router).cached_tok
        for router in ("round-robin", "prefix-aware")
    }
    assert cached["prefix-aware"] == 9 * 96
    assert cached["round-robin"] < cached["prefix-aware"]


def test_prefill_elsewhere_costs_the_transfer_once():
    """One request: the second token comes a transfer later than it would have, every other one in step."""
    request = asked(1, osl=5)
    link = Disaggregation(prefill_replicas=1, kv_bytes_per_tok=1000.0, link_bytes_per_s=1e6, link_latency_s=0.005)
    together = simulate_fleet(request, EngineConfig(), STEP, replicas=1)
    apart = simulate_fleet(request, EngineConfig(), STEP, replicas=2, disaggregation=link)
    assert link.transfer_s(100) == pytest.approx(0.105)
    assert apart.first_s[0] == pytest.approx(together.first_s[0])
    assert apart.last_s[0] == pytest.approx(together.last_s[0] + 0.105)
    assert apart.gaps.percentile(99) == pytest.approx(0.105 + 0.01 + 101e-6)


def test_prefill_elsewhere_keeps_decodes_smooth():
    """Long prompts beside decodes stall them; computed elsewhere they do not."""
    requests = asked(20, gap_s=0.15, osl=40, isl=3000)
    step = StepTime(const_s=0.01, per_prefill_tok_s=1e-4)
    link = Disaggregation(prefill_replicas=1, kv_bytes_per_tok=1.0, link_bytes_per_s=1e9)
    config = EngineConfig(budget_tok=4096)
    together = simulate_fleet(requests, config, step, replicas=2)
    apart = simulate_fleet(requests, config, step, replicas=2, disaggregation=link)
    assert together.gaps.percentile(99) > 0.3
    assert apart.gaps.percentile(99) == pytest.approx(0.01, abs=1e-4)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"replicas": 0}, "replicas is 0"),
        ({"replicas": 2, "router": "random"}, "no router 'random'"),
        ({"replicas": 1, "disaggregation": Disaggregation(prefill_replicas=1, kv_bytes_per_tok=1.0, link_bytes_per_s=1.0)}, "none is left"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(fields, words):
    """A fleet that cannot be is refused with its value."""
    with pytest.raises(ServefitError, match=words):
        simulate_fleet(asked(1), EngineConfig(), STEP, **fields)

"""Capacity of a closed loop in users, and goodput without the luck of its arrivals."""

from dataclasses import replace

import pytest

from servefit.engine.config import EngineConfig
from servefit.objectives import Targets
from servefit.physics.steptime import StepTime
from servefit.plan.capacity import MOST_USERS, capacity
from servefit.plan.scenario import Scenario, figures_of, hold, run, value_of, with_users
from servefit.workload.arrivals import schedule
from servefit.workload.workload import Lengths, Workload

STEP = StepTime(const_s=0.010, per_seq_s=0.001)


def closed(users, *, seats=64, **targets):
    """Users of a closed loop, each asking five times for 10 tokens; a step takes 10 ms and 1 ms a sequence."""
    w = Workload(n=5 * users, concurrency=users, isl=Lengths(mean=4), osl=Lengths(mean=10))
    return Scenario(
        schedules=(schedule(w),), concurrency=users, config=EngineConfig(policy="continuous", seats=seats), step=STEP,
        targets=Targets(**targets), memory_frac=0.5,
    )  # fmt: skip


@pytest.mark.parametrize("asked", [3, 10, 15])
def test_a_closed_loop_carries_as_many_users_as_its_pace_allows(asked):
    """With everybody decoding a step takes 10 + c ms, so a TPOT of 20.5 ms holds up to 10 users, wherever one starts."""
    found = capacity(closed(asked, tpot_s=0.0205))
    assert (found.users, found.fails_at_users, found.limited_by) == (10, 11, "tpot")
    assert found.req_per_s == pytest.approx(10 / (0.01 + 9 * 0.02), rel=0.05)


def test_more_seats_than_users_buy_no_users():
    """Two seats under the same pace: a third user waits, so TTFT and not TPOT ends it; 64 seats carry what the pace does."""
    narrow, wide = (capacity(closed(2, seats=s, ttft_s=0.05, tpot_s=0.0205)) for s in (2, 64))
    assert (narrow.users, narrow.limited_by) == (2, "ttft")
    assert wide.users == 10


def test_what_nobody_carries_and_what_everybody_does():
    """Not even one user: None. Never a failure: the edge is not reached, and it says how far it went."""
    assert capacity(closed(4, tpot_s=0.005)) is None
    found = capacity(closed(2, tpot_s=10.0))
    assert (found.users, found.limited_by, found.fails_at_users) == (2 * MOST_USERS, "edge not reached", None)


def test_more_users_ask_as_often():
    """Twice the users ask twice the requests, ids differ, and a ramp takes as long as before."""
    w = Workload(n=12, concurrency=4, ramp_s=4.0, isl=Lengths(mean=4), osl=Lengths(mean=10))
    base = replace(closed(4, tpot_s=1.0), schedules=(schedule(w),))
    (more,) = with_users(base, 8).schedules
    assert len(more) == 24 and len({r.id for r in more}) == 24
    assert [r.due_s for r in more[:9]] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 0.0]
    assert with_users(base, 4).schedules == base.schedules


def test_goodput_has_no_luck_of_the_arrivals_in_it():
    """Sixty Poisson requests at 4/s, all of them good: 4 good requests a second, with an interval of no width."""
    w = Workload(n=60, rate_req_per_s=4.0, isl=Lengths(mean=4), osl=Lengths(mean=10))
    scenario = Scenario(
        schedules=tuple(schedule(replace(w, seed=k)) for k in range(3)), offered_req_per_s=4.0, config=EngineConfig(),
        step=STEP, targets=Targets(ttft_s=1.0, goodput_req_per_s=3.9), memory_frac=0.5,
    )  # fmt: skip
    _, checks = hold(scenario, error_frac=0.1, one_sided=False)
    (goodput,) = [c for c in checks if c.name == "goodput"]
    assert (goodput.value, goodput.interval, goodput.verdict) == (4.0, (4.0, 4.0), "pass")


def test_an_engine_that_falls_behind_delivers_what_it_delivers():
    """No latency is promised, but one seat serves 9 a second of 40 offered: goodput is what came out."""
    w = Workload(n=400, rate_req_per_s=40.0, isl=Lengths(mean=4), osl=Lengths(mean=10))
    scenario = Scenario(
        schedules=(schedule(w),), offered_req_per_s=40.0, config=EngineConfig(policy="none"), step=STEP,
        targets=Targets(goodput_req_per_s=20.0), memory_frac=0.5,
    )  # fmt: skip
    figures = figures_of(run(scenario), scenario)
    assert figures.waiting_at_end
    assert value_of("goodput", figures, scenario) == pytest.approx(1 / 0.11, rel=0.02)

"""A load that comes in pieces gives what the same load gives as a whole, and its memory is that of its queue."""

import math
from array import array

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from engine.strategies import configs, schedules, steps
from servefit.engine import flow, kernel, totals
from servefit.engine.config import EngineConfig
from servefit.engine.fleet import simulate_fleet
from servefit.engine.flow import can_flow, simulate_flow
from servefit.engine.jump import kernel_compiled
from servefit.engine.outcome import OK
from servefit.engine.totals import Limits
from servefit.physics.steptime import StepTime
from servefit.stats import percentile
from servefit.workload.columns import Columns, columns, pieces
from servefit.workload.requests import Request
from servefit.workload.workload import Lengths, Workload

pytestmark = pytest.mark.skipif(kernel_compiled() is None, reason="numba is not installed")

STEP = StepTime(const_s=2e-3, per_seq_s=14e-6, weight_read_s=7.8e-3, per_kv_tok_s=7e-8, front_end_s=3e-3, front_end_per_tok_s=1.7e-5, front_serial_s=1e-3)  # fmt: skip
BUSY = Workload(n=900, rate_req_per_s=25.0, isl=Lengths(kind="lognormal", mean=300, sd=300.0), osl=Lengths(kind="normal", mean=60, sd=30.0))  # fmt: skip
NEAR = 4e-5
LIMITS = Limits(ttft_s=0.3, tpot_s=0.02, e2e_s=1.5)


def slowly(requests, *args, size, **fields):
    """Piece by piece, uncompiled: numpy's numbers warn where a random step time is next to nothing, Python's and numba's do not."""
    import numpy as np

    with np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(totals, "BLOCK", 1)
        return simulate_flow(cut(requests, size), *args, limits=LIMITS, compiled=False, **fields)


def cut(requests, size):
    """The requests in pieces of that size."""
    every = Columns(
        due_s=array("d", (r.due_s for r in requests)),
        isl=array("q", (r.isl for r in requests)),
        osl=array("q", (r.osl for r in requests)),
    )
    return [every[i : i + size] for i in range(0, len(requests), size)]


def assert_same(found, whole):
    """Counts, clocks and maxima have the same bits; percentiles are within a bin, means within rounding."""
    assert (found.n, found.finished, found.rejected) == (whole.n, whole.finished, whole.rejected)
    assert found.n == found.finished + found.rejected
    assert (found.steps, found.end_s, found.duration_s) == (whole.steps, whole.end_s, whole.duration_s)
    assert found.busy_s == whole.busy_s
    assert found.peak_kv_blocks == whole.peak_kv_blocks
    assert found.preemptions == sum(whole.preempted)
    assert found.output_tok == whole.output_tok
    assert found.in_flight_peak == whole.in_flight_peak
    assert found.good == whole.good(ttft_s=LIMITS.ttft_s, tpot_s=LIMITS.tpot_s, e2e_s=LIMITS.e2e_s)
    for name, wanted in whole.spreads().items():
        mine = getattr(found, name)
        assert mine.n == wanted.n, name
        if wanted.n:
            assert mine.max == pytest.approx(wanted.max, rel=1e-12), name
            assert mine.mean == pytest.approx(wanted.mean, rel=1e-12), name
            for p in ("p50", "p90", "p95", "p99"):
                assert getattr(mine, p) == pytest.approx(getattr(wanted, p), rel=NEAR, abs=1e-6), (name, p)
    for name, by_percentile in found.failures_as_inf.items():
        values = [*getattr(whole, name), *[math.inf] * whole.rejected]
        for p, at in by_percentile.items():
            wanted_s = percentile(values, p)
            assert at == wanted_s if wanted_s is None else at == pytest.approx(wanted_s, rel=NEAR, abs=1e-6), (name, p)
    assert found.input_tok == sum(isl for s, isl in zip(whole.status, whole.isl, strict=True) if s == OK)
    rows = [(d, f) for s, d, f in zip(whole.status, whole.due_s, whole.first_s, strict=True) if s == OK]
    half = len(rows) // 2
    for mine, part in ((found.early_wait_s, rows[:half]), (found.late_wait_s, rows[half:])):
        assert mine == pytest.approx(math.fsum(f - d for d, f in part) / max(len(part), 1), rel=1e-9, abs=1e-12)
    last = max(whole.due_s)
    assert found.late == sum(f > last for _, f in rows)


@given(schedules(max_size=25), configs(), steps, st.sampled_from([1, 2, 7, 100]), st.integers(1, 4))
@settings(max_examples=120, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_pieces_in_turn_are_the_whole(requests, config, step, size, replicas):
    """Any engine and schedule, dealt in turn, in pieces of any size: preempted, refused and overtaken ones in it."""
    found = slowly(requests, config, step, size=size, replicas=replicas)
    assert_same(found, simulate_fleet(requests, config, step, replicas=replicas))


@given(schedules(max_size=25), configs(("continuous", "chunked")), steps, st.sampled_from([1, 2, 7, 100]), st.integers(1, 4))  # fmt: skip
@settings(max_examples=120, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_pieces_to_the_fewest_are_the_whole(requests, config, step, size, replicas):
    """The same where each goes to the replica with the fewest not done."""
    router = "least-outstanding"
    found = slowly(requests, config, step, size=size, replicas=replicas, router=router)
    assert_same(found, simulate_fleet(requests, config, step, replicas=replicas, router=router))


@pytest.mark.parametrize("policy", ["none", "dynamic", "continuous", "chunked"])
@pytest.mark.parametrize("router", ["round-robin", "least-outstanding"])
def test_memory_is_short_and_the_rest_holds(monkeypatch, policy, router):
    """A long queue, many preemptions, a kernel that asks for room for gaps: still the whole, drawn in pieces."""
    config = EngineConfig(policy=policy, seats=6, budget_tok=512, kv_blocks=120)
    if not can_flow(config, router):
        return
    monkeypatch.setattr(totals, "BLOCK", 1)
    monkeypatch.setattr(flow, "_SERIES", 100)
    whole = simulate_fleet(columns(BUSY), config, STEP, replicas=3, router=router)
    for size in (13, 400):
        found = simulate_flow(
            pieces(BUSY, size), config, STEP, replicas=3, router=router, limits=LIMITS, compiled=False
        )
        assert_same(found, whole)
    assert found.rejected or policy == "none"
    assert found.preemptions or policy not in {"continuous", "chunked"}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["none", "dynamic", "continuous", "chunked"])
@pytest.mark.parametrize("router", ["round-robin", "least-outstanding"])
def test_compiled_is_uncompiled(policy, router):
    """Compiled by numba: the same totals, to the bit."""
    config = EngineConfig(policy=policy, seats=6, budget_tok=512, kv_blocks=120)
    if not can_flow(config, router):
        return
    slow, fast = (
        simulate_flow(pieces(BUSY, 50), config, STEP, replicas=3, router=router, compiled=compiled)
        for compiled in (False, True)
    )
    assert fast == slow


def test_places_are_used_again(monkeypatch):
    """Ten times as many requests need no more places: the arrays grow with the queue, not with the load."""
    seen = []
    given_back = flow._Fleet.give_back
    monkeypatch.setattr(
        flow._Fleet, "give_back", lambda fleet, count: (seen.append(len(fleet._number)), given_back(fleet, count))
    )
    light = Workload(n=3000, rate_req_per_s=3.0, isl=Lengths(mean=50), osl=Lengths(mean=4))
    simulate_flow(pieces(light, 50), EngineConfig(seats=8), STEP, compiled=False)
    assert len(seen) > 50
    assert max(seen) <= 2 * 50 + 20


def test_nobody_is_there_who_has_left():
    """Each is answered before the next comes: never two at once, though a replica stops before its last is let in."""
    asked = [Request(id=i, due_s=float(i), isl=8, osl=3) for i in range(40)]
    found = slowly(asked, EngineConfig(seats=4), STEP, size=7, replicas=3)
    assert found.in_flight_peak == 1


def test_no_heap_remembers_who_is_gone(monkeypatch):
    """A place given to someone else, on another replica, is in no heap any more: it could end an answer there too soon."""
    given_back, left = flow._Fleet.give_back, []

    def checked(fleet, count):
        for heap, scalars in zip(fleet._queues[3], fleet._scalars, strict=True):
            finish, entries = fleet._whole[kernel.FINISH], heap[: scalars[kernel.HEAPED]]
            left.append(sum(finish[entries % (1 << 32)] != entries))
        given_back(fleet, count)
        for heap, scalars in zip(fleet._queues[3], fleet._scalars, strict=True):
            entries = heap[: scalars[kernel.HEAPED]]
            assert (finish[entries % (1 << 32)] == entries).all()
            assert all(entries[j] >= entries[(j - 1) // 2] for j in range(1, len(entries)))

    monkeypatch.setattr(flow._Fleet, "give_back", checked)
    config = EngineConfig(seats=6, budget_tok=512, kv_blocks=60)
    simulate_flow(pieces(BUSY, 13), config, STEP, replicas=3, compiled=False)
    assert sum(left) > 0


@pytest.mark.parametrize("router", ["round-robin", "least-outstanding"])
@pytest.mark.parametrize("size", [1, 2, 7])
def test_those_due_at_once_queue_in_the_front_end(router, size):
    """A front end that lets them through one by one goes on with the next piece, and holds back who comes out later."""
    step = StepTime(const_s=2e-3, front_end_s=1e-3, front_end_per_tok_s=2e-4, front_serial_s=4e-3)
    asked = [Request(id=i, due_s=i // 9 * 0.005, isl=1 + 37 * i % 90, osl=1 + i % 3) for i in range(90)]
    found = slowly(asked, EngineConfig(seats=4), step, size=size, replicas=2, router=router)
    assert_same(found, simulate_fleet(asked, EngineConfig(seats=4), step, replicas=2, router=router))


def test_what_steps_does_not_flow():
    """Prefix caches are stepped through, and the router that counts knows no padded batches."""
    assert can_flow(EngineConfig())
    assert not can_flow(EngineConfig(prefix_cache=True))
    assert not can_flow(EngineConfig(policy="static"), "least-outstanding")
    assert not can_flow(EngineConfig(), "prefix-aware")

"""Schedules: the same seed, the same bytes; means where they should be; what cannot be is one sentence."""

import statistics
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servefit.errors import ServefitError
from servefit.workload.arrivals import schedule
from servefit.workload.requests import schedule_sha256
from servefit.workload.workload import Lengths, Workload

GOLDEN_SHA256 = "9918052acb091e8799466cd2b5f2833702d2544efbacce0ae0da7a3375238eac"


def test_same_seed_same_bytes():
    """A schedule's hash is written down here: it is the same on any machine."""
    workload = Workload(
        n=200, rate_req_per_s=5.0, isl=Lengths(kind="lognormal", mean=300, sd=200.0), osl=Lengths(kind="normal", mean=80, sd=30.0), seed=7
    )  # fmt: skip
    assert schedule_sha256(schedule(workload)) == GOLDEN_SHA256


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), rate=st.floats(0.01, 1000), kind=st.sampled_from(["poisson", "constant", "gamma"]))
def test_due_times_are_sorted_whole_microseconds(seed, rate, kind):
    """Due times never go back and are whole microseconds, whatever the arrival process."""
    requests = schedule(Workload(n=30, rate_req_per_s=rate, arrivals=kind, burstiness=0.5, seed=seed))
    dues = [r.due_s for r in requests]
    assert dues == sorted(dues)
    assert all(due == round(due * 1e6) / 1e6 for due in dues)


@pytest.mark.parametrize(("kind", "shape", "cv"), [("poisson", 1.0, 1.0), ("gamma", 0.25, 2.0), ("gamma", 4.0, 0.5)])
def test_rate_and_burstiness_are_met(kind, shape, cv):
    """The mean gap is 1/rate and its coefficient of variation 1/sqrt(shape), within 5 standard errors."""
    dues = [r.due_s for r in schedule(Workload(n=20_000, rate_req_per_s=10.0, arrivals=kind, burstiness=shape))]
    gaps = [b - a for a, b in pairwise(dues)]
    assert statistics.fmean(gaps) == pytest.approx(0.1, rel=5 * cv / 20_000**0.5)
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(cv, rel=0.08)


def test_lengths_never_move_the_arrivals():
    """Two workloads that differ only in lengths have the same due times: streams have one purpose each."""
    one = schedule(Workload(n=50, rate_req_per_s=2.0, seed=3))
    two = schedule(Workload(n=50, rate_req_per_s=2.0, seed=3, osl=Lengths(kind="uniform", mean=64, sd=20.0)))
    assert [r.due_s for r in one] == [r.due_s for r in two]
    assert [r.osl for r in one] != [r.osl for r in two]


def test_stages_change_the_rate_and_say_how_many():
    """Constant arrivals at 10/s for 1 s, nothing for 1 s, then 20/s for 1 s: 30 requests at those moments."""
    requests = schedule(Workload(n=1, stages=((10.0, 1.0), (0.0, 1.0), (20.0, 1.0)), arrivals="constant"))
    assert len(requests) == 30
    assert [r.due_s for r in requests[:10]] == [i / 10 for i in range(10)]
    assert requests[10].due_s == 2.0
    assert requests[11].due_s == 2.05


def test_closed_loop_ramps_its_users():
    """Four users over two seconds start half a second apart; the other requests wait for a user."""
    dues = [r.due_s for r in schedule(Workload(n=6, concurrency=4, ramp_s=2.0))]
    assert dues == [0.0, 0.5, 1.0, 1.5, 0.0, 0.0]


def test_turns_carry_the_conversation():
    """The second turn's prompt holds the first prompt and answer, and its prefix starts with the first one's blocks."""
    first, second, other, _ = schedule(
        Workload(n=4, rate_req_per_s=1.0, turns=2, isl=Lengths(mean=64), osl=Lengths(mean=32))
    )
    assert (first.isl, second.isl) == (64, 64 + 32 + 64)
    assert second.prefix[: len(first.prefix)] == first.prefix != ()
    assert first.session == second.session != other.session
    assert not set(other.prefix) & set(second.prefix)


def test_shared_prefix_is_shared_within_a_group():
    """160 shared tokens are 10 blocks of 16, the same for everyone in a group."""
    requests = schedule(
        Workload(n=40, rate_req_per_s=1.0, shared_prefix_tok=160, prefix_groups=2, isl=Lengths(mean=100))
    )
    assert {len(r.prefix) for r in requests} == {10}
    assert {r.isl for r in requests} == {260}
    assert len({r.prefix for r in requests}) == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "neither rate nor concurrency"),
        ({"rate_req_per_s": 1.0, "concurrency": 2}, "rate_req_per_s and concurrency"),
        ({"rate_req_per_s": -3.0}, "rate_req_per_s is -3.0"),
        ({"rate_req_per_s": float("nan")}, "rate_req_per_s is nan"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": 1, "n": 0}, "n is 0"),
        ({"rate_req_per_s": 1.0, "isl": Lengths(mean=0)}, "isl is 0 tokens"),
        ({"rate_req_per_s": 1.0, "osl": Lengths(min=5, max=2)}, "osl.max 2 is below osl.min 5"),
        ({"stages": ((0.0, 1.0),)}, "too short for a single request"),
        ({"n": 999_999_999, "concurrency": 1}, "n is 999,999,999"),
        ({"rate_req_per_s": 1e-300}, "rate_req_per_s is 1e-300"),
    ],
)
def test_what_cannot_be_is_one_sentence(fields, words):
    """A workload that cannot be asked is refused with its value."""
    with pytest.raises(ServefitError, match=words):
        schedule(Workload(**fields))

"""When requests are due, with no clock at all."""

import tracemalloc
from dataclasses import replace

import pytest

from servefit.measure.pace import ClosedLoop, OpenLoop
from servefit.workload.arrivals import schedule
from servefit.workload.workload import Lengths, Workload

TALKS = {"n": 6, "turns": 3, "isl": Lengths(mean=32), "osl": Lengths(mean=8)}


def test_an_open_loop_keeps_its_schedule():
    """Requests come at their due times, whatever became of the ones before."""
    requests = schedule(Workload(n=3, rate_req_per_s=2.0, arrivals="constant"))
    pace = OpenLoop(requests, 1_000)
    assert [pace.take(0) for _ in range(3)] == [(0, None, 1_000), (1, None, 500_001_000), (2, None, 1_000_001_000)]
    assert pace.due_ns() is None


def test_a_turn_waits_for_the_one_before_in_an_open_loop():
    """A later turn is due when its session's answer came and was thought about, never before."""
    requests = schedule(Workload(**TALKS, rate_req_per_s=2.0, arrivals="constant"))
    pace = OpenLoop(requests, 0, think_s=1.0)
    assert [pace.take(0)[0], pace.take(0)[0], pace.due_ns()] == [0, 3, None]
    pace.ended(None, requests[3].session, 700)
    assert pace.take(0) == (4, None, 1_000_000_700)
    assert pace.due_ns() is None


def test_a_session_stays_with_its_user_in_a_closed_loop():
    """Two users hold a session each; neither starts its next turn before its answer came."""
    requests = schedule(Workload(**TALKS, concurrency=2))
    pace = ClosedLoop(requests, 0, concurrency=2)
    assert [pace.take(0)[:2], pace.take(0)[:2], pace.due_ns()] == [(0, 0), (3, 1), None]
    pace.ended(1, 1, 50)
    assert pace.take(50) == (4, 1, 50)
    pace.ended(1, 1, 60)
    assert pace.take(60) == (5, 1, 60)
    pace.ended(1, 1, 70)
    assert pace.due_ns() is None, "user 1 has nothing left to ask, and session 0 is user 0's"
    pace.ended(0, 0, 80)
    assert pace.take(80)[:2] == (1, 0)


def test_a_schedule_out_of_order_is_sent_in_order():
    """Requests that are given in another order go out when they are due; equal times in the order given."""
    requests = schedule(Workload(n=4, rate_req_per_s=1.0, arrivals="constant"))
    given = [requests[3], requests[1], replace(requests[2], due_s=1.0), requests[0]]
    pace = OpenLoop(given, 7)
    assert [pace.take(0) for _ in given] == [(3, None, 7), (1, None, 1_000_000_007), (2, None, 1_000_000_007), (0, None, 3_000_000_007)]  # fmt: skip


def test_the_clock_may_begin_after_the_schedule_was_read():
    """Reading a long schedule takes seconds: due times count from when the load begins."""
    requests = schedule(Workload(n=2, rate_req_per_s=2.0, arrivals="constant"))
    pace = OpenLoop(requests)
    pace.begin(1_000)
    assert [pace.take(0)[2], pace.take(0)[2]] == [1_000, 500_001_000]
    users = ClosedLoop(requests, concurrency=2, ramp_s=1.0)
    users.begin(5)
    assert users.due_ns() == 5 and users.take(9)[:2] == (0, 0) and users.due_ns() == 500_000_005


def test_single_requests_go_between_sessions_in_a_closed_loop():
    """A user takes the next request that nobody has begun, and a session that it has begun to its end."""
    single = schedule(Workload(n=2, concurrency=1))
    talk = schedule(Workload(**TALKS | {"n": 3}, concurrency=1))
    mixed = [single[0], *talk[:2], single[1], talk[2]]
    pace = ClosedLoop(mixed, concurrency=1)
    order = []
    for _ in mixed:
        order.append(pace.take(0)[0])
        pace.ended(0, None, 0)
    assert order == [0, 1, 2, 4, 3] and pace.due_ns() is None


@pytest.mark.parametrize("make", [OpenLoop, lambda requests: ClosedLoop(requests, concurrency=8)])
def test_a_request_that_waits_takes_a_few_bytes(make):
    """A loop holds at most 20 bytes a request beside the schedule: a day has millions."""
    requests = schedule(Workload(n=4_000, rate_req_per_s=100.0))
    tracemalloc.start()
    try:
        pace = make(requests)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pace.due_ns() is not None
    assert held < 20 * 4_000

"""When requests are due, with no clock at all."""

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

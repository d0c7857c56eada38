"""Both edges of the passing range, the target that sets each, and the device that never passes."""

from dataclasses import replace

from plan.make import candidate
from servefit.plan.edges import device_failures, groups, seat_range, too_close


def test_both_edges_with_the_target_that_sets_each():
    """Too few seats miss TTFT, too many miss TPOT: 8 to 16 pass between 4 and 32."""
    members = [
        candidate(4, ttft=0.5, tpot=0.005),
        candidate(8, ttft=0.06, tpot=0.006),
        candidate(16, ttft=0.05, tpot=0.009),
        candidate(32, ttft=0.05, tpot=0.015),
    ]
    found = seat_range(members)
    assert found.passing == (8, 16)
    assert (found.low.seats, found.low.check, found.low.outside_seats, found.low.reached) == (8, "ttft", 4, True)
    assert (found.high.seats, found.high.check, found.high.outside_seats, found.high.value) == (16, "tpot", 32, 0.015)


def test_the_end_of_the_search_is_no_edge():
    """Where the last number tried still passes, the edge is not reached and no target sets it."""
    found = seat_range([candidate(8), candidate(16)])
    assert (found.high.seats, found.high.reached, found.high.check) == (16, False, None)
    assert (found.low.seats, found.low.reached) == (8, False)


def test_a_doubtful_neighbour_ends_the_range_too():
    """A neighbour that is too close to call does not pass: its doubtful check sets the edge."""
    found = seat_range([candidate(8), candidate(16, tpot=0.0099, rel=0.05)])
    assert found.too_close == (16,)
    assert (found.high.seats, found.high.check) == (8, "tpot")


def test_the_failing_device_names_its_check_and_best_value():
    """A slow CPU: the sentence says which check it never passes and how near it came."""
    cpu = [candidate(1, device="cpu", tpot=0.61), candidate(2, device="cpu", tpot=0.7), candidate(4)]
    (failure,) = device_failures(cpu)
    assert failure.device == "cpu"
    assert failure.sentence == "cpu never passes p99 TPOT: its best is 610 ms (chunked, 1 seat) against 10.0 ms."
    assert [n.check for n in failure.never] == ["tpot"]


def test_what_nobody_saw_has_no_best_value():
    """Answers of one token have no gap: TPOT is not met, and no dash stands for its best."""
    slow = [candidate(1, device="cpu", tpot=0.61)]
    unseen = [
        replace(
            c,
            checks=tuple(
                replace(k, value=None, margin=None, interval=None) if k.name == "tpot" else k for k in c.checks
            ),
        )
        for c in slow
    ]
    (failure,) = device_failures(unseen)
    assert failure.sentence == "cpu never shows p99 TPOT, as an answer of one token has no gap, so 10.0 ms is not met."


def test_a_model_that_does_not_fit_is_said_as_such():
    """Where nothing could be simulated the sentence is about memory, not about a latency nobody saw."""
    (failure,) = device_failures([candidate(1, fits=False)])
    assert "does not hold m in bf16: it needs 1.50 times the usable memory" in failure.sentence


def test_checks_that_pass_apart_but_never_together():
    """Each check passes at some number of seats, none at all of them: the nearest and its miss are named."""
    (failure,) = device_failures([candidate(4, ttft=0.5), candidate(8, tpot=0.012)])
    assert failure.never == ()
    assert "never all together" in failure.sentence and "8 seats" in failure.sentence


def test_a_device_that_is_only_too_close_says_which_check_and_where():
    """16 seats leave TPOT alone in doubt, 8 seats TTFT too: the 16 stand for the device; one that passes or fails has no line."""
    some = [
        candidate(8, device="near", ttft=0.099, tpot=0.0096, rel=0.05),
        candidate(16, device="near", tpot=0.0097, rel=0.05),
        candidate(4, device="near", tpot=0.0101),
        candidate(8, device="passes"),
        candidate(16, device="passes", tpot=0.0097, rel=0.05),
        candidate(8, device="fails", tpot=0.02),
    ]
    assert too_close(some) == {
        "near": "near is too close to call at its nearest (chunked, 16 seats): p99 TPOT is 9.70 ms against 10.0 ms, "
        "but may be 9.22 ms to 10.2 ms."
    }


def test_groups_differ_in_more_than_seats():
    """Two policies are two groups, each in rising seats."""
    found = groups([candidate(8), candidate(4), candidate(4, policy="static")])
    assert [[c.seats for c in members] for members in found.values()] == [[4, 8], [4]]

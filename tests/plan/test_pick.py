"""The pick, its rule, the Pareto front and what seats cost and buy."""

from dataclasses import replace

from plan.make import candidate
from servefit.plan.pick import answer, nearest, pareto, recommend, seat_trades


def test_the_cheapest_that_passes_wins_and_the_margin_breaks_ties():
    """The dearer device loses; of two seats at one price the one with more room for the tightest latency wins."""
    some = [
        candidate(8, device="dear", usd=4.0, tpot=0.001),
        candidate(8, device="cheap", usd=1.0, tpot=0.009),
        candidate(4, device="cheap", usd=1.0, tpot=0.008),
        candidate(2, device="free-but-fails", usd=0.1, tpot=0.02),
    ]
    found = recommend(some, "cheapest")
    assert found.id == "cheap/chunked/4"
    assert "lowest cost per hour" in found.rule
    assert recommend(some, "margin").id == "dear/chunked/8"


def test_what_was_measured_comes_before_what_is_cheap():
    """With the rule "measured" a cheaper configuration that rests on a datasheet loses to one that was measured."""
    some = [
        replace(candidate(8, device="here", usd=None), basis="m"),
        replace(candidate(8, device="cheap", usd=0.1), basis="s"),
    ]
    assert recommend(some, "measured", {"m": "measured", "s": "spec"}).id == "here/chunked/8"
    assert recommend(some, "cheapest", {"m": "measured", "s": "spec"}).id == "cheap/chunked/8"


def test_of_equal_margins_the_pick_stands_clear_of_both_ends():
    """16 to 64 seats pass with the same margin: 32 is twice the 14 that fails, and half of the 128 that fails or more."""
    tried = (14, 16, 24, 32, 48, 64, 128)
    some = [candidate(n, usd=1.0, ttft=0.5 if n in (14, 128) else 0.05, rel=0.05, seat_bytes=1) for n in tried]
    found = recommend(some, "cheapest")
    assert found.id == "gpu/chunked/32"
    assert "farthest from both ends of the passing range" in found.rule
    assert recommend(some, "cheapest", {}, {"b": 24}).id == "gpu/chunked/24"  # beyond 24 nothing was measured


def test_seats_that_change_nothing_end_no_range():
    """More than 31 are never there: 64 seats stand far from the low end and near no other; a limit not tried may end it."""
    idle = [candidate(n, usd=1.0, ttft=0.5 if n == 28 else 0.05, seat_bytes=1) for n in (28, 29, 30, 31, 64)]
    idle = [replace(c, figures=replace(c.figures, in_flight_peak=31)) for c in idle]
    assert recommend(idle, "cheapest").id == "gpu/chunked/64"
    busy = [replace(c, figures=replace(c.figures, in_flight_peak=99)) for c in idle]
    assert recommend(busy, "cheapest").id == "gpu/chunked/31"


def test_a_margin_that_is_worse_by_more_than_its_interval_is_not_traded_for_room():
    """16 seats in the middle cost a clear piece of the margin: the pick stays; within the interval it moves; never to a dearer one."""
    ends = [candidate(n, usd=1.0, tpot=0.02, rel=0.05) for n in (7, 33)]
    best = candidate(8, usd=1.0, tpot=0.006, rel=0.05)
    assert recommend([*ends, best, candidate(16, usd=1.0, tpot=0.0064, rel=0.05)], "cheapest").id == "gpu/chunked/8"
    assert recommend([*ends, best, candidate(16, usd=1.0, tpot=0.0062, rel=0.05)], "cheapest").id == "gpu/chunked/16"
    assert recommend([*ends, best, candidate(16, usd=2.0, tpot=0.0062, rel=0.05)], "cheapest").id == "gpu/chunked/8"


def test_without_any_price_the_rule_says_so():
    """Nothing is cheapest where no price is known: the margin decides and the recorded rule says why."""
    found = recommend([candidate(8, tpot=0.009), candidate(4, tpot=0.008)], "cheapest")
    assert found.id == "gpu/chunked/4"
    assert found.rule.startswith("no price is known")


def test_nothing_passes_nothing_is_recommended():
    """The nearest miss is named with its value instead."""
    some = [candidate(4, tpot=0.03), candidate(8, tpot=0.012), candidate(16, fits=False)]
    assert recommend(some, "cheapest") is None
    near = nearest(some)
    assert near.id == "gpu/chunked/8"
    assert "p99 TPOT is 12.0 ms against 10.0 ms" in near.rule
    assert answer(some, None, near).startswith("No candidate meets every target; the nearest, gpu")


def test_the_nearest_has_the_fewest_checks_in_doubt():
    """Both latencies in doubt by a hair at 8 seats, one by more at 16, a clear miss by next to nothing at 4: 16 is nearest."""
    two = candidate(8, ttft=0.0999, tpot=0.00999, rel=0.01)
    one = candidate(16, tpot=0.0099, rel=0.05)
    fail = candidate(4, tpot=0.01001)
    assert nearest([two, one, fail]).id == one.id
    assert nearest([two, candidate(32, tpot=0.0099, rel=0.05), one]).id == one.id
    assert nearest([two, fail]).id == two.id


def test_the_front_keeps_what_nothing_beats():
    """Dearer with more capacity stays; dearer with less of everything goes."""
    some = [
        candidate(8, device="a", usd=1.0, tpot=0.009, capacity=5.0),
        candidate(8, device="b", usd=2.0, tpot=0.009, capacity=9.0),
        candidate(8, device="c", usd=3.0, tpot=0.0095, capacity=8.0),
    ]
    assert pareto(some) == ("a/chunked/8", "b/chunked/8")


def test_seats_cost_memory_and_buy_capacity():
    """Eight more seats of ten bytes take 80 bytes and, here, carry two requests a second more."""
    some = [candidate(8, capacity=5.0), candidate(16, capacity=7.0), candidate(8, device="other", capacity=1.0)]
    (trade,) = seat_trades(some, "gpu/chunked/8", p=99)
    assert (trade.extra_seats, trade.memory_bytes, trade.capacity_req_per_s) == (8, 80, 2.0)


def test_the_answer_is_one_sentence_with_the_tightest_margin():
    """Device, policy, seats and the tightest latency stand in it."""
    some = [candidate(8, tpot=0.008)]
    assert answer(some, recommend(some, "margin"), None) == (
        "gpu with chunked batching and 8 seats (m in bf16) meets every target; the tightest is p99 TPOT with "
        "8.00 ms of 10.0 ms (20% to spare)."
    )

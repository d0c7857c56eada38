"""What `explain` says was waited for, against what the simulated engine did: over random loops, whatever the seed."""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from explain.truth import Loop, loop, play, sliced
from servefit.explain.case import Cause
from servefit.explain.rules import diagnose_run
from servefit.records import Run
from servefit.stats import percentile

LOOPS = range(140)
WAITS = {"seats_full", "prompts_ahead", "queueing"}
CALM = 0.15
"""Share of p95 TTFT below which nobody can be said to wait: the step in flight as a request comes is about that."""
LARGE = 0.35
"""Share from which on a wait has to be named."""
OFF = 0.15
"""How far a named share may be from the true one, where steps that read several prompts may count as reading or as waiting."""


def waited_for(run: Run) -> Cause | None:
    """The wait that is named."""
    named = [c for c in diagnose_run(run).causes if c.code in WAITS]
    assert len(named) <= 1, "a wait has one name"
    return named[0] if named else None


@cache
def judged(seed: int) -> tuple[Loop, Cause | None]:
    """A loop and the wait that was named; each is played once."""
    played = loop(seed)
    return played, waited_for(played.run)


def kind(played: Loop) -> str:
    """What was truly waited for, where it is one thing and large: the code that says so; else "calm", "some" or "both"."""
    seat, prompts = played.share(played.seat_s), played.share(played.prompts_s)
    if played.share(played.seat_s, played.prompts_s, played.beside_s) < CALM:
        return "calm"
    if played.share(played.seat_s, played.prompts_s) < LARGE:
        return "some"
    if max(seat, prompts) < 2 * min(seat, prompts):
        return "both"
    return "seats_full" if seat > prompts else "prompts_ahead"


def off(played: Loop, cause: Cause) -> float:
    """How far the named share of p95 TTFT is from the true one; 0 between the two ways to count what prompts shared."""
    said = cause.weight_s / played.slow_s
    least = played.share(played.seat_s, played.prompts_s)
    most = played.share(played.seat_s, played.prompts_s, played.beside_s)
    return max(least - said, said - most, 0.0)


def test_the_truth_adds_up():
    """Waiting for a seat, waiting for others' prompts and reading are the whole of every TTFT."""
    for seed in LOOPS[:28]:
        played, _ = judged(seed)
        for i, whole in played.ttft_s.items():
            assert played.seat_s[i] + played.prompts_s[i] + played.read_s[i] == pytest.approx(whole, abs=1e-6), (
                seed,
                i,
            )


@pytest.mark.slow
def test_the_named_wait_is_the_true_one():
    """Never the wrong knob, nothing in a calm run, and nearly every large wait by its own name."""
    seen = Counter((kind(played), cause.code if cause else "-") for played, cause in map(judged, LOOPS))
    assert not [(true, said) for true, said in seen if {true, said} == {"seats_full", "prompts_ahead"}], seen
    assert not [(true, said) for true, said in seen if true == "calm" and said != "-"], seen
    for true in ("seats_full", "prompts_ahead"):
        of_them = sum(n for (t, _), n in seen.items() if t == true)
        assert of_them >= 20, "the draw has enough of each"
        assert seen[true, true] >= 0.85 * of_them, seen


@pytest.mark.slow
def test_the_named_share_is_the_true_one():
    """What a named wait is said to take of p95 TTFT is what it took, within `OFF`, in 19 of 20 runs and on average far closer."""
    far = [off(played, cause) for played, cause in map(judged, LOOPS) if cause]
    assert sum(d > OFF for d in far) <= 0.05 * len(far), far
    assert sum(far) / len(far) < 0.02


@pytest.mark.slow
def test_the_knob_that_is_named_is_the_one_that_helps():
    """Two to four times the seats take half of p95 TTFT or more where seats are named (the median), and nothing where prompts are."""
    left: dict[str, list[float]] = {"seats_full": [], "prompts_ahead": []}
    for played, cause in map(judged, LOOPS):
        config = played.config
        seats = min(
            4 * config.seats, config.budget_tok
        )  # a step has a token for each seat: nothing but the seats is changed
        if cause and cause.code in left and seats >= 2 * config.seats:
            left[cause.code].append(play(played.workload, replace(config, seats=seats)).slow_s / played.slow_s)
    assert min(map(len, left.values())) >= 20
    assert (percentile(left["seats_full"], 50) or 0.0) < 0.5
    assert max(left["seats_full"]) < 0.9
    assert min(left["prompts_ahead"]) > 0.9


@pytest.mark.slow
def test_slices_with_a_seat_for_everybody():
    """Who waits for a step's tokens is told so, and of no seat: the share is the true one, and small shares are left alone."""
    for seed in range(40):
        played = sliced(seed)
        cause = waited_for(played.run)
        assert cause is None or (cause.code == "prompts_ahead" and off(played, cause) <= OFF), seed
        assert cause or played.share(played.prompts_s) < LARGE, seed
        assert cause is None or (
            "More seats do not help" in cause.confirm and "max_num_batched_tokens" in cause.confirm
        )


@pytest.mark.slow
def test_a_server_that_tells_its_waits_is_told_what_they_were_for():
    """With each request's true wait by the server's own clock, it is shown, of the true size, and never the wrong knob."""
    for seed in LOOPS[:70]:
        played, _ = judged(seed)
        rows = [replace(r, server={"queue_s": played.seat_s[r.id] + played.prompts_s[r.id]}) for r in played.run.rows]
        cause = waited_for(replace(played.run, rows=tuple(rows)))
        true = kind(played)
        if cause is not None:
            assert {true, cause.code} != {"seats_full", "prompts_ahead"}, seed
            assert cause.certainty == "shown"
            assert cause.weight_s / played.slow_s == pytest.approx(played.share(played.seat_s, played.prompts_s)), seed
        assert cause or true not in {"seats_full", "prompts_ahead"}, seed

"""Rules and fixes on typed numbers: each fires on its own case and stays silent on its neighbour's."""

import pytest

from servefit.errors import ServefitError
from servefit.explain.case import Case, Cause, Wall
from servefit.explain.decompose import Observed, observe_typed
from servefit.explain.fixes import FIXES, Wish, propose
from servefit.explain.rules import Diagnosis, diagnose_typed
from servefit.units import fmt

WALL = Wall(weight_bytes=4.9e9, kv_bytes_per_tok=131072, bandwidth_bytes_per_s=273e9, active_params=8.03e9)
SHORT = Observed(ttft_s=0.145, itl_s=0.0224, isl=12, osl=100)
SUPPORT = Observed(ttft_s=0.775, itl_s=0.022, isl=6200, osl=300, prefill_tok_per_s=8000)


def codes(found: Diagnosis) -> list[str]:
    """The codes of the causes, in order."""
    return [c.code for c in found.causes]


def test_one_number_alone_is_refused():
    """E9: one latency number hides two bottlenecks; the hint says what to measure."""
    for one in ({"ttft_s": 0.78}, {"itl_s": 0.022}, {"e2e_s": 7.4}, {}):
        given = {"ttft_s": None, "itl_s": None, "e2e_s": None, "isl": 6200, "osl": 300, "prefill_rate": None} | one
        with pytest.raises(ServefitError) as caught:
            observe_typed(**given)
        assert "measure" in caught.value.hint


def test_two_numbers_complete_the_third():
    """The whole time and one half give the other by arithmetic."""
    seen = observe_typed(ttft_s=0.775, itl_s=None, e2e_s=7.353, isl=6200, osl=300, prefill_rate=None)
    assert seen.itl_s == pytest.approx(0.022)
    seen = observe_typed(ttft_s=None, itl_s=0.022, e2e_s=7.353, isl=6200, osl=300, prefill_rate=None)
    assert seen.ttft_s == pytest.approx(0.775)


def test_a_whole_shorter_than_its_half_is_refused():
    """A negative half is a typing error, not a result."""
    with pytest.raises(ServefitError, match="negative"):
        observe_typed(ttft_s=8.0, itl_s=None, e2e_s=7.4, isl=None, osl=300, prefill_rate=None)


@pytest.mark.parametrize(
    "odd",
    [{"ttft_s": 1e300}, {"itl_s": 2e6}, {"isl": 10**15}, {"osl": 10**12}, {"osl": 0}, {"ttft_s": 0.0, "itl_s": 0.0}],
)
def test_what_cannot_be_is_refused(odd: dict):
    """Nothing observed, and numbers out of all proportion, are one sentence."""
    given = {"ttft_s": 0.78, "itl_s": 0.022, "e2e_s": None, "isl": 6200, "osl": 300, "prefill_rate": None} | odd
    with pytest.raises(ServefitError):
        observe_typed(**given)


def test_no_answer_length_is_refused():
    """W10: a latency means nothing without its token shape."""
    with pytest.raises(ServefitError, match="length"):
        observe_typed(ttft_s=0.78, itl_s=0.022, e2e_s=None, isl=6200, osl=None, prefill_rate=None)


def test_support_assistant():
    """W1 to W7: slow to type, 89% writing, and an instant start saves 775 ms at most."""
    found = diagnose_typed(SUPPORT)
    assert found.waits[0].kind == "slow to type"
    assert fmt(found.waits[0].writing_frac * 100) == "89"
    assert "An instant start would save 775 ms at most" in found.sentence
    assert "6,200 tokens in, 300 out" in found.sentence


def test_the_seeds_sample_was_cut():
    """M13: 24.1 over 22.4 ms speaks of 2,850 tokens, not 8,000, and the rule finds it by itself."""
    found = diagnose_typed(Observed(ttft_s=4.21, itl_s=0.0241, isl=8000, osl=100), short=SHORT, wall=WALL)
    cut = next(c for c in found.causes if c.code == "prompt_cut")
    assert cut.value == 2850
    assert cut.certainty == "likely"
    assert "21.4%" in cut.saw
    assert "7.6%" in cut.saw
    assert fmt(found.ceiling_frac * 100) == "80"  # at the 2,850 tokens that are read, not at 8,000


def test_second_signal_makes_it_sure():
    """M9: 30.5 TFLOP/s on a device that peaks at 17 is a second signal."""
    wall = Wall(
        weight_bytes=4.9e9, kv_bytes_per_tok=131072, bandwidth_bytes_per_s=273e9, active_params=8.03e9, flop_per_s=17e12
    )
    found = diagnose_typed(Observed(ttft_s=4.21, itl_s=0.0241, isl=8000, osl=100), short=SHORT, wall=wall)
    cut = next(c for c in found.causes if c.code == "prompt_cut")
    assert cut.certainty == "shown"
    assert "30.5 TFLOP/s" in cut.saw


def test_an_uncut_prompt_is_not_accused():
    """The gap that the bytes predict (27.18 ms) raises no suspicion, nor does a little less."""
    for gap in (0.02718, 0.0255):
        found = diagnose_typed(Observed(ttft_s=4.21, itl_s=gap, isl=8000, osl=100), short=SHORT, wall=WALL)
        assert "prompt_cut" not in codes(found)


def test_long_prompt_against_a_short_one():
    """E6: 4.21 s against 145 ms on the same server is the prompt's length."""
    found = diagnose_typed(Observed(ttft_s=4.21, itl_s=0.02718, isl=8000, osl=100), short=SHORT, wall=WALL)
    assert codes(found)[0] == "long_prompt"
    assert "29.0 times" in found.causes[0].saw


@pytest.mark.parametrize(("p95", "fires"), [(0.190, False), (0.9, True)])
def test_ugly_tail(p95: float, fires: bool):
    """M17: 190 ms beside 145 ms is no tail; 900 ms is a queue or a cold start, not the model."""
    found = diagnose_typed(SHORT, ttft_p95_s=p95)
    assert ("tail" in codes(found)) is fires


@pytest.mark.parametrize(("gap", "code"), [(0.0224, "too_large"), (0.060, "below_ceiling"), (0.010, "above_ceiling")])
def test_where_the_pace_stands(gap: float, code: str):
    """E7: 80% of the ceiling is bandwidth, 30% is overhead or compute, 180% is a finding; one of the three, never two."""
    found = diagnose_typed(Observed(ttft_s=0.1, itl_s=gap, isl=12, osl=100), wall=WALL)
    assert [c for c in codes(found) if c in {"too_large", "below_ceiling", "above_ceiling"}] == [code]


def test_caching_computed_beside_claimed():
    """W6: the model says 25 ms, the promise says 120: 95 ms unexplained, 655 ms saved, 9% of the wait."""
    case = Case(seen=SUPPORT)
    promised = next(
        f for f in propose(case, (), Wish(stable_tok=6000, cached_ttft_s=0.12)) if f.code == "prompt_caching"
    )
    assert "25.0 ms" in promised.how
    assert "95.0 ms unexplained" in promised.how
    assert promised.saves_s == pytest.approx(0.655)
    assert fmt(promised.saves_frac * 100, 1) == "8.9"
    computed = next(f for f in propose(case, (), Wish(stable_tok=6000)) if f.code == "prompt_caching")
    assert computed.changes[0].after == pytest.approx(0.025)


def test_caching_saves_less_than_reading():
    """W7: no start fix saves more than the start."""
    for fix in propose(Case(seen=SUPPORT, wall=WALL), (), Wish(stable_tok=9000)):
        if fix.half == "start" and fix.code == "prompt_caching":
            assert fix.saves_s <= SUPPORT.ttft_s


def test_batching_is_never_offered_for_pace():
    """E10: no fix that changes TPOT for the better is about bigger batches, and more seats need a queue."""
    assert not any("batch" in name for name in FIXES)
    for fix in propose(Case(seen=SUPPORT, wall=WALL)):
        assert fix.code not in {"more_seats", "more_replicas"}


def test_seats_are_offered_only_where_seats_are_full():
    """E10: a wait alone does not ask for seats; full seats do."""
    waiting = Case(seen=Observed(ttft_s=1.0, itl_s=0.02, isl=64, osl=64, queue_s=0.8))
    full = Cause(code="seats_full", title="", half="start", saw="", confirm="", certainty="shown")
    assert "more_seats" not in {f.code for f in propose(waiting)}
    assert "more_seats" in {f.code for f in propose(waiting, (full,))}


def test_each_fix_says_what_it_leaves():
    """E10: every fix carries what it changes or why that is not known, and what it leaves alone."""
    fixes = propose(Case(seen=SUPPORT, wall=WALL), (), Wish(stable_tok=6000))
    assert {f.code for f in fixes} >= {
        "prompt_caching",
        "shorter_prompt",
        "quantise",
        "quantise_kv",
        "speculate",
        "faster_memory",
    }
    for fix in fixes:
        assert fix.unchanged
        assert fix.how
        assert fix.changes or fix.saves_s is None


def test_half_the_bytes():
    """Quantising 4.9 GB to half saves 2.45 GB / 273 GB/s = 8.97 ms of each gap at most at full bandwidth."""
    fix = next(f for f in propose(Case(seen=SHORT, wall=WALL)) if f.code == "quantise")
    assert fix.changes[0].after == pytest.approx(0.0224 - 2.45e9 / 273e9)

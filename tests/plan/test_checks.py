"""Verdicts against targets, and the margin's sign."""

import pytest

from servefit.plan import checks


def test_a_margin_inside_the_interval_is_no_pass():
    """A value that meets its target by less than its own uncertainty is too close to call, on both sides."""
    assert checks.make_check("ttft", 0.1, 0.099, (0.09, 0.11)).verdict == "too close to call"
    assert checks.make_check("ttft", 0.1, 0.101, (0.09, 0.11)).verdict == "too close to call"
    assert checks.make_check("ttft", 0.1, 0.08, (0.07, 0.1)).verdict == "pass"
    assert checks.make_check("ttft", 0.1, 0.2, (0.11, 0.3)).verdict == "fail"


def test_at_least_targets_turn_the_signs_round():
    """Goodput above its target has a positive margin, below it a negative one."""
    assert checks.make_check("goodput", 0.8, 1.0, None).margin == pytest.approx(0.25)
    missed = checks.make_check("goodput", 0.8, 0.4, None)
    assert missed.margin == pytest.approx(-0.5)
    assert missed.verdict == "fail"


def test_nothing_observed_is_a_fail_and_never_zero():
    """A check without a value has neither margin nor interval and fails."""
    check = checks.make_check("tpot", 0.01, None, None)
    assert (check.value, check.margin, check.interval, check.verdict) == (None, None, None, "fail")
    assert checks.make_check("ttft", 0.1, float("inf"), None).value is None


def test_the_percentile_is_in_the_label():
    """The label of a latency check says which percentile it is; memory has none."""
    assert checks.make_check("ttft", 0.1, 0.05, None, p=95).label == "p95 TTFT"
    assert checks.make_check("memory", 1.0, 0.5, None, p=95).label == "memory"


def test_one_fail_decides_and_one_doubt_is_enough():
    """A candidate passes only when every check does."""
    good = checks.make_check("ttft", 0.1, 0.05, None)
    close = checks.make_check("tpot", 0.01, 0.0099, (0.009, 0.011))
    bad = checks.make_check("tpot", 0.01, 0.02, None)
    assert checks.overall([good, good]) == "pass"
    assert checks.overall([good, close]) == "too close to call"
    assert checks.overall([good, close, bad]) == "fail"


def test_never_lists_only_checks_that_nothing_passes():
    """The best value of a check that fails everywhere is the nearest one, with its candidate."""
    rows = [
        (name, (checks.make_check("ttft", 0.1, ttft, None), checks.make_check("tpot", 0.01, tpot, None)))
        for name, ttft, tpot in (("a", 0.05, 0.03), ("b", 0.2, 0.02))
    ]
    (found,) = checks.never(rows)
    assert (found.check, found.best_value, found.best_candidate) == ("tpot", 0.02, "b")

"""Percentiles are measured values by integer nearest rank, and their intervals cover what they promise."""

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.stats import binomial_cdf, interval_ranks, is_slowest, percentile, percentile_interval, rank, spread

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


def test_ranks_of_ten():
    """M2: of ten values p50 is the 5th, p90 the 9th, p95 and p99 the 10th."""
    assert [percentile(range(1, 11), p) for p in (50, 90, 95, 99)] == [5, 9, 10, 10]


def test_the_late_bus():
    """M5: 19 rides on time and one an hour late have mean 3 and p95 0; p96 and up are 60."""
    rides = [0] * 19 + [60]
    assert (spread(rides).mean, percentile(rides, 95), percentile(rides, 96)) == (3.0, 0, 60)


def test_integer_ranks_are_right_where_float_ranks_are_wrong():
    """M2: the rank is the exact ceiling for every p and n; ceil(p / 100 * n) in floats is wrong for 141 pairs."""
    wrong = 0
    for n in range(1, 1001):
        for p in range(1, 100):
            exact = math.ceil(Fraction(p * n, 100))
            assert rank(p, n) == exact
            wrong += math.ceil(p / 100 * n) != exact
    assert wrong == 141


def test_when_a_percentile_is_no_more_than_the_slowest():
    """M3: the first n where p95 is not the maximum is 20, where p99 is not is 100."""
    assert next(n for n in range(1, 200) if not is_slowest(95, n)) == 20
    assert next(n for n in range(1, 200) if not is_slowest(99, n)) == 100
    assert not is_slowest(95, 0)


def test_nothing_observed_is_none():
    """No values: no percentile, no interval, no mean; never 0."""
    assert percentile([], 50) is None
    assert percentile_interval([], 50) is None
    assert (spread([]).p50, spread([]).mean, spread([]).n) == (None, None, 0)


@given(values, st.integers(1, 100))
def test_a_percentile_is_one_of_the_values(sample, p):
    """D14: at least p% of the values lie at or below it, and it was measured."""
    found = percentile(sample, p)
    assert found in sample
    assert sum(v <= found for v in sample) * 100 >= p * len(sample)
    assert sum(v < found for v in sample) * 100 < p * len(sample)


def test_binomial_distribution_sums_exactly():
    """P(B <= k) for n=3, q=1/2 is 1/8, 4/8, 7/8, 1."""
    assert binomial_cdf(3, 0.5) == pytest.approx([0.125, 0.5, 0.875, 1.0])


def test_interval_of_a_median_of_ten():
    """The textbook 95% interval for the median of ten is (x2, x9), coverage 97.9%; for p95 of ten there is none."""
    assert percentile_interval(range(1, 11), 50) == (2, 9)
    assert percentile_interval(range(1, 11), 95) is None


@pytest.mark.parametrize(("p", "n"), [(50, 15), (90, 80), (95, 300), (99, 2500)])
def test_intervals_cover_the_truth_as_often_as_they_say(p, n):
    """Over 1,000 seeded samples of a uniform variable the 95% interval holds the true percentile at least 94% of the time."""
    stream = random.Random(f"{p}/{n}")
    low, high = interval_ranks(p, n)
    hits = 0
    for _ in range(1000):
        ordered = sorted(stream.random() for _ in range(n))
        hits += ordered[low - 1] <= p / 100 < ordered[high - 1]
    assert 940 <= hits <= 995


@given(st.integers(1, 99), st.integers(1, 400))
def test_interval_ranks_surround_the_percentile(p, n):
    """An interval, where there is one, lies inside the sample and around the nearest rank."""
    found = interval_ranks(p, n)
    assert found is None or 1 <= found[0] <= rank(p, n) <= found[1] <= n

"""Numbers beyond the memory come back as they went in, and their ranks are those of a sorted list, to the bit."""

import errno
import pickle
import tracemalloc
from array import array
from itertools import islice
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit import spill
from servefit.errors import ServefitError
from servefit.spill import Column, Ranked
from servefit.stats import percentile, percentile_interval, spread

values = st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=60)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch):
    """Pages of four numbers, sorted seven at a time: what is large is so at a few dozen."""
    monkeypatch.setattr(spill, "_PAGE_BYTES", 32)
    monkeypatch.setattr(spill, "_SORTED_AT_ONCE", 7)


@given(values, st.integers(0, 60), st.integers(0, 60))
def test_a_column_reads_like_the_list_that_went_in(tmp_path_factory, given_values, start, stop):
    """In order, by place, in part, through a pickle, and after what came last was let go; most of it lies on disk."""
    column: Column[float] = Column("d", in_memory_bytes=40)
    for value in given_values:
        column.append(value)
    assert column.on_disk == (len(given_values) > 5)
    assert list(column) == given_values and len(column) == len(given_values)
    assert [column[at] for at in range(-len(column), len(column))] == given_values * 2
    for part in (slice(start, stop), slice(start, stop, 3), slice(stop, start, -1)):
        assert column[part] == array("d", given_values[part])
    assert list(pickle.loads(pickle.dumps(column))) == given_values
    kept = min(start, len(column))
    column.cut(kept)
    column.extend(given_values[:3])
    assert list(column) == given_values[:kept] + given_values[:3]
    with pytest.raises(IndexError):
        column[len(column)]


@given(values)
def test_ranks_are_those_of_a_sorted_list(given_values):
    """Every rank, the figures made of them, and what comes after the first look."""
    ranked, ordered = Ranked(in_memory_bytes=40), sorted(given_values)
    for some in (given_values, given_values[:9]):
        ranked.extend(some)
        ordered = sorted([*ordered, *some]) if some is not given_values else ordered
        assert [ranked[at] for at in range(len(ranked))] == ordered == list(ranked)
        assert spread(ranked) == spread(ordered)
        for p in (50, 95, 99):
            assert percentile(ranked, p) == percentile(ordered, p)
            assert percentile_interval(ranked, p) == percentile_interval(ordered, p)
        for value in ordered:
            assert ranked.below(value) == sum(other < value for other in ordered)
        assert not ordered or ranked.middle() == median(ordered)


def test_no_file_is_left_and_none_is_made_for_little(tmp_path: Path):
    """The file has no name while it is there, and a few numbers have none."""
    column: Column[int] = Column("Q", tmp_path, in_memory_bytes=80)
    column.extend(range(10))
    assert not column.on_disk
    column.extend(range(1_000))
    assert column.on_disk and not list(tmp_path.iterdir())


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Not a traceback; and where no folder takes a file, the memory does."""
    column: Column[int] = Column("Q", tmp_path, in_memory_bytes=8)

    def full(_self, _at, _data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spill._File, "write", full)
    with pytest.raises(ServefitError, match="No space left"):
        column.extend(range(5))
    nowhere: Column[int] = Column("Q", tmp_path / "gone", in_memory_bytes=8)
    for number in range(50):
        nowhere.append(number)
    assert not nowhere.on_disk and list(nowhere) == list(range(50))


def test_memory_does_not_grow(monkeypatch: pytest.MonkeyPatch):
    """Nearly three times the numbers, appended, ranked and averaged, take what one time takes."""
    monkeypatch.setattr(spill, "_PAGE_BYTES", 8_000)
    monkeypatch.setattr(spill, "_SORTED_AT_ONCE", 1_000)
    numbers = (float(n * 7919 % 100_003) for n in range(10**9))

    def peak(count: int) -> int:
        tracemalloc.start()
        ranked = Ranked(in_memory_bytes=8_000)
        for value in islice(numbers, count):
            ranked.append(value)
        assert ranked[count // 2] and ranked.mean()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(20_000)  # what is imported once
    assert peak(50_000) < peak(20_000) + 10_000

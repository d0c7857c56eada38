"""A run of very many tokens in bounded memory: per-request figures stay exact, gaps are counted."""

import gc
import tracemalloc
from dataclasses import replace

import pytest

from servefit import spill
from servefit.cli.measure_show import run_json
from servefit.measure.health import judge_rows
from servefit.measure.kept import Kept, kept_run
from servefit.measure.run import already
from servefit.objectives import summarize
from servefit.packed import Packed
from servefit.records import RequestRecord, Run, RunHeader, load_run, save_run, without_gaps
from servefit.workload.workload import Workload

HEADER = RunHeader(kind="measured")


def row(number: int, tokens: int = 200, **fields) -> RequestRecord:
    """An answer whose gaps differ from token to token and from row to row."""
    due = 0.5 * number
    times, at = [], due + 0.1 + number % 7 * 0.01
    for k in range(tokens):
        times.append(at)
        at += 0.02 + 0.0001 * ((k * 37 + number * 11) % 101)
    return RequestRecord(
        id=str(number), status="ok", due_s=due, sent_s=due, chunk_s=tuple(times), done_s=at, osl=tokens, **fields
    )


def test_a_long_run_has_the_same_figures():
    """Requests' figures to the last bit, gaps to 0.003%, counts exact; up to the limit nothing changes at all."""
    rows = [row(n) for n in range(300)]
    whole = summarize(Run(header=HEADER, rows=tuple(rows)))
    assert Kept(rows, whole_tok=60_000).run(HEADER).rows == tuple(rows)
    kept = Kept(rows[:50], whole_tok=5_000)
    kept._gaps._exact = 100  # from here on it has to count in bins
    for later in rows[50:]:
        kept.add(later)
    long = summarize(kept.run(HEADER))
    assert long.itl_s.p50 != whole.itl_s.p50, "the middle of a bin, not an observation"
    assert replace(long, itl_s=whole.itl_s) == whole
    for p in ("p50", "p90", "p95", "p99", "mean", "max"):
        assert getattr(long.itl_s, p) == pytest.approx(getattr(whole.itl_s, p), rel=4e-5)
    assert long.itl_s.n == whole.itl_s.n


def test_no_row_of_a_long_run_has_gaps():
    """Neither those before the limit nor those after it, whether there are few requests or many."""
    rows = [row(n, 20) for n in range(100)]
    for whole_rows in (10, 1_000):
        run = Kept(rows, whole_tok=700, whole_rows=whole_rows).run(HEADER)
        assert run.rows == tuple(map(without_gaps, rows)) and run.gaps is not None


@pytest.mark.parametrize("n", [0, 1, 49, 50, 51, 52, 75, 99, 100, 101, 200])
def test_very_many_rows_are_packed_and_stay_what_they_were(n):
    """A tuple of the rows up to the limit, beyond it packed; the same rows in the same order, at whatever moment it is asked."""
    rows = [row(i, 3) for i in range(200)]
    kept = Kept(rows[:n], whole_rows=50)
    run = kept.run(HEADER)
    assert run.rows == tuple(rows[:n]) and isinstance(run.rows, Packed if n > 50 else tuple) and run.gaps is None
    for later in rows[n:]:
        kept.add(later)
    assert kept.run(HEADER).rows == tuple(rows) and run.rows == tuple(rows[:n])


def test_memory_does_not_grow_with_requests(tmp_path, monkeypatch):
    """More than twice the rows, their figures and verdict: as much memory as one time, beyond the limit."""
    for name, value in (("_IN_MEMORY_BYTES", 4_000), ("_PAGE_BYTES", 4_000), ("_SORTED_AT_ONCE", 500)):
        monkeypatch.setattr(spill, name, value)

    def peak(n: int) -> int:
        tracemalloc.start()
        kept = Kept(whole_rows=100, whole_tok=10**9, folder=tmp_path)
        kept._gaps._exact = 100  # counted in bins, which take what they take, from the start
        for number in range(n):
            kept.add(row(number, 3))
        run = kept.run(HEADER)
        judged = judge_rows(run, Workload(n=n, rate_req_per_s=2.0), [])
        found = run_json(replace(run, header=judged), summarize(run), tmp_path)
        assert found["summary"]["window"]["n"] > 0.9 * n
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(1_000)  # what is imported and cached once
    assert peak(3_500) < peak(1_500) + 8_000


def test_few_rows_are_there_as_objects():
    """Of 3,000 rows at most the limit and the one that comes; in the end none: they are packed two at a time, never all at once."""
    kept, others = Kept(whole_rows=500), live_rows()
    most = step = 0
    for n in range(3_000):
        before = len(kept._packed)
        kept.add(row(n, 3))
        step = max(step, len(kept._packed) - before)
        if n % 250 == 249:
            most = max(most, live_rows() - others)
    assert step == 2
    assert 490 <= most <= 502
    assert live_rows() - others <= 1


def live_rows() -> int:
    """How many rows are there as objects."""
    return sum(type(thing) is RequestRecord for thing in gc.get_objects())


def test_an_interrupted_run_is_read_back_as_it_was_kept(tmp_path):
    """A short one as `load_run` reads it, a long one without the gaps that would not fit."""
    rows = [row(n, 50) for n in range(20)]
    save_run(Run(header=HEADER, rows=tuple(rows)), tmp_path)
    assert kept_run(tmp_path) == load_run(tmp_path)


def test_memory_grows_with_requests_and_not_with_tokens():
    """Ten times the tokens take the memory of one time, once the limit is passed."""

    def held(tokens: int) -> int:
        kept = Kept(whole_tok=1_000)
        for n in range(20):  # past the limit, and the bins that all runs share
            kept.add(row(n, 1_000))
        kept._gaps._exact = 100
        kept.add(row(0, 1_000))
        tracemalloc.start()
        for n in range(200):
            kept.add(row(n, tokens))
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return size

    assert held(2_000) < 1.2 * held(200) + 100_000 < 400_000


@pytest.mark.parametrize("fields", [{}, {"chunk_tok": (3,) * 200}, {"chunk_tok": (1,) * 199 + (4,)}])
def test_a_row_without_gaps_keeps_its_figures(fields):
    """TTFT, TPOT and E2E of a slim row are those of the whole one, whatever its chunks held."""
    whole = row(3, **fields)
    slim = without_gaps(whole)
    assert len(slim.chunk_s) == 2 and slim.itl_s == ()
    assert (slim.ttft_s, slim.tpot_s, slim.e2e_s) == (whole.ttft_s, whole.tpot_s, whole.e2e_s)


def test_resuming_reads_what_is_there_row_by_row(tmp_path):
    """What a resumed run keeps of long answers, before it goes on, is their ids and the last end."""
    done = [row(n, tokens=400) for n in range(200)]
    save_run(Run(header=HEADER, rows=(*done, replace(done[0], id="w", phase="warmup"))), tmp_path)
    tracemalloc.start()
    try:
        ids, base_s = already(tmp_path, HEADER)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(ids) == 200 and all(str(n) in ids for n in range(200))
    assert base_s == pytest.approx(max(r.done_s or 0.0 for r in done) + 1.0, abs=1e-8)
    assert peak_bytes < 1_000_000, "the rows alone are 2.5 MB"
